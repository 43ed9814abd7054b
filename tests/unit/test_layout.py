"""The layout of the repository: pinned requirements, packages, and the shape of the source."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import topics

ROOT = Path(__file__).parents[2]
# The sets of packages that are installed together. Others, such as docs.txt, have their own folder and may repeat a
# pin.
PINS = ("build.txt", "runtime.txt", "shared.txt", "spark.txt", "java.txt", "otel.txt", "dev.txt", "pages.txt")

# name==version and the hashes of its files, and nothing that only some machines could resolve.
PIN = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)==(?P<version>[0-9][0-9A-Za-z.]*)(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)"
)


def pins(name: str) -> dict[str, str]:
    found = {}
    for line in (ROOT / "requirements" / name).read_text().replace(" \\\n   ", "").splitlines():
        if line and not line.startswith("#") and not line.startswith("-r "):
            match = PIN.fullmatch(line)
            assert match is not None, f"{name}: {line!r} is no exact pin with hashes: run python -m tools.pin_hashes"
            hashes = match["hashes"].split()
            assert hashes == sorted(set(hashes)), f"{name}: {match['name']}"
            found[match["name"].lower().replace("_", "-")] = match["version"]
    return found


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.stem)
def test_requirements_are_exact_pins_with_hashes(path: Path) -> None:
    assert pins(path.name)


def test_nothing_is_pinned_twice() -> None:
    names = [name for file in PINS for name in pins(file)]
    assert len(names) == len(set(names))


def test_every_dependency_of_the_package_is_pinned_within_its_range() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    pinned = {**pins("runtime.txt"), **pins("shared.txt"), **pins("spark.txt"), **pins("otel.txt")}
    for dependency in [*dependencies, *extras["spark"], *extras["connect"], *extras["otel"]]:
        match = re.fullmatch(r"(?P<name>[a-z0-9-]+)>=(?P<low>[0-9.]+),<(?P<high>[0-9.]+)", dependency)
        assert match is not None, dependency
        if match["name"] == "topics-client":
            continue  # Of this repository.
        version = number(pinned[match["name"]])
        assert number(match["low"]) <= version < number(match["high"]), dependency


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_every_package_states_what_it_is_for() -> None:
    source = ROOT / "src" / "topics"
    for folder in [source, *(path for path in source.rglob("*") if path.is_dir() and any(path.glob("*.py")))]:
        assert (folder / "__init__.py").read_text().startswith('"""'), folder


def test_the_package_is_typed_and_has_a_version() -> None:
    assert (ROOT / "src" / "topics" / "py.typed").exists()
    assert number(topics.__version__) >= (0, 1, 0)


def test_the_gate_is_executable() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_one_module_numbers_frames_and_submits_them() -> None:
    """The import contract cannot see a call on a shard that was passed as an argument."""
    callers = set()
    packages = ("engine", "ops", "queues", "routers", "search", "streams", "transactions")
    for path in (path for name in packages for path in (ROOT / "src" / "topics" / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called, of = node.func.attr, ast.unparse(node.func.value)
                if called in ("frame", "submit") and "shard" in of:
                    callers.add(path.relative_to(ROOT).as_posix())
    assert callers == {"src/topics/engine/write_path.py"}


# Shape of the source: one idea, one module. CONTRIBUTING.md has the rules for people.

MODULE_LINES_MAX = 800
FUNCTION_BODY_LINES_MAX = 60
SMALL_MODULE_LINES = 25
SMALL_MODULES_MAX = 8
MODULES_MAX = 380
SAME_NAME_MAX = 2
# A sentence of this kind does not name its subject, so that a search for the subject does not find the module.
VAGUE_OPENING = re.compile(r"(What|Who|Whoever|Those|One that)\b")


class Module(NamedTuple):
    """A parsed source file and its dotted name."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@cache
def modules() -> dict[str, Module]:
    """Every module below src, by its dotted name."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def imports_at_import_time(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when the module is imported, without TYPE_CHECKING blocks and function bodies."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            waiting += node.orelse if "TYPE_CHECKING" in ast.dump(node.test) else [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            waiting += [
                *node.body,
                *node.orelse,
                *node.finalbody,
                *(line for one in node.handlers for line in one.body),
            ]


def imported(module: Module) -> set[str]:
    """The modules of src that a module imports when it is imported."""
    found = set()
    for node in imports_at_import_time(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
        start = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{source}.{alias.name}"
            found.add(full if full in modules() else source)
    return (found & modules().keys()) - {module.name}


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
    graph = {name: imported(module) for name, module in modules().items()}
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()


def test_there_are_at_most_380_modules_in_topics() -> None:
    assert len([name for name in modules() if name.split(".")[0] == "topics"]) <= MODULES_MAX


def test_no_module_has_more_than_800_lines() -> None:
    lines = {name: module.text.count("\n") for name, module in modules().items()}
    assert {name: count for name, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_at_most_8_modules_have_fewer_than_25_lines() -> None:
    small = [
        name
        for name, module in modules().items()
        if not module.is_package and module.text.count("\n") < SMALL_MODULE_LINES
    ]
    assert len(small) <= SMALL_MODULES_MAX, small


def test_a_module_name_is_used_at_most_twice() -> None:
    names = Counter(
        module.path.stem
        for module in modules().values()
        if module.path.stem not in ("__init__", "__main__") and not {"v0", "v1"}.intersection(module.path.parts)
    )
    assert {name: count for name, count in names.items() if count > SAME_NAME_MAX} == {}


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below a node, with its dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, name)
        else:
            yield from functions(child, prefix)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_body_has_more_than_60_lines() -> None:
    found = [pair for name, module in modules().items() for pair in functions(module.tree, name)]
    assert len(found) > 5000
    assert {name for name, function in found if body_lines(function) > FUNCTION_BODY_LINES_MAX} == set()


def test_module_docstrings_begin_with_the_subject() -> None:
    vague = {name for name, one in modules().items() if VAGUE_OPENING.match(ast.get_docstring(one.tree) or "")}
    assert vague == set()


def test_reference_counts_decide_nothing() -> None:
    assert {name for name, module in modules().items() if "getrefcount" in module.text} == set()


def test_api_and_streams_use_the_public_methods_of_the_engine() -> None:
    """Only a feature that is constructed with the core may use it: no other module reaches through the engine for
    it."""
    found = [
        f"{name}:{node.lineno}"
        for name, module in modules().items()
        if name.split(".")[:2] in (["topics", "api"], ["topics", "streams"], ["topics", "embedded"])
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == "core"
    ]
    assert found == []


def test_one_module_writes_openapi_operations() -> None:
    assert {name for name, one in modules().items() if '"operationId"' in one.text} == {"topics.api.openapi"}


# The module that implements a concept, found by the field's word at the beginning of its docstring.
CONCEPTS = {
    "Group commit": "topics.log.group_commit",
    "Write coalescing": "topics.engine.coalesce",
    "Backpressure": "topics.engine.backpressure",
    "Leases": "topics.queues.leases",
    "Zone maps": "topics.search.file_index.zone_maps",
    "Top-k": "topics.search.file_index.top_k",
    "Topic paging": "topics.engine.topic_paging",
    "Log shipping": "topics.ops.backup.log_shipping",
    "Request batching": "topics.api.request_batching",
    "Exactly-once forwarding": "topics.routers.forwarding",
}


def test_a_concept_is_found_by_its_name_in_one_module_docstring() -> None:
    openings = {name: ast.get_docstring(one.tree) or "" for name, one in modules().items() if not one.is_package}
    found = {
        concept: {name for name, opening in openings.items() if re.match(rf"{concept}\b", opening)}
        for concept in CONCEPTS
    }
    assert found == {concept: {module} for concept, module in CONCEPTS.items()}
    assert "lease expiry" in openings["topics.queues.leases"]


# Private names of the past, by the word that replaced them.
OLD_NAMES = re.compile(
    r"(?i)(^|_)(settl\w*|glances?|stretch(es)?|tall(y|ies)|casualt\w*|parcels?|carriers?|remains|own_topics?|sleepers?)(_|$)"
)


def test_no_definition_has_a_name_of_the_past() -> None:
    found = [
        f"{name}.{node.name}"
        for name, module in modules().items()
        if name.startswith("topics.")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and OLD_NAMES.search(node.name)
    ]
    assert found == []


def test_command_modules_share_their_options() -> None:
    """An option type (`Output`, `Json`, ...) with the same name and value type is defined once."""
    defined = Counter(
        (node.targets[0].id, ast.unparse(node.value.slice.elts[0]))
        for name, module in modules().items()
        if name.startswith("topics.cli.")
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
        and ast.unparse(node.value.value) == "Annotated"
        and isinstance(node.value.slice, ast.Tuple)
    )
    assert len(defined) > 10
    assert [option for option, count in defined.items() if count > 1] == []
