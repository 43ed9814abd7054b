"""Fragments are found again in a text whose rows are lost, whatever their payload looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.records import Record
from topics.wire.record_encoding import FragmentParts, encode_fragments, read_fragment, scan_fragments, scan_to_end

HOSTILE = [
    {"a": 1},
    '{"$seq":2,"$ts":5,"data":1}',
    [{"$seq": 2, "$ts": 5, "data": 0}, {"$seq": 3, "$ts": 5, "data": 0}],
    {"$seq": 2, "$ts": 5, "data": {"$seq": 3, "$ts": 5, "data": 0}, "meta": {}},
    "}]},{",
    None,
    'ends in "}',
    "ünï\u0000\u2028",
]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([v for v in HOSTILE if isinstance(v, str)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$seq", "$ts", "data", "meta"]), inner)
    ),
    max_leaves=8,
)
records = st.builds(
    Record.of,
    values,
    tag=st.none() | st.text(max_size=5),
    node=st.none() | st.text(max_size=5),
    meta=st.none() | st.dictionaries(st.sampled_from(["data", "$tag", "meta"]), values, max_size=2),
)


def rows_of(parts: list[FragmentParts], base: int) -> list[int]:
    return [word for p in parts for word in (p.start + base, p.meta, p.head << 16 | p.tag)]


@given(st.lists(records, min_size=1, max_size=12), st.integers(1, 99_999), st.integers(0, 1000))
def test_the_rows_are_those_that_were_written(batch: list[Record], first: int, base: int) -> None:
    written = encode_fragments(batch, first, 1_700_000_000_000, "node", base)
    found = list(scan_fragments(written.text, 0, first, len(written.text)))
    assert [part.seq for part in found] == list(range(first, first + len(batch)))
    assert rows_of(found, base) == memoryview(written.rows).cast("I").tolist()


@given(st.lists(records, min_size=2, max_size=12), st.data())
def test_behind_damage_only_what_reaches_the_end_counts(batch: list[Record], data: st.DataObject) -> None:
    written = encode_fragments(batch, 1, 5, None, 0)
    whole = list(scan_fragments(written.text, 0, 1, len(written.text)))
    damage = data.draw(st.integers(0, len(written.text) - 1))
    found = scan_to_end(written.text, damage, 1, len(batch))
    assert found == [part for part in whole if part.start >= damage]


def test_hostile_payloads() -> None:
    batch = [Record.of(value) for value in HOSTILE]
    text = encode_fragments(batch, 1, 5, None, 0).text
    assert [part.seq for part in scan_fragments(text, 0, 1, len(text))] == list(range(1, len(batch) + 1))


def test_whitespace_around_payloads_counts_as_theirs() -> None:
    batch = [Record(b" [1 ] ", tag="t", meta=b' {"a": 1} '), Record(b"2")]
    written = encode_fragments(batch, 7, 5, None, 0)
    found = list(scan_fragments(written.text, 0, 7, len(written.text)))
    assert rows_of(found, 0) == memoryview(written.rows).cast("I").tolist()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"$seq":1,"$ts":5}',
        b'{"$seq":1,"$ts":5,"data":1',
        b'{"$ts":5,"$seq":1,"data":1}',
        b'{"$seq":1, "$ts":5,"data":1}',
        b'{"$seq":1,"$ts":5,"data":1}x',
        b'{"$seq":1,"$ts":5,"data":1,"$tag":"a","meta":{}}',
    ],
)
def test_invalid_fragment_is_none(text: bytes) -> None:
    assert read_fragment(text, 0, len(text)) is None


def test_a_fragment_cut_off_by_the_limit_is_not_given_out() -> None:
    text = encode_fragments([Record.of(n) for n in range(3)], 1, 5, None, 0).text
    second = text.index(b',{"$seq":2')
    assert [part.seq for part in scan_fragments(text, 0, 1, second)] == []
    assert [part.seq for part in scan_fragments(text, 0, 1, second + len(b',{"$seq":2,"$ts":'))] == [1]
