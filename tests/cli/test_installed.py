"""The built package in an environment with only its declared dependencies."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.terminal import PATIENCE_S, environment
from tests.http.live import LiveServer, wait_until_ready
from tests.unit.docs.pages import ROOT
from tools.sync_client import BY_HAND
from topics import __version__


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S
    )


class Wheels(NamedTuple):
    engine: Path
    client: Path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Both distributions, built from a copy: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "clients" / "python", folder / "clients" / "python", symlinks=True)
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
        "--no-build-isolation", "--wheel-dir", "out", "./clients/python", ".", cwd=folder,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    [engine] = (folder / "out").glob("topics_engine-*.whl")
    [client] = (folder / "out").glob("topics_client-*.whl")
    return Wheels(engine, client)


def install(folder: Path, *wheels: Path) -> None:
    installed = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--target", str(folder / "site"), *map(str, wheels), cwd=folder,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr


@pytest.fixture(scope="module")
def empty(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheels, and links to what `requirements/runtime.txt` pins; without any of the site's other packages."""
    folder = tmp_path_factory.mktemp("empty")
    install(folder, *wheels)
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


@pytest.fixture(scope="module")
def client_alone(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheel of the client with its declared dependencies, without the server."""
    folder = tmp_path_factory.mktemp("client")
    install(folder, wheels.client)
    (folder / "deps").mkdir()
    for name in dependencies_of(wheels.client):
        link(name, folder / "deps")
    return {**environment(folder), "PYTHONPATH": f"{folder / 'site'}:{folder / 'deps'}"}


def metadata_of(wheel: Path) -> tuple[list[str], str]:
    """The names of the files in a wheel, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        return names, archive.read(metadata).decode()


def dependencies_of(wheel: Path) -> list[str]:
    return re.findall(r"^Requires-Dist: ([\w-]+)(?![^;\n]*; extra)", metadata_of(wheel)[1], re.MULTILINE)


def source_of(*packages: str) -> set[str]:
    source = ROOT / "src"
    return {path.relative_to(source).as_posix() for name in packages for path in (source / name).rglob("*.py")}


def test_the_wheel_of_the_server_has_what_belongs_to_it(wheels: Wheels) -> None:
    names, reported = metadata_of(wheels.engine)
    with zipfile.ZipFile(wheels.engine) as archive:
        [entries] = [name for name in names if name.endswith("entry_points.txt")]
        assert "topics = topics.cli:main" in archive.read(entries).decode()
    assert "License-Expression: MIT\n" in reported
    assert f"Version: {__version__}\n" in reported
    assert "topics-client" in dependencies_of(wheels.engine)
    assert set(re.findall(r"^Provides-Extra: (\w+)$", reported, re.MULTILINE)) == {"spark", "connect", "otel"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"topics/py.typed", "topics/spark/log4j2.properties"} <= set(names)
    assert {name for name in names if name.endswith(".py")} == source_of("topics")


def test_the_wheel_of_the_client_has_what_belongs_to_it(wheels: Wheels) -> None:
    names, reported = metadata_of(wheels.client)
    assert "License-Expression: MIT\n" in reported
    assert f"Version: {__version__}\n" in reported
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"topics_client/py.typed", "topics_protocol/py.typed"} <= set(names)
    assert {name for name in names if name.endswith(".py")} == source_of("topics_client", "topics_protocol")
    assert set(dependencies_of(wheels.client)) == {"httptools", "msgspec", "websockets"}


def test_the_client_with_its_dependencies_takes_less_than_5_mb(
    wheels: Wheels, client_alone: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [Path(folder) for folder in client_alone["PYTHONPATH"].split(":")]
    files = {
        path.resolve()
        for folder in folders
        for top in folder.iterdir()
        for path in top.resolve().rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    size = sum(path.stat().st_size for path in files)
    shown = ", ".join(f"{wheel.name} {wheel.stat().st_size / 1e6:.2f} MB" for wheel in wheels)
    with capsys.disabled():
        print(f" topics-client installed with its dependencies: {size / 1e6:.2f} MB; {shown}", end="")
    assert 1e6 < size < 5e6


def test_cpu_time_of_importing_the_client_is_printed(
    client_alone: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The least of several runs, less the start of the bare interpreter. The aim is 60 ms."""
    names = ("topics_client", "Client", "AsyncClient")
    codes = ["pass", "import topics_client", *(f"from topics_client import {name}" for name in names[1:])]
    bare, *took = (min(cpu_ms(code, client_alone, tmp_path) for _ in range(5)) for code in codes)
    with capsys.disabled():
        shown = ", ".join(f"{name} {ms - bare:.0f} ms" for name, ms in zip(names, took, strict=True))
        print(f" imports: {shown} of CPU, besides {bare:.0f} ms of the interpreter", end="")


def cpu_ms(code: str, env: dict[str, str], cwd: Path) -> float:
    """CPU time of an interpreter that runs this code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(sys.executable, "-S", "-c", code, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def test_every_module_of_the_client_imports_without_the_server(client_alone: dict[str, str], tmp_path: Path) -> None:
    names = source_of("topics_client", "topics_protocol")
    names.remove("topics_protocol/touch_keys.py")  # It needs the extra touch.
    modules = sorted(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in names)
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "assert not {'topics', 'numpy', 'uvloop', 'cryptography'} & sys.modules.keys()"
    )
    done = run(sys.executable, "-S", "-c", code, cwd=tmp_path, env=client_alone)
    assert done.returncode == 0, done.stderr


def test_touch_keys_without_their_extra_name_it(client_alone: dict[str, str], tmp_path: Path) -> None:
    code = "from topics_client.streams.touches import TouchTemplate\nTouchTemplate('users', {'id': 'string'}).id"
    done = run(sys.executable, "-S", "-c", code, cwd=tmp_path, env=client_alone)
    assert "pip install 'topics-client[touch]'" in done.stderr


def test_the_client_alone_talks_to_a_server(client_alone: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom topics_client import Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    client.append('orders', {'id': 1})\n"
        "    with client.ws() as socket: socket.publish('orders', {'id': 2})\n"
        "    print([record.data['id'] for record in client.diff('orders').records])"
    )
    with LiveServer(tmp_path) as live:
        done = run(sys.executable, "-S", "-c", code, live.url, cwd=tmp_path, env=client_alone)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


def test_the_command_line_starts(empty: dict[str, str], tmp_path: Path) -> None:
    assert topics(empty, tmp_path, "--version").stdout == f"topics {__version__}\n"
    script = Path(empty["PYTHONPATH"].partition(":")[0]) / "bin" / "topics"
    by_script = run(sys.executable, "-S", str(script), "version", cwd=tmp_path, env=empty)
    assert by_script.stdout == f"topics {__version__}\n"


def test_every_module_that_does_not_state_it_needs_spark_imports(empty: dict[str, str], tmp_path: Path) -> None:
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
def test_command_without_spark_fails_with_one_line(empty: dict[str, str], tmp_path: Path, command: str) -> None:
    done = topics(empty, tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "needs Spark, which is not installed. Install it with: pip install 'topics-engine[spark]'" in done.stderr


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
def test_pip_installs_it_with_what_it_needs(wheels: Wheels, tmp_path: Path) -> None:
    """From the index, into its own environment."""
    assert run(sys.executable, "-m", "venv", "new", cwd=tmp_path).returncode == 0
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    installed = run("new/bin/python", "-m", "pip", "install", "--quiet", *map(str, wheels), cwd=tmp_path, env=env)
    assert installed.returncode == 0, installed.stderr
    assert run("new/bin/topics", "--version", cwd=tmp_path, env=env).stdout == f"topics {__version__}\n"
    assert run("new/bin/python", "-m", "pip", "check", cwd=tmp_path, env=env).returncode == 0
    missing = run("new/bin/topics", "pipeline", "run", cwd=tmp_path, env=env)
    assert missing.returncode == 1 and "needs Spark" in missing.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_wheel_runs_by_uvx_and_pipx(wheels: Wheels, tmp_path: Path, tool: str) -> None:
    """The tools and the dependencies come from the index; only both wheels are at hand."""
    assert run(sys.executable, "-m", "venv", "tools", cwd=tmp_path).returncode == 0
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    places = {name: str(tmp_path / name.lower()) for name in ("UV_CACHE_DIR", "PIPX_HOME", "PIPX_BIN_DIR")}
    env = {**kept, **places, "HOME": str(tmp_path), "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
    package = {"uvx": "uv", "pipx": "pipx"}[tool]
    installed = run("tools/bin/python", "-m", "pip", "install", "--quiet", package, cwd=tmp_path, env=env)
    assert installed.returncode == 0, installed.stderr
    found = str(wheels.client.parent)
    if tool == "uvx":
        command = ["tools/bin/uvx", "--find-links", found, "--from", str(wheels.engine), "topics", "--version"]
    else:
        command = ["tools/bin/pipx", "run", f"--pip-args=--find-links={found}", "--spec", str(wheels.engine), "topics"]
        command.append("--version")
    done = run(*command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, f"topics {__version__}\n"), done.stderr
