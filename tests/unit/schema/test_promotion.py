import json
import random
from typing import Any

import pytest

from tests.unit.schema.test_lenses import lens_of
from topics.schema.documents import MAX_PROMOTED_BYTES, MAX_PROMOTION_STEPS
from topics.schema.lenses import Lens, Op, compile_ops, growth, parse_lens, run
from topics.schema.registry import Chain, CompiledLens, Promoter, Registry, Version

RENAME = {"op": "rename", "from": "/a", "to": "/b"}
COPY = {"op": "copy", "from": "/a", "to": "/b"}


def ops(*documents: dict[str, Any]) -> tuple[Op, ...]:
    return parse_lens(lens_of(*documents)).ops


def test_an_entry_of_the_current_version_is_not_touched() -> None:
    promoter = Promoter([0, 5], [ops(RENAME)])
    raw = b'{ "a" : 1 }'
    assert promoter.promote(5, raw) is raw
    assert promoter.promote(4, raw) == b'{"b":1}'
    assert [promoter.version_of(entry) for entry in (0, 4, 5, 10**12)] == [1, 1, 2, 2]
    assert Promoter([], []).promote(0, raw) is raw


def test_two_versions_without_an_entry_between_them() -> None:
    promoter = Promoter([0, 3, 3], [ops(RENAME), ops(RENAME | {"from": "/b", "to": "/c"})])
    assert promoter.version_of(3) == 3
    assert promoter.promote(2, b'{"a":1}') == b'{"c":1}'


def test_a_version_without_a_lens_is_a_mistake() -> None:
    with pytest.raises(ValueError):
        Promoter([0, 1], [])


@pytest.mark.parametrize("raw", [b"{}", b"5", b"null", b'"a"', b"[]", b'{"a":', b"\xff", b"[" * 3000])
def test_an_entry_that_was_never_valid_stays_as_it_is(raw: bytes) -> None:
    assert Chain([CompiledLens(ops(RENAME))]).promote(raw) == raw


def test_many_at_once_are_what_one_after_the_other_is() -> None:
    chain = Chain([CompiledLens(ops(RENAME, {"op": "add", "path": "/x", "schema": True, "default": 7}))])
    raws = [b'{"a":1}', b'{ "a" : "\xc3\xa9" , "z":[1, 2] }', b'{"a":{"a":null}}']
    assert chain.promote_all(raws) == b",".join(map(bytes, map(chain.promote, raws)))
    assert chain.promote_all([memoryview(raw) for raw in raws]) == chain.promote_all(raws)


@pytest.mark.parametrize(
    "raw", [b"{}", b"5", b'{"a":', b'{"a":1},{"a":2}', b'{"a":"' + b"x" * MAX_PROMOTED_BYTES + b'"}']
)
def test_many_at_once_are_left_to_the_slow_way_where_one_is_odd(raw: bytes) -> None:
    assert Chain([CompiledLens(ops(RENAME))]).promote_all([b'{"a":1}', raw, b'{"a":2}']) is None


def test_the_order_of_members_and_large_numbers_are_kept() -> None:
    raw = b'{"z":123456789012345678901234567890,"a":1.5,"y":"\xc3\xa9"}'
    assert (
        Chain([CompiledLens(ops(RENAME))]).promote(raw)
        == b'{"z":123456789012345678901234567890,"y":"\xc3\xa9","b":1.5}'
    )


def test_a_bound_of_what_a_lens_makes() -> None:
    inside = {"op": "map", "path": "/l", "ops": [{"op": "add", "path": "/x", "schema": True, "default": 7}]}
    for documents, entry in (
        ([RENAME], {"a": 1}),
        ([COPY], {"a": "x" * 100}),
        ([COPY, {"op": "copy", "from": "/b", "to": "/c"}], {"a": ["x"] * 100}),
        ([inside], {"l": [{}] * 1000}),
        ([{"op": "in", "path": "/o", "ops": [COPY]}], {"o": {"a": "x" * 50}}),
    ):
        factor, extra = growth(ops(*documents))
        raw = json.dumps(entry, separators=(",", ":")).encode()
        promoted = Chain([CompiledLens(ops(*documents))]).promote(raw)
        assert len(raw) < len(promoted) + 1 <= len(raw) * factor + extra


def test_an_entry_that_would_grow_beyond_measure_stays_as_it_is() -> None:
    """Each op copies the result of the one before it: forty of them would fill any memory."""
    doubling = []
    for n in range(20):
        doubling += [{"op": "copy", "from": "/a", "to": f"/b/{n}"}, {"op": "copy", "from": "/b", "to": f"/a/{n}"}]
    chain = Chain([CompiledLens(ops(*doubling))])
    raw = json.dumps({"a": {"t": "x" * 100_000}, "b": {}}).encode()
    assert chain.promote(raw) == raw
    small = b'{"a":{},"b":{}}'
    assert len(Chain([CompiledLens(ops(*doubling[:8]))]).promote(small)) < MAX_PROMOTED_BYTES


def test_a_large_entry_that_grows_little_is_promoted() -> None:
    named = {"op": "map", "path": "/l", "ops": [{"op": "rename", "from": "/a", "to": "/" + "b" * 200}]}
    raw = json.dumps({"l": [{"a": "x" * 500_000}] * 4}).encode()
    promoted = Chain([CompiledLens(ops(named))]).promote(raw)
    assert json.loads(bytes(promoted))["l"][3] == {"b" * 200: "x" * 500_000}


def test_consecutive_renames_do_what_they_do_one_after_the_other(seed: int) -> None:
    dice, names = random.Random(seed), "abcdefg"
    for _ in range(500):
        pairs = [tuple(dice.sample(names, 2)) for _ in range(dice.randint(2, 8))]
        renames = ops(*[{"op": "rename", "from": f"/{source}", "to": f"/{to}"} for source, to in pairs])
        document = {name: name.upper() for name in dice.sample(names, dice.randint(1, len(names)))}
        expected: object = dict(document)
        try:
            for one in renames:
                expected = run(compile_ops((one,)), expected)
        except KeyError:
            expected = None
        try:
            together = run(compile_ops(renames), dict(document))
        except (KeyError, ValueError):
            together = None
        assert together == expected, (pairs, document)


def test_an_entry_that_would_need_too_many_steps_stays_as_it_is() -> None:
    each = {"op": "add", "path": "/b", "schema": {"type": "integer"}, "default": 1}
    chain = Chain([CompiledLens(ops({"op": "map", "path": "/a", "ops": [each] * 20}))])
    raw = b'{"a":[' + b",".join([b"{}"] * 100) + b"]}"
    assert chain.promote(raw) != raw
    long = b'{"a":[' + b",".join([b"{}"] * 60_000) + b"]}"
    assert chain.steps_for(len(long)) > MAX_PROMOTION_STEPS
    assert chain.promote(long) == long


def test_lenses_are_compiled_once_for_all_versions_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    promoter = Promoter(list(range(50)), [ops(RENAME), ops(RENAME | {"from": "/b", "to": "/a"})] * 24 + [ops(RENAME)])
    assert promoter.ops_to_compile(1) == 49
    promoter.chain(1)
    assert [promoter.ops_to_compile(version) for version in (1, 2, 49)] == [0, 0, 0]
    monkeypatch.setattr("topics.schema.registry.CompiledLens", None)
    assert promoter.promote(0, b'{"a":1}') == promoter.promote(24, b'{"a":1}') == b'{"b":1}'
    assert len(promoter._chains) <= 16


def test_lenses_are_not_parsed_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, lens = (
        b'{"type":"object"}',
        json.dumps(lens_of(RENAME, {"op": "rename", "from": "/b", "to": "/a"})).encode(),
    )
    registry = Registry((Version(schema, None, 0), *[Version(schema, lens, 1) for _ in range(30)]))
    parsed: list[Any] = []

    def parse(document: Any) -> Lens:
        parsed.append(document)
        return parse_lens(document)

    monkeypatch.setattr("topics.schema.registry.parse_lens", parse)
    promoter = registry.promoter
    assert promoter.ops_to_compile(1) >= 60
    assert not parsed
    promoter.chain(21)
    assert len(parsed) == 10
