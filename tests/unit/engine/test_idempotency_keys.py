"""The keys of a topic: their records, their lifetime, and their form in a snapshot."""

from typing import Any

import pytest

from topics.engine.idempotency import KeyedBlock, KeyMemory, KnownAppend
from topics.engine.topic import Block
from topics.log.frame import Keys
from topics.log.snapshot_files import KeyedState, KeyState
from topics.model.records import Record, find_plain
from topics.wire.record_encoding import encode_fragments


def block(first: int, keys: Keys, *values: object, ts: int = 100, base: int = 50) -> Block:
    records = [Record.of(value, tag=str(value)) for value in values]
    text, rows, size, traits = encode_fragments(records, first, ts, "n", base)
    return Block(first, ts, size, base, traits, keys, rows, text)


def text_of(first: int, *values: object, ts: int = 100) -> bytes:
    return block(first, "", *values, ts=ts).text


def memory_of(*blocks: Block) -> KeyMemory:
    memory = KeyMemory()
    for each in blocks:
        memory.remember(each)
    return memory


def test_the_key_of_a_batch_stands_for_all_of_it() -> None:
    known = memory_of(block(7, "k", 1, 2))["k"]
    assert known[:3] == (7, 2, 100)
    assert known.holds(text_of(7, 1, 2))
    assert not known.holds(text_of(7, 2, 1))


def test_keys_of_single_records_stand_for_their_own() -> None:
    memory = memory_of(block(7, {"a": 0, "c": 2, "d": 3}, 1, 2, 3, 4))
    assert {key: known[:3] for key, known in memory.items()} == {"a": (7, 1, 100), "c": (9, 1, 100), "d": (10, 1, 100)}
    assert memory["c"].holds(text_of(9, 3))
    assert memory["d"].holds(text_of(10, 4))
    assert not memory["d"].holds(text_of(10, 3))
    assert "b" not in memory


def test_the_keys_of_a_block_are_forgotten_together() -> None:
    memory = memory_of(block(1, {"a": 0, "b": 1}, 1, 2, ts=5), block(3, "c", 3, ts=6), block(4, {"d": 0}, 4, ts=9))
    memory.forget(5)
    assert len(memory) == 4
    memory.forget(6)
    assert list(memory) == ["c", "d"]
    memory.forget(100)
    assert not memory


def test_a_key_that_is_used_again_goes_with_its_last_use() -> None:
    memory = memory_of(block(1, {"a": 0, "b": 1}, 1, 2, ts=5), block(3, {"b": 0}, 3, ts=9))
    assert list(memory) == ["a", "b"]
    memory.forget(6)
    assert {key: known[:2] for key, known in memory.items()} == {"b": (3, 1)}


@pytest.mark.parametrize(("seq", "kept"), [(1, []), (2, ["a"]), (3, ["a", "b"]), (4, ["a", "b"]), (5, ["a", "b", "c"])])
def test_only_the_keys_below_a_seq(seq: int, kept: list[str]) -> None:
    memory = memory_of(block(1, {"a": 0, "b": 1}, 1, 2), block(3, "c", 3, 4))
    left = memory.below(seq)
    assert list(left or ()) == kept
    assert left is None or all(left[key] == memory[key] for key in kept)


def test_a_snapshot_has_them_all() -> None:
    memory = memory_of(block(1, {"a": 0, "b": 1}, 1, 2), block(3, "c", 3, 4), block(5, {"a": 0}, 9))
    again = KeyMemory.load(memory.save(), ())
    assert again == memory
    assert again is not None
    assert again["a"].first_seq == 5
    assert KeyMemory.load((), ()) is None


def test_keys_of_an_older_snapshot_have_no_hash_and_hold_anything() -> None:
    memory = KeyMemory.load([KeyedState(9, 1, 8, "new")], [KeyState("old", 3, 2, 7)])
    assert memory is not None
    assert memory["old"] == KnownAppend(3, 2, 7, b"", 7)
    assert memory["old"].holds(b"whatever")
    assert list(memory) == ["old", "new"]


def test_what_is_on_its_way_is_found_like_what_is_known() -> None:
    flying = block(7, {"a": 0, "c": 2}, 1, 2, 3)
    assert KeyedBlock({"a": 0, "c": 2}).stands_for(flying).find("c") == memory_of(flying)["c"]


@pytest.mark.parametrize("keys", [{"a": 0, "b": 1, "c": 2}, {"b": 1}])
@pytest.mark.parametrize("extra", [{}, {"tag": "t"}, {"node": "n"}, {"meta": {"m": 1}}])
def test_a_hash_made_of_records_is_that_made_of_their_block(keys: dict[str, int], extra: dict[str, Any]) -> None:
    records = [Record.of("x" * number, **(extra if number == 1 else {})) for number in range(3)]
    text, rows, size, traits = encode_fragments(records, 998, 100, None, 70)
    written = Block(998, 100, size, 70, traits, keys, rows, text)
    live, replayed = KeyedBlock(keys).stands_for(written, find_plain(records)), KeyedBlock(keys).stands_for(written)
    assert [live.find(key) for key in keys] == [replayed.find(key) for key in keys]
    assert live.of_data is not bool(extra)
    assert not extra or live.find("b").holds(encode_fragments(records[1:2], 999, 100, None, 0).text)
    assert extra or live.find("b").holds(records[1].data)


def test_a_key_is_taken_until_what_brings_it_has_failed() -> None:
    memory = memory_of(block(1, "known", 1))
    taken = memory.begin("k")
    assert taken is not None
    assert memory.begin("k") is None
    assert memory.begin("known") is None
    assert list(memory) == ["known"]
    assert "k" not in memory
    memory.release(taken.keys)
    assert memory.begin("k") is not None


def test_a_key_on_its_way_is_known_once_its_block_is_there() -> None:
    memory, arrived = KeyMemory(), block(7, "k", 1, 2)
    taken = memory.begin("k")
    assert taken is not None
    arrived.key = taken.keys
    taken.stands_for(arrived).append = object()
    memory.remember(arrived)
    assert (taken.known, taken.append) == (True, None)
    assert dict(memory) == dict(memory_of(arrived))
