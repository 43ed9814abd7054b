"""Every random test can be repeated: no test uses randomness without a seed."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import SEED, run_again

TESTS = Path(__file__).parents[1]

MAY: dict[tuple[str, str], str] = {
    ("http/streams/authority.py", "random_serial_number"): "A certificate's number must be new, and decides nothing.",
}
"""Tests that may use unseeded randomness: which source, and why."""

UNSEEDED = {"SystemRandom", "getrandbits", "random_serial_number", "urandom", "uuid1", "uuid4"}
KEEPS_SEEDS = {"database": None, "derandomize": True, "use_true_random": False}
"""Arguments of hypothesis with the one value that leaves its examples to the profile's seed."""
WORDS = re.compile("[Rr]andom|secrets|uuid|database")
"""One of these is in every file that has something to find; most have none and need not be parsed."""
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "getpid"}


def unseeded(source: str) -> Iterator[tuple[int, str]]:
    """Each use of randomness without a seed, with the name of the source."""
    tree = ast.parse(source)
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "random"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(alias.name == "secrets" for alias in names):
                yield node.lineno, "secrets"
            case ast.ImportFrom(module="secrets"):
                yield node.lineno, "secrets"
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if alias.name in UNSEEDED or (module == "random" and alias.name != "Random"):
                        yield node.lineno, alias.name
            case ast.Attribute(attr=attr, value=ast.Name(id=name)) if name in modules and attr != "Random":
                yield node.lineno, attr
            case ast.Attribute(attr=attr) if attr in UNSEEDED - {"getrandbits"}:
                yield node.lineno, attr
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=args):
                if not args or any(_changes(part) for arg in args for part in ast.walk(arg)):
                    yield node.lineno, "Random"
            case ast.keyword(arg=str(name), value=value) if name in KEEPS_SEEDS:
                if not (isinstance(value, ast.Constant) and value.value is KEEPS_SEEDS[name]):
                    yield value.lineno, name


def _changes(part: ast.AST) -> bool:
    """Whether a part of a seed is another one each time."""
    match part:
        case ast.Constant(value=None):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in CLOCKS
    return False


def test_no_test_uses_randomness_without_a_seed() -> None:
    found = {
        (str(path.relative_to(TESTS)), name): f"{path.relative_to(TESTS)}:{line} uses {name}"
        for path in TESTS.rglob("*.py")
        if path.parent != TESTS  # The conftest there is where the profiles are made.
        for source in [path.read_text()]
        if WORDS.search(source)
        for line, name in unseeded(source)
    }
    assert not [text for place, text in sorted(found.items()) if place not in MAY]
    assert not MAY.keys() - found.keys(), "these no longer need to be allowed"


@pytest.mark.parametrize(
    "source",
    [
        "import random; random.random()",
        "import random as rng; rng.randrange(3)",
        "import random; x = random.choice",
        "import random; random.Random()",
        "import random; random.Random(None)",
        "import random; random.SystemRandom()",
        "from random import randrange",
        "from random import Random; Random()",
        "from random import Random; import time; Random(int(time.time()))",
        "from random import Random; import os; Random(os.getpid())",
        "import secrets",
        "from secrets import token_hex",
        "import os; os.urandom(4)",
        "from os import urandom",
        "import uuid; uuid.uuid4()",
        "from uuid import uuid4",
        "st.randoms(use_true_random=True)",
        "settings(derandomize=False)",
        "settings(database=InMemoryExampleDatabase())",
    ],
)
def test_randomness_without_a_seed_is_found(source: str) -> None:
    assert list(unseeded(source))


@pytest.mark.parametrize(
    "source",
    [
        "import random; random.Random(seed).random()",
        "from random import Random; Random(f'{seed}-1').choice('ab')",
        "import random\ndef roll(rng: random.Random) -> float: return rng.random()",
        "import os; os.getpid()",
        "st.randoms(use_true_random=False)",
    ],
)
def test_randomness_with_a_seed_is_allowed(source: str) -> None:
    assert not list(unseeded(source))


def drawn() -> list[list[int | str]]:
    """Returns the values that a random test of this profile receives."""
    found: list[list[int | str]] = []

    @given(st.lists(st.integers() | st.text()))
    def look(values: list[int | str]) -> None:
        found.append(values)

    look()
    return found


@pytest.mark.skipif(not settings().derandomize, reason="the examples of this run are meant to be new")
def test_the_examples_are_the_same_whatever_else_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    source = tmp_path / "loaded_meanwhile.py"
    source.write_text(f"NUMBERS = {list(range(1_000_003, 1_003_003, 7))}\n")
    module = ModuleType("loaded_meanwhile")
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == before
    assert len(before) >= 20


# `make slow` finds the random tests by their mark.


def test_a_test_that_takes_the_seed_is_marked(request: pytest.FixtureRequest, seed: int) -> None:
    assert request.node.get_closest_marker("random") is not None


@settings(max_examples=1)
@given(st.none())
def test_a_test_of_hypothesis_is_marked(request: pytest.FixtureRequest, nothing: None) -> None:
    assert request.node.get_closest_marker("random") is not None


@pytest.mark.parametrize("seed", [1])
def test_any_other_test_is_not_marked(request: pytest.FixtureRequest, seed: int) -> None:
    assert request.node.get_closest_marker("random") is None


def test_the_command_names_the_test_and_the_seed() -> None:
    words = shlex.split(run_again("tests/a.py::b[{'c': 'd'}]"))
    assert f"TOPICS_TEST_SEED={SEED}" in words
    assert words[-1] == "tests/a.py::b[{'c': 'd'}]"
