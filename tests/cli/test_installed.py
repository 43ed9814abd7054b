"""The built package in an environment that has what it declares and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.cli.terminal import PATIENCE_S, environment
from tests.http.live import wait_until_ready
from tests.unit.docs.pages import ROOT
from tools.sync_client import BY_HAND
from topics import __version__


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "tools").mkdir()
    for name in ("__init__.py", "sync_client.py"):
        shutil.copy(ROOT / "tools" / name, folder / "tools")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    # As in a fresh clone: the build generates them.
    for path in (folder / "src" / "topics_client" / "_sync").glob("*.py"):
        if path.name not in BY_HAND:
            path.unlink()
    built = run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--no-build-isolation", "--wheel-dir", "out", ".", cwd=folder,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    [path] = (folder / "out").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheel, and links to what `requirements/runtime.txt` pins; without any of the site's other packages."""
    folder = tmp_path_factory.mktemp("empty")
    installed = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--target", str(folder / "site"), str(wheel), cwd=folder,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    (folder / "deps").mkdir()
    for line in (ROOT / "requirements" / "runtime.txt").read_text().splitlines():
        if "==" in line:
            link(line.partition("==")[0], folder / "deps")
    return {**environment(folder), "PYTHONPATH": f"{folder / 'site'}:{folder / 'deps'}"}


def link(name: str, folder: Path) -> None:
    """Everything of one package at the top of the site."""
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        target = Path(str(found.locate_file(top)))
        if target.exists() and not (folder / top).exists():
            (folder / top).symlink_to(target)


def topics(env: dict[str, str], cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S leaves the packages of this environment out.
    return run(sys.executable, "-S", "-m", "topics", *arguments, cwd=cwd, env=env)


def test_the_wheel_has_what_belongs_to_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        reported = archive.read(metadata).decode()
        [entries] = [name for name in names if name.endswith("entry_points.txt")]
        assert "topics = topics.cli:main" in archive.read(entries).decode()
    assert "License-Expression: MIT\n" in reported
    assert f"Version: {__version__}\n" in reported
    assert set(re.findall(r"^Provides-Extra: (\w+)$", reported, re.MULTILINE)) == {"spark", "connect", "otel"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"topics/py.typed", "topics/spark/log4j2.properties"} <= set(names)
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source


def test_the_command_line_starts(empty: dict[str, str], tmp_path: Path) -> None:
    assert topics(empty, tmp_path, "--version").stdout == f"topics {__version__}\n"
    script = Path(empty["PYTHONPATH"].partition(":")[0]) / "bin" / "topics"
    by_script = run(sys.executable, "-S", str(script), "version", cwd=tmp_path, env=empty)
    assert by_script.stdout == f"topics {__version__}\n"


def test_every_module_that_does_not_say_it_needs_spark_imports(empty: dict[str, str], tmp_path: Path) -> None:
    source = ROOT / "src"
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        # The spans need the extra otel.
        if "spark" not in parts and "testing" not in parts and parts[-1] not in ("__main__", "spans"):
            modules.append(".".join(parts).removesuffix(".__init__"))
    assert len(modules) > 200
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = run(sys.executable, "-S", "-c", code, cwd=tmp_path, env=empty)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "pipeline run --data-dir data",
        "export orders out --format parquet",
        "export orders out --spark",
        "export orders out --data-dir data",
        "import orders . --spark",
        "import orders x.parquet --format parquet",
    ],
)
def test_what_needs_spark_says_so_in_one_line(empty: dict[str, str], tmp_path: Path, command: str) -> None:
    done = topics(empty, tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "needs Spark, which is not installed: `make setup-spark`" in done.stderr


def test_a_server_runs_and_commands_talk_to_it(empty: dict[str, str], tmp_path: Path) -> None:
    settings = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(tmp_path / "port"), "TOPICS_ARCHIVE": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-S", "-m", "topics", "serve"], cwd=tmp_path, env={**empty, **settings}, stderr=log
        )
    try:
        while not (tmp_path / "port").exists():
            assert server.poll() is None, (tmp_path / "log").read_text()
        url = f"http://{(tmp_path / 'port').read_text()}"
        wait_until_ready(url)
        appended = topics(empty, tmp_path, "append", "orders", '{"order":1}', "--url", url)
        assert (appended.returncode, appended.stdout) == (0, "1 in orders\n")
        assert topics(empty, tmp_path, "read", "orders", "--url", url).stdout == '{"order":1}\n'
        assert topics(empty, tmp_path, "stream", "read", "orders", "--url", url).stdout == '{"order":1}\n'
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.wait(PATIENCE_S)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"pyspark is not installed"} == {
        one["reason"] for one in events if one["event"] == "the pipeline cannot run"
    }
    verified = topics(empty, tmp_path, "verify", "topics-data")
    assert verified.returncode == 0 and "sound" in verified.stdout


@pytest.mark.slow
def test_pip_installs_it_with_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    """From the index, into an environment of its own."""
    assert run(sys.executable, "-m", "venv", "new", cwd=tmp_path).returncode == 0
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    installed = run("new/bin/python", "-m", "pip", "install", "--quiet", str(wheel), cwd=tmp_path, env=env)
    assert installed.returncode == 0, installed.stderr
    assert run("new/bin/topics", "--version", cwd=tmp_path, env=env).stdout == f"topics {__version__}\n"
    assert run("new/bin/python", "-m", "pip", "check", cwd=tmp_path, env=env).returncode == 0
    missing = run("new/bin/topics", "pipeline", "run", cwd=tmp_path, env=env)
    assert missing.returncode == 1 and "needs Spark" in missing.stderr
