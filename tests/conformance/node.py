"""Node and the packages that tests need from its registry, installed once into a folder that git ignores."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / ".conformance"
PACKAGES = {
    "@durable-streams/client": "0.2.6",
    "@durable-streams/server-conformance-tests": "0.3.6",
    "@durable-streams/state": "0.3.1",
    "@tanstack/db": "0.15.2",
    "openapi-fetch": "0.17.0",
    "openapi-typescript": "7.13.0",
    "typescript": "5.9.3",
    "vitest": "4.1.12",
}
_NODE_MAJOR_MIN = 20
_INSTALL_S = 600


def require_node() -> Path:
    """The folder with the packages; skips the test, and states why, where they cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed: the public suite and the JavaScript client cannot be run")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _NODE_MAJOR_MIN:
        pytest.skip(f"node {version} is too old: the public suite needs {_NODE_MAJOR_MIN} or newer")
    HOME.mkdir(exist_ok=True)
    # Tests run in several processes, and one of them installs.
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = HOME / "installed.json"
        if not stamp.exists() or json.loads(stamp.read_text()) != PACKAGES:
            _install(npm, stamp)
    return HOME


def _install(npm: str, stamp: Path) -> None:
    (HOME / "package.json").write_text('{"private": true, "type": "module"}')
    requested = [f"{name}@{version}" for name, version in PACKAGES.items()]
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", *requested],
        cwd=HOME, capture_output=True, text=True, timeout=_INSTALL_S, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the packages of the public suite could not be installed: {done.stderr[-300:]}")
    stamp.write_text(json.dumps(PACKAGES))


def run_node(folder: Path, script: Path, *arguments: str, timeout_s: float = 120) -> str:
    """Runs a module with the installed packages in reach; returns its output."""
    node = shutil.which("node")
    assert node is not None
    # A module finds packages beside itself, so it is copied to where they are.
    copy = folder / script.name
    copy.write_text(script.read_text())
    done = subprocess.run(
        [node, str(copy), *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
