"""Writes the hashes of the pinned packages into `requirements/*.txt`.

    python -m tools.pin_hashes [FILE...]

Run it after a change of a pin. A pin gets the SHA-256 of its source distribution and of each wheel for CPython 3.11 or
newer on Linux and macOS, x86-64 and ARM64, as the package index of pip lists them. pip installs no other file. Pins of
packages without a wheel for one of these Pythons on Linux are printed: such machines build them from source.
"""

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)==(?P<version>[0-9][0-9A-Za-z.]*)( \\)?")
_WHEEL = re.compile(r"[^-]+-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl")
_SOURCE = re.compile(r".+-(?P<version>[^-]+)\.(tar\.gz|zip)")
_LINK = re.compile(r'<a\s[^>]*href="(?P<url>[^"]+)"[^>]*>', re.IGNORECASE)
_PLATFORM = re.compile(r"any|(many|musl)?linux.*_(x86_64|aarch64)|macosx_.*_(x86_64|arm64|universal2)")
_OLDEST_MINOR = 11
_MINORS = range(_OLDEST_MINOR, 15)
_MACHINES = ("x86_64", "aarch64")
_TIMEOUT_S = 60
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


class IndexedFile(NamedTuple):
    """A file of a package index."""

    name: str
    sha256: str


def files_of(page: str) -> list[IndexedFile]:
    """The files on a page of a package index, in JSON or HTML. Files without a SHA-256 are left out."""
    if page.lstrip().startswith("{"):
        listed = [(file["filename"], file["hashes"].get("sha256", "")) for file in json.loads(page)["files"]]
    else:
        urls = [html.unescape(link["url"]) for link in _LINK.finditer(page)]
        listed = [(url.partition("#")[0].rpartition("/")[2], url.partition("#sha256=")[2]) for url in urls]
    return [IndexedFile(name, sha256) for name, sha256 in listed if re.fullmatch("[0-9a-f]{64}", sha256)]


def is_of(file: IndexedFile, version: str) -> bool:
    match = _WHEEL.fullmatch(file.name) or _SOURCE.fullmatch(file.name)
    return match is not None and match["version"] == version


def runs_on(file: IndexedFile, minor: int, machine: str = "") -> bool:
    """Whether a file is a wheel for a version of CPython, on any machine or on Linux on one of them."""
    wheel = _WHEEL.fullmatch(file.name)
    if wheel is None or not any(_PLATFORM.fullmatch(one) for one in wheel["platform"].split(".")):
        return False
    if machine and wheel["platform"] != "any" and not re.search(f"manylinux.*_{machine}", wheel["platform"]):
        return False
    if "abi3" in wheel["abi"]:
        return any(int(python[3:]) <= minor for python in wheel["python"].split(".") if python.startswith("cp3"))
    # A wheel for py311 runs on every later CPython as well; one for cp311t needs an interpreter without the GIL.
    fitting = {"py3", f"cp3{minor}", *(f"py3{earlier}" for earlier in range(minor + 1))}
    return not wheel["abi"].endswith("t") and not fitting.isdisjoint(wheel["python"].split("."))


def is_pinned(file: IndexedFile) -> bool:
    """Whether the hash of a file belongs to the pin."""
    return _SOURCE.fullmatch(file.name) is not None or any(runs_on(file, minor) for minor in _MINORS)


def without_wheel(files: Sequence[IndexedFile]) -> list[str]:
    """The Pythons and machines on Linux that no wheel runs on."""
    return [
        f"CPython 3.{minor} on {machine}"
        for minor in _MINORS
        for machine in _MACHINES
        if not any(runs_on(file, minor, machine) for file in files)
    ]


def pinned(text: str, hashes: dict[tuple[str, str], list[str]]) -> str:
    """The text of a requirements file with these hashes, by name and version, in place of those it has."""
    return "".join(_lines(text, hashes))


def _lines(text: str, hashes: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    for line in text.splitlines():
        pin = PIN.fullmatch(line)
        if pin is not None:
            found = sorted(hashes[pin["name"], pin["version"]])
            yield (
                " \\\n    ".join([f"{pin['name']}=={pin['version']}", *[f"--hash=sha256:{one}" for one in found]])
                + "\n"
            )
        elif not line.startswith("    --hash="):
            yield line + "\n"


def index_url() -> str:
    """The package index of pip, as the machine is configured."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return os.environ.get("PIP_INDEX_URL") or configured.stdout.strip() or default_index_url()


def default_index_url() -> str:
    """The index that pip uses when none is configured. Asked in a subprocess: importing pip replaces other modules."""
    asked = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def fetch(index: str, name: str, version: str) -> list[IndexedFile]:
    """The files of a version of a package."""
    url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    with urlopen(Request(url, headers={"accept": _ACCEPT}), timeout=_TIMEOUT_S) as answer:
        return [file for file in files_of(answer.read().decode()) if is_of(file, version)]


def main(names: Sequence[str]) -> int:
    paths = [Path(name) for name in names] or sorted((ROOT / "requirements").glob("*.txt"))
    pins = {
        (pin["name"], pin["version"])
        for path in paths
        for pin in map(PIN.fullmatch, path.read_text().splitlines())
        if pin is not None
    }
    index = index_url()
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(pins, pool.map(lambda pin: fetch(index, *pin), pins), strict=True))
    hashes = {pin: [file.sha256 for file in files if is_pinned(file)] for pin, files in found.items()}
    missing = sorted("==".join(pin) for pin, of_it in hashes.items() if not of_it)
    if missing:
        print(f"the package index has no files of {', '.join(missing)}", file=sys.stderr)
        return 1
    for path in paths:
        path.write_text(pinned(path.read_text(), hashes))
    for (name, version), files in sorted(found.items()):
        lacking = without_wheel(files)
        if lacking:
            print(f"{name}=={version} has no wheel for {', '.join(lacking)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
