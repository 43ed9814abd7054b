"""The Python that an embedded Spark starts its processes with.

Spark puts the archive of its own sources, `python/lib/pyspark.zip`, in front of the path of each Python process that it
starts. Nothing keeps bytecode for an archive, so each of them compiles pyspark anew: 0.7 s of processor time in place
of 0.15 s, for each kind of worker and for each stream. And Spark gives the process of a stream ten seconds to come up,
also where others have the processor. A package that was installed with pip has the same modules beside the archive,
compiled. So processes are started through a script of ours that leaves the archives out.
"""

import os
import shlex
import site
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_SCRIPT = """#!/bin/sh
# Starts Python for Spark, with the pyspark that is installed in place of the archive of its sources.
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case "$place" in
    */pyspark/python/lib/*.zip | */pyspark/jars/*.jar) ;;
    *) kept="$kept${{kept:+:}}$place" ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def worker_python(env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """The program to start workers with on this machine: the script, or this Python where it would be of no use."""
    env = os.environ if env is None else env
    if not _finds_pyspark(env):
        return sys.executable
    try:
        return str(_script(folder or Path(sys.prefix) / "share" / "topics-python"))
    except OSError:
        # An environment that is not ours to write to: everything works, and starts later.
        return sys.executable


def _finds_pyspark(env: Mapping[str, str]) -> bool:
    """Whether a Python that is started without the archive finds the pyspark that belongs to it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return False
    package = Path(spec.origin).resolve().parent
    if "SPARK_HOME" in env and Path(env["SPARK_HOME"]).resolve() != package:
        return False
    places = [*site.getsitepackages(), *env.get("PYTHONPATH", "").split(os.pathsep)]
    return package.name == "pyspark" and package.parent in [Path(place).resolve() for place in places if place]


def _script(folder: Path) -> Path:
    script = folder / "python"
    # The environment's own folder, whichever link it was reached by: all who share it write the same.
    python = Path(sys.executable).parent.resolve() / Path(sys.executable).name
    text = _SCRIPT.format(python=shlex.quote(str(python)))
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"python.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.replace(script)
    return script
