"""`python -m tools.typescript_client`: builds the TypeScript client in clients/typescript; `--check` fails if it
cannot.

The types of requests and answers are generated from the OpenAPI document of a server that is started for it, so they
are not part of the repository. Node and npm are needed; the packages that build the client come from the npm registry.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "clients" / "typescript"
NODE_MAJOR_MIN = 20
_START_S = 60.0
_SERVE = "import sys; from topics.cli import main; sys.exit(main(['serve']))"


class NodeMissing(Exception):
    """Node is absent or too old, or its packages cannot be installed."""


def require_node() -> None:
    """Raises `NodeMissing` with the reason when the client cannot be built here."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise NodeMissing(f"node and npm are not installed: the TypeScript client needs node {NODE_MAJOR_MIN} or newer")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR_MIN:
        raise NodeMissing(f"node {version} is too old: the TypeScript client needs node {NODE_MAJOR_MIN} or newer")


def build(*, with_tests: bool = False) -> Path:
    """Installs the packages that are missing, generates the types and compiles; returns the folder of the package."""
    require_node()
    (HOME / "build").mkdir(exist_ok=True)
    with (HOME / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install()
        with _server() as url:
            run("node", "scripts/types.mjs", f"{url}/v0/openapi.json")
        shutil.copyfile(ROOT / "LICENSE", HOME / "LICENSE")
        run("npm", "run", "--silent", "build")
        if with_tests:
            _link_for_tests()
            run("npm", "run", "--silent", "build:test")
    return HOME


def run(*command: str) -> str:
    """Runs a command in the folder of the client and returns its output; raises with it when the command fails."""
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _install() -> None:
    stamp, requested = HOME / "node_modules" / ".installed", (HOME / "package.json").read_text()
    if stamp.exists() and stamp.read_text() == requested:
        return
    try:
        run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock")
    except RuntimeError as error:
        raise NodeMissing(f"the packages that build the TypeScript client cannot be installed: {error}") from error
    stamp.write_text(requested)


def _link_for_tests() -> None:
    """Lets the compiled tests import the package by its name."""
    link = HOME / "build" / "node_modules" / "topics-client"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(HOME)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """A server of this checkout in its own folder."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        settings = {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": f"{folder}/data",
            "TOPICS_PIPELINE": "off",
        }
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-c", _SERVE], cwd=folder, env={**inherited, **settings}, stdout=log, stderr=log
            )
        try:
            give_up = time.monotonic() + _START_S
            while not port_file.exists():
                if server.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"the server did not start:\n{(Path(folder) / 'log').read_text()}")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port_file.read_text().rpartition(':')[2]}"
        finally:
            server.terminate()
            server.wait(_START_S)


def main() -> int:
    try:
        if sys.argv[1:] == ["--check"]:
            require_node()
            return 0
        print(f"built {build()}")
    except NodeMissing as error:
        if sys.argv[1:] == ["--check"]:
            print(f"tests of the TypeScript client are skipped: {error}")
            return 0
        print(f"the TypeScript client was not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
