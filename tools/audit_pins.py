"""Looks the pinned packages up in the databases of known vulnerabilities.

    python -m tools.audit_pins [FILE...]

Prints each vulnerability, and each package that could not be looked up. The exit status is 1 if there is a
vulnerability, 2 if there is none but a package could not be looked up, for example because no database can be reached.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.pin_hashes import PIN

ROOT = Path(__file__).parents[1]
AUDITOR = ROOT / ".venv" / "audit"
"""The folder in which `make setup-audit` installs pip-audit."""
_DATABASES = ("pypi", "osv")
_PATIENCE_S = 600


class Audit(NamedTuple):
    vulnerable: dict[str, list[str]]
    """Ids of vulnerabilities, with the versions that fix them, by package and version."""
    unknown: set[str]
    """Packages that could not be looked up."""


def pins_of(path: Path) -> set[str]:
    """The names of the packages that a file pins, without those of included files, which have their own audit."""
    return {pin["name"] for pin in map(PIN.fullmatch, path.read_text().splitlines()) if pin is not None}


def audit(path: Path, auditor: Path = AUDITOR) -> Audit:
    """Looks the pins of a file up in the first database that answers."""
    names = pins_of(path)
    for database in _DATABASES:
        found = _read(_report(path, database, auditor), names)
        if found.unknown != names:
            return found
    return Audit({}, names)


def _report(path: Path, database: str, auditor: Path) -> str:
    """The report of pip-audit; empty if it failed, as it does if a database cannot be reached."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off",
            "--format", "json", "--vulnerability-service", database, "--requirement", str(path),
        ],
        env={**os.environ, "PYTHONPATH": str(auditor)}, capture_output=True, text=True, check=False,
        timeout=_PATIENCE_S,
    )  # fmt: skip
    return done.stdout


def _read(report: str, names: set[str]) -> Audit:
    packages: Sequence[Mapping[str, Any]] = json.loads(report)["dependencies"] if report.strip() else ()
    looked_up = {_normal(one["name"]) for one in packages if "vulns" in one}
    vulnerable = {
        f"{one['name']}=={one['version']}": [_told(vulnerability) for vulnerability in one["vulns"]]
        for one in packages
        if one.get("vulns")
    }
    return Audit(vulnerable, {name for name in names if _normal(name) not in looked_up})


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _told(vulnerability: Mapping[str, Any]) -> str:
    fixed = ", ".join(vulnerability["fix_versions"])
    return f"{vulnerability['id']}, fixed in {fixed}" if fixed else f"{vulnerability['id']}, not fixed"


def main(names: Sequence[str], auditor: Path = AUDITOR) -> int:
    vulnerable: dict[str, list[str]] = {}
    unknown: set[str] = set()
    looked_up = 0
    for path in [Path(name) for name in names] or sorted((ROOT / "requirements").glob("*.txt")):
        found = audit(path, auditor)
        vulnerable |= found.vulnerable
        unknown |= found.unknown
        looked_up += len(pins_of(path)) - len(found.unknown)
        if not looked_up:
            print("No database of known vulnerabilities can be reached; nothing was looked up.")
            return 2
    for package, told in sorted(vulnerable.items()):
        print(f"{package}: {'; '.join(told)}")
    if unknown:
        print(f"Not looked up: {', '.join(sorted(unknown))}.")
    return 1 if vulnerable else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
