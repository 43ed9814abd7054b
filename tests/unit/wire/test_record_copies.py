import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.records import Record
from topics.model.router_rules import Stamp
from topics.wire.record_copies import CopyChange, RecordSlice, copies_of, cut_copies, filtered, render, stamp_in
from topics.wire.record_copies import records_of as copies_as_records
from topics.wire.record_encoding import Fragments, encode_fragments
from topics.wire.record_slicing import View

TS = 1_700_000_000_000
STAMP = Stamp("r", "ä\n", 3, 4)

records_of = st.lists(
    st.builds(
        lambda value, tag, node, meta: Record.of(value, tag=tag, node=node, meta=meta),
        st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)),
        st.none() | st.text(max_size=8),
        st.none() | st.text(max_size=8),
        st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def view_of(fragments: Fragments, base: int) -> View:
    rows = memoryview(fragments.rows).cast("I")
    return View(fragments.text, rows, base, len(rows) // 3)


def slice_of(records: list[Record], first_seq: int = 1, base: int = 0) -> RecordSlice:
    fragments = encode_fragments(records, first_seq, TS, None, base)
    return RecordSlice(view_of(fragments, base), 0, len(records), first_seq)


@given(
    records_of, st.integers(1, 2000), st.integers(0, 10**6), st.integers(1, 10**12), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_a_copy_is_what_an_append_of_the_same_record_would_be(
    records: list[Record], seq: int, base: int, new_seq: int, keep_node: bool, keep_tag: bool, mapped: bool
) -> None:
    slice_ = slice_of(records, seq, base)
    if mapped:
        view = slice_.view
        slice_ = slice_._replace(view=View(memoryview(view.text), view.rows, view.bias, view.count))
    found = render(cut_copies([slice_], CopyChange(keep_node, keep_tag)), new_seq, TS + 5, base + 7)
    requested = [Record(r.data, r.tag if keep_tag else None, r.node if keep_node else None, r.meta) for r in records]
    assert found == encode_fragments(requested, new_seq, TS + 5, None, base + 7)


@given(records_of, st.data())
def test_parts_of_a_slice(records: list[Record], data: st.DataObject) -> None:
    slice_ = slice_of(records, 10)
    lo = data.draw(st.integers(0, len(records) - 1))
    hi = data.draw(st.integers(lo + 1, len(records)))
    found = render(cut_copies([slice_._replace(lo=lo, hi=hi)]), 1, TS, 0)
    assert found == encode_fragments(records[lo:hi], 1, TS, None, 0)


@given(records_of)
def test_copies_as_records_and_records_as_copies(records: list[Record]) -> None:
    copies = cut_copies([slice_of(records)])
    read = copies_as_records(copies)
    assert [(bytes(r.data), r.tag, r.node, r.meta and bytes(r.meta)) for r in read] == [
        (bytes(r.data), r.tag, r.node, r.meta and bytes(r.meta)) for r in records
    ]
    assert copies_of(read) == copies


@given(records_of, st.data())
def test_the_first_few(records: list[Record], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(records)))
    copies = cut_copies([slice_of(records)])
    found = render(copies.first(count), 1, TS, 0)
    requested = encode_fragments(records[:count], 1, TS, None, 0)
    assert (found.text, found.rows, found.payload_bytes) == (requested.text, requested.rows, requested.payload_bytes)


def test_only_what_passes() -> None:
    one, two = slice_of([Record.of(i) for i in range(4)], 1), slice_of([Record.of(i) for i in range(4, 8)], 11)
    kept = filtered([one, two], [1, 2, 4, 11, 14])
    assert [(s.first_seq, s.last_seq) for s in kept] == [(1, 2), (4, 4), (11, 11), (14, 14)]
    assert [r["data"] for r in decoded(render(cut_copies(kept), 1, TS, 0))] == [0, 1, 3, 4, 7]


def decoded(fragments: Fragments) -> list[dict[str, object]]:
    found: list[dict[str, object]] = msgspec.json.decode(b"[" + fragments.text + b"]")
    return found


def stamped(meta: str | None) -> dict[str, object]:
    record = Record.of(1, tag="t")
    record.meta = None if meta is None else meta.encode()
    fragments = render(cut_copies([slice_of([record], 7)], CopyChange(stamp=STAMP)), 1, TS, 0)
    (found,) = decoded(fragments)
    view = view_of(fragments, 0)
    assert stamp_in(view, 0, STAMP) == 7
    assert stamp_in(view, 0, Stamp("q", "ä\n", 3, 4)) is None
    result = found["meta"]
    assert isinstance(result, dict)
    assert result.pop("_topics_router") == {
        "idempotency_key": "r:3:4:7", "router": "r", "source_topic": "ä\n", "source_topic_id": 3, "source_epoch": 4,
        "source_seq": 7,
    }  # fmt: skip
    return result


FULL = {str(i): i for i in range(64)}


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        (None, {}),
        ("{}", {}),
        ("{ }", {}),
        ('{"a": 1 }', {"a": 1}),
        ('{"a":{"b":":::"}}', {"a": {"b": ":::"}}),
        ('{"_topics_router":{"x":1},"b":2}', {"b": 2}),
        ('{"b":"_topics_router"}', {"b": "_topics_router"}),
        (msgspec.json.encode({**FULL}).decode(), {"_topics_original_meta": FULL}),
        (msgspec.json.encode({"a": ":" * 70}).decode(), {"a": ":" * 70}),
        ("[1]", {"_topics_original_meta": [1]}),
    ],
)
def test_a_stamp_joins_whatever_meta_there_is(meta: str | None, kept: dict[str, object]) -> None:
    assert stamped(meta) == kept


def test_no_stamp() -> None:
    fragments = render(cut_copies([slice_of([Record.of(1), Record.of(2, meta={"a": 1})])]), 1, TS, 0)
    view = view_of(fragments, 0)
    assert stamp_in(view, 0, STAMP) is None
    assert stamp_in(view, 1, STAMP) is None
