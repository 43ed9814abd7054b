"""`tools.audit_pins`, with a program in the place of pip-audit that answers as pip-audit does."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.audit_pins import AUDITOR, main

SAFE = {"name": "one", "version": "1.0", "vulns": []}
BAD = {
    "name": "two-b",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}, {"id": "X", "fix_versions": []}],
}
SKIPPED = [{"name": name, "skip_reason": "not found"} for name in ("one", "two-b")]


def audit(tmp_path: Path, **reports: list[dict[str, Any]] | None) -> int:
    """The exit status for these reports by database; None fails."""
    auditor = tmp_path / "audit" / "pip_audit"
    auditor.mkdir(parents=True)
    (auditor / "__init__.py").touch()
    (auditor / "__main__.py").write_text(
        "import json, sys\n"
        f"reports = json.loads({json.dumps(reports)!r})\n"
        'packages = reports[sys.argv[sys.argv.index("--vulnerability-service") + 1]]\n'
        'sys.exit("unreachable") if packages is None else print(json.dumps({"dependencies": packages}))\n'
    )
    pins = tmp_path / "pins.txt"
    pins.write_text("# why\none==1.0 \\\n    --hash=sha256:0\ntwo_b==2.0 \\\n    --hash=sha256:0\n")
    return main([str(pins)], tmp_path / "audit")


def test_packages_without_known_vulnerabilities_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path, pypi=[SAFE, {**BAD, "vulns": []}], osv=None) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("pypi", [None, SKIPPED])
def test_known_vulnerabilities_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pypi: list[dict[str, Any]] | None
) -> None:
    assert audit(tmp_path, pypi=pypi, osv=[SAFE, BAD]) == 1
    assert capsys.readouterr().out == "two-b==2.0: PYSEC-1, fixed in 2.1; X, not fixed\n"


@pytest.mark.parametrize("pypi", [None, SKIPPED])
def test_unreachable_databases_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pypi: list[dict[str, Any]] | None
) -> None:
    assert audit(tmp_path, pypi=pypi, osv=None) == 2
    assert "No database of known vulnerabilities can be reached" in capsys.readouterr().out


def test_packages_that_are_not_looked_up_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path, pypi=[SAFE, SKIPPED[1]], osv=None) == 2
    assert capsys.readouterr().out == "Not looked up: two_b.\n"


@pytest.mark.slow
def test_no_pin_has_a_known_vulnerability(capsys: pytest.CaptureFixture[str]) -> None:
    assert AUDITOR.exists(), "run make setup-audit"
    status = main([])
    told = capsys.readouterr().out
    assert status != 1, told
    if status:
        pytest.skip(told)
