"""What the packaging promises, read from the files."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import topics

ROOT = Path(__file__).parents[2]
# What is installed beside each other. Others, such as docs.txt, have a folder of their own and may repeat a pin.
PINS = ("build.txt", "runtime.txt", "spark.txt", "java.txt", "otel.txt", "dev.txt", "pages.txt")

# name==version, and nothing that only some machines could resolve.
PIN = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)==(?P<version>[0-9][0-9A-Za-z.]*)")


def pins(name: str) -> dict[str, str]:
    found = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line and not line.startswith("#") and not line.startswith("-r "):
            match = PIN.fullmatch(line)
            assert match is not None, f"{name}: {line!r} is no exact pin"
            found[match["name"].lower().replace("_", "-")] = match["version"]
    return found


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


@pytest.mark.parametrize("name", [*PINS, "docs.txt", "readers.txt", "s3.txt"])
def test_requirements_are_exact_pins(name: str) -> None:
    assert pins(name)


def test_nothing_is_pinned_twice() -> None:
    names = [name for file in PINS for name in pins(file)]
    assert len(names) == len(set(names))


def test_every_dependency_of_the_package_is_pinned_within_its_range() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    pinned = {**pins("runtime.txt"), **pins("spark.txt"), **pins("otel.txt")}
    for dependency in [*dependencies, *extras["spark"], *extras["connect"], *extras["otel"]]:
        match = re.fullmatch(r"(?P<name>[a-z0-9-]+)>=(?P<low>[0-9.]+),<(?P<high>[0-9.]+)", dependency)
        assert match is not None, dependency
        version = number(pinned[match["name"]])
        assert number(match["low"]) <= version < number(match["high"]), dependency


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_every_package_says_what_it_is_for() -> None:
    source = ROOT / "src" / "topics"
    for folder in [source, *(path for path in source.rglob("*") if path.is_dir() and any(path.glob("*.py")))]:
        assert (folder / "__init__.py").read_text().startswith('"""'), folder


def test_the_package_is_typed_and_has_a_version() -> None:
    assert (ROOT / "src" / "topics" / "py.typed").exists()
    assert number(topics.__version__) >= (0, 1, 0)


def test_the_gate_is_executable() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_one_module_numbers_frames_and_submits_them() -> None:
    """The import contract cannot see a call on a shard that somebody was handed."""
    callers = set()
    packages = ("engine", "ops", "queues", "routers", "search", "streams", "transactions")
    for path in (path for name in packages for path in (ROOT / "src" / "topics" / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called, of = node.func.attr, ast.unparse(node.func.value)
                if called in ("frame", "submit") and "shard" in of:
                    callers.add(path.relative_to(ROOT).as_posix())
    assert callers == {"src/topics/engine/write_path.py"}
