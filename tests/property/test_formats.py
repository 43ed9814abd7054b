"""Written bytes can be read back, and bytes that were never written are refused in the documented way.

Hostile input comes in three kinds: bytes that were never anything, bytes that were valid until one of them changed, and
bytes whose checksum is right although their content is not valid. None may raise anything but what the reader of a file
expects, and none may take for ever.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.property import batches
from tests.property.effort import effort
from topics.engine.read import as_ranges, match_text
from topics.engine.topic import live_ranges
from topics.log import frame, segment, snapshot_files
from topics.log.frame import (
    BadFrame,
    Frame,
    FrameKind,
    decode_block,
    encode_block_head,
    find_frames,
    read_frame,
    seal_frame,
)
from topics.log.layout import Layout
from topics.log.segment import DELETED, SegmentHead, SegmentIndex
from topics.log.snapshot_files import (
    KeyedState,
    KeyState,
    LostState,
    SegmentState,
    SnapshotHead,
    SnapshotWriter,
    TopicState,
    WalPosition,
    read_snapshot,
)
from topics.model.errors import DamageError, NewerFormatError
from topics.model.records import Record, words
from topics.model.router_rules import TagMatch
from topics.testing import FakeDisk, ModelRecord
from topics.testing.reference_model import Home
from topics.wire.record_encoding import Fragments, encode_fragments, node_suffix
from topics.wire.record_slicing import (
    View,
    data_of,
    end_that_fits,
    payload_sizes,
    project,
    tag_texts,
    tag_value,
    without_nodes,
)

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
garbage = st.binary(max_size=200)
pairs = st.tuples(u64, u64)
MALFORMED = (ValueError, struct.error, NewerFormatError)
"""The errors that the readers of bodies raise. A frame's checksum was right by then, so a caller that reads the log
calls it damage."""


@st.composite
def mutations(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes that are not `valid` but were: changed in one place, cut short, made longer, or with a piece moved."""
    at = draw(st.integers(0, max(len(valid) - 1, 0)))
    piece = draw(st.binary(min_size=1, max_size=8))
    kind = draw(st.sampled_from(["change", "cut", "insert", "remove", "append"]))
    if kind == "cut":
        mutated = valid[:at]
    elif kind == "insert":
        mutated = valid[:at] + piece + valid[at:]
    elif kind == "remove":
        mutated = valid[:at] + valid[at + len(piece) :]
    elif kind == "append":
        mutated = valid + piece
    else:
        mutated = valid[:at] + piece + valid[at + len(piece) :]
    assume(mutated != valid)
    return mutated


def refused(read: Callable[[], object], *errors: type[BaseException]) -> bool:
    """Whether reading was refused; anything but the documented errors fails the test."""
    try:
        read()
    except errors:
        return True
    return False


# Frames

frames = st.tuples(st.sampled_from(FrameKind), u64, u64, u64, garbage, garbage)


def sealed(parts: tuple[FrameKind, int, int, int, bytes, bytes]) -> bytes:
    return b"".join(seal_frame(*parts))


@effort(60)
@given(st.lists(frames, max_size=5), st.integers(0, 100))
def test_frames_are_read_back_one_after_the_other(
    written: list[tuple[FrameKind, int, int, int, bytes, bytes]], zeros: int
) -> None:
    buffer = memoryview(b"".join(map(sealed, written)) + bytes(zeros))
    at = 0
    for kind, topic_id, lsn, synced, head, tail in written:
        found = read_frame(buffer, at)
        assert isinstance(found, Frame)
        assert found[:4] == (kind, topic_id, lsn, synced)
        assert bytes(found.body) == head + tail
        assert found.start == at
        at = found.end
    assert read_frame(buffer, at) is None
    assert [frame.start for frame in find_frames(buffer, 0)][: len(written)] == [0, *_ends(written)][:-1]


def _ends(written: Sequence[tuple[FrameKind, int, int, int, bytes, bytes]]) -> list[int]:
    ends: list[int] = []
    for parts in written:
        ends.append((ends[-1] if ends else 0) + len(sealed(parts)))
    return ends


@effort(150)
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda rest: b"TPF1" + rest), st.data())
def test_bytes_that_were_never_frames_are_no_frames(hostile: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(hostile)))
    assert read_frame(memoryview(hostile), start) is None or isinstance(
        read_frame(memoryview(hostile), start), BadFrame
    )
    assert list(find_frames(memoryview(hostile), start)) == []


@effort(150)
@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_changed_frame_is_never_taken_for_a_frame_and_hides_no_other(
    written: list[tuple[FrameKind, int, int, int, bytes, bytes]], data: st.DataObject
) -> None:
    pieces = [sealed(parts) for parts in written]
    victim = data.draw(st.integers(0, len(pieces) - 1))
    mutated = data.draw(mutations(pieces[victim]))
    # A frame that was only extended still begins with the valid frame.
    assume(not mutated.startswith(pieces[victim]))
    buffer = memoryview(b"".join([*pieces[:victim], mutated, *pieces[victim + 1 :]]))
    at = sum(map(len, pieces[:victim]))
    found = read_frame(buffer, at)
    assert (
        not isinstance(found, Frame)
        or bytes(buffer[at : found.end]) == b"".join(pieces[victim + 1 :])[: found.end - at]
    )
    seen = [bytes(buffer[frame.start : frame.end]) for frame in find_frames(buffer, 0)]
    assert [piece for piece in pieces[:victim] + pieces[victim + 1 :] if piece not in seen] == []


# Blocks and control bodies

names = st.text(st.characters(codec="utf-8"), max_size=40)
control_bodies = st.one_of(
    st.builds(frame.encode_create, u64, u64, names, garbage),
    st.builds(frame.encode_config_change, u64, garbage),
    st.builds(frame.encode_delete, u64, st.lists(pairs, max_size=5)),
    st.builds(frame.encode_evict, u64, st.booleans()),
    st.builds(frame.encode_ceiling, u64),
)
BODY_READERS: list[Callable[[memoryview], object]] = [
    frame.decode_create,
    frame.decode_config_change,
    frame.decode_delete,
    frame.decode_evict,
    frame.decode_ceiling,
    decode_block,
    snapshot_files.decode_head,
    snapshot_files.decode_topic,
    snapshot_files.decode_end,
]


@effort(60)
@given(u64, u64, names, garbage, st.lists(pairs, max_size=5), st.booleans())
def test_control_bodies_are_read_back(
    number: int, ts: int, name: str, config: bytes, ranges: list[tuple[int, int]], flag: bool
) -> None:
    created = frame.decode_create(memoryview(frame.encode_create(number, ts, name, config)))
    assert created == (number, ts, name, config)
    changed = frame.encode_config_change(number, config)
    assert frame.decode_config_change(memoryview(changed)) == (number, config)
    assert frame.decode_delete(memoryview(frame.encode_delete(number, ranges))) == (number, ranges)
    assert frame.decode_evict(memoryview(frame.encode_evict(number, flag))) == (number, flag, False)
    assert frame.decode_ceiling(memoryview(frame.encode_ceiling(number))) == number


@effort(60)
@given(batches.batches, st.integers(1, 2**63), st.integers(0, 2**50), st.integers(0, 2**30), batches.keys)
def test_a_block_is_read_back(records: list[Record], first: int, ts: int, base: int, key: str) -> None:
    text, rows, payload, traits = encode_fragments(records, first, ts, None, base)
    head = encode_block_head(first, ts, payload, base, traits, key.encode(), rows, len(text))
    parts = decode_block(memoryview(head + text))
    assert (parts.first_seq, parts.ts, parts.payload_bytes, parts.count) == (first, ts, payload, len(records))
    assert (parts.base, parts.traits, parts.key, parts.rows, parts.text) == (base, traits, key, rows, text)


@effort(60)
@given(batches.batches, st.integers(0, 2**30), st.sets(batches.keys, min_size=1, max_size=9), st.data())
def test_a_block_with_keys_of_its_records_is_read_back(
    records: list[Record], base: int, names: set[str], data: st.DataObject
) -> None:
    text, rows, payload, traits = encode_fragments(records, 7, 8, None, base)
    places = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1, max_size=len(names))))
    keys = dict(zip(sorted(names), places, strict=False))
    parts = decode_block(memoryview(encode_block_head(7, 8, payload, base, traits, keys, rows, len(text)) + text))
    assert (parts.base, parts.traits, parts.key, parts.rows, parts.text) == (base, traits, keys, rows, text)


block_keys = st.binary(max_size=5) | st.sampled_from([{"k": 0}, {"": 0}, {"k" * 300: 0}])


@effort(150)
@given(batches.handfuls, block_keys, st.data())
def test_what_is_taken_for_a_block_is_one(
    records: list[Record], key: bytes | dict[str, int], data: st.DataObject
) -> None:
    text, rows, payload, traits = encode_fragments(records, 1, 2, None, 0)
    body = data.draw(mutations(encode_block_head(1, 2, payload, 0, traits, key, rows, len(text)) + text))
    try:
        parts = decode_block(memoryview(body))
    except MALFORMED:
        return
    key_again = parts.key if isinstance(parts.key, dict) else (parts.key or "").encode()
    again = encode_block_head(
        parts.first_seq, parts.ts, parts.payload_bytes, parts.base, parts.traits, key_again, parts.rows,
        len(parts.text),
    )  # fmt: skip
    # A map has more than one spelling, and all of them mean the same.
    assert again + parts.text == body or decode_block(memoryview(again + parts.text)) == parts


@pytest.mark.random
@pytest.mark.parametrize("read", BODY_READERS, ids=lambda read: read.__name__)
def test_a_body_that_is_malformed_is_refused(read: Callable[[memoryview], object]) -> None:
    block = encode_fragments([Record(b"1"), Record(b"2", tag="t")], 1, 2, "n", 0)
    valid = (
        encode_block_head(1, 2, block.payload_bytes, 0, block.traits, b"k", block.rows, len(block.text)) + block.text
    )
    state = snapshot_files.encode_topic(_state())
    head = snapshot_files.encode_head(SnapshotHead(2, [1], 1, [WalPosition(0, 1, 1)], 3, 4, [5]))

    @effort(60)
    @given(garbage | control_bodies | mutations(valid) | mutations(state) | mutations(head))
    def check(body: bytes) -> None:
        refused(lambda: read(memoryview(body)), *MALFORMED)

    check()


# Snapshots

counts = st.integers(0, 2**63)
segment_states = st.builds(
    SegmentState, counts, counts, counts, counts, st.integers(0, 7), counts, counts, counts, counts, counts,
    st.booleans(), st.binary(max_size=9),
)  # fmt: skip
keyed_states = st.builds(
    KeyedState, counts, counts, counts, names | st.dictionaries(names, counts, max_size=3), st.binary(max_size=24)
)
topic_states = st.builds(
    TopicState, counts, names, counts, garbage, counts, counts, counts, counts, counts, counts, counts, counts, counts,
    counts, st.lists(segment_states, max_size=3), st.lists(st.builds(LostState, counts, counts, names), max_size=3),
    st.lists(st.builds(KeyState, names, counts, counts, counts), max_size=3), st.lists(garbage, max_size=3),
    st.just({}), st.booleans(), st.lists(keyed_states, max_size=3),
)  # fmt: skip
snapshot_heads = st.builds(
    SnapshotHead, counts, st.lists(counts, max_size=3), counts,
    st.lists(st.builds(WalPosition, counts, counts, counts), max_size=3), counts, counts, st.lists(counts, max_size=3),
)  # fmt: skip


def _state() -> TopicState:
    part = SegmentState(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, False, b"\xd5")
    return TopicState(
        1, "t", 2, b"{}", 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, [part], [LostState(1, 2, "crash")], [KeyState("k", 1, 2, 3)],
        [b"", b"\xd5"], {}, False, [KeyedState(1, 1, 3, {"k": 0, "l": 2}, b"1" * 16), KeyedState(4, 2, 3, "m")],
    )  # fmt: skip


@effort(60)
@given(topic_states, snapshot_heads, counts)
def test_snapshot_states_are_read_back(state: TopicState, head: SnapshotHead, number: int) -> None:
    assert snapshot_files.decode_topic(memoryview(snapshot_files.encode_topic(state))) == state
    assert snapshot_files.decode_head(memoryview(snapshot_files.encode_head(head))) == head
    assert snapshot_files.decode_end(memoryview(snapshot_files.encode_end(number))) == number


@effort(80)
@given(st.lists(topic_states, max_size=3), st.data())
def test_a_snapshot_file_is_read_whole_or_not_at_all(states: list[TopicState], data: st.DataObject) -> None:
    disk, layout = FakeDisk(), Layout("data")
    disk.make_dirs(layout.meta)
    writer = SnapshotWriter(disk, layout, SnapshotHead(7, [], 1, [], 9, 0, []))
    for state in states:
        writer.add(FrameKind.TOPIC, 1, snapshot_files.encode_topic(state))
    size = writer.finish()
    writer.close()
    _, found = read_snapshot(disk, layout, 7)
    assert [snapshot_files.decode_topic(frame.body) for frame in found] == states
    file = disk.open(layout.snapshot(7), write=True)
    valid = file.read_at(0, size)
    mutated = data.draw(mutations(valid))
    # Bytes behind the end are ignored.
    assume(not mutated.startswith(valid))
    file.truncate(0)
    file.write_at(0, mutated)
    assert refused(lambda: read_snapshot(disk, layout, 7), DamageError)


# Segments


@st.composite
def drafts(draw: st.DrawFn) -> tuple[SegmentHead, list[Fragments], list[tuple[int, int]], list[Record]]:
    """A segment's parts: several blocks whose texts follow each other."""
    several = draw(st.lists(batches.handfuls, min_size=1, max_size=4))
    first, bias = draw(st.integers(1, 2**60)), draw(st.integers(0, 2**30))
    encoded, blocks, base, index, ts = [], [], bias, 0, draw(st.integers(0, 2**50))
    for records in several:
        ts += draw(st.integers(0, 3))
        encoded.append(encode_fragments(records, first + index, ts, None, base))
        blocks.append((index, ts))
        index += len(records)
        base += len(encoded[-1].text) + 1
    text_bytes = base - 1 - bias
    payload = sum(block.payload_bytes for block in encoded)
    traits = 0
    for block in encoded:
        traits |= block.traits
    head = SegmentHead(3, 4, first, payload, blocks[0][1], ts, index, bias, text_bytes, traits, draw(names))
    return head, encoded, blocks, [record for records in several for record in records]


Draft = tuple[SegmentHead, list[Fragments], list[tuple[int, int]], list[Record]]


def files_of(draft: Draft) -> tuple[bytes, bytes]:
    head, encoded, blocks, records = draft
    tags: dict[bytes, list[int]] = {}
    for index, record in enumerate(records):
        if record.tag is not None:
            tags.setdefault(msgspec.json.encode(record.tag), []).append(index)
    rows = b"".join(block.rows for block in encoded)
    text = b",".join(block.text for block in encoded)
    data = segment.encode_data(head, [text], bytes(head.count))
    return b"".join(data), b"".join(segment.encode_index(3, head.first_seq, rows, blocks, tags))


@effort(60)
@given(drafts())
def test_a_segment_is_read_back(draft: Draft) -> None:
    head, _, blocks, records = draft
    data, index_file = files_of(draft)
    assert segment.decode_head(memoryview(data)) == head
    assert len(data) == head.file_bytes
    assert all(segment.chunk_is_good(memoryview(data), head, chunk) for chunk in range(head.chunks))
    index = SegmentIndex(memoryview(index_file))
    assert (index.topic_id, index.first_seq, index.count, index.blocks()) == (3, head.first_seq, head.count, blocks)
    view = View(memoryview(data)[head.text_at : head.checksums_at], index.rows, head.bias, head.count)
    assert [data_of(view, place) for place in range(head.count)] == [bytes(record.data) for record in records]
    for place in range(head.count):
        assert index.ts_at(place) == max(ts for first, ts in blocks if first <= place)
    for deadline in {ts + step for _, ts in blocks for step in (-1, 0, 1)}:
        young = [first for first, ts in blocks if ts >= deadline]
        assert index.count_before(deadline) == (young[0] if young else head.count)
    found = {index.tag_at(place): index.postings_at(place) for place in range(index.tag_count)}
    assert list(found) == sorted(found)
    assert sorted(posting for postings in found.values() for posting in postings) == [
        place for place, record in enumerate(records) if record.tag is not None
    ]
    for text, postings in found.items():
        assert {records[posting].tag for posting in postings} == {tag_value(text)}


@effort(150)
@given(drafts(), st.data())
def test_a_changed_segment_is_refused(draft: Draft, data: st.DataObject) -> None:
    head = draft[0]
    valid, index_file = files_of(draft)
    mutated = data.draw(mutations(valid))
    intact = mutated[: head.flags_at] == valid[: head.flags_at] and len(mutated) == len(valid)
    if refused(lambda: segment.decode_head(memoryview(mutated)), ValueError):
        assert not intact
    else:
        # The head and the checksums are unchanged, so the change is in a flag or detected by its chunk.
        chunks = [segment.chunk_is_good(memoryview(mutated), head, chunk) for chunk in range(head.chunks)]
        assert all(chunks) == intact
    assert refused(lambda: SegmentIndex(memoryview(data.draw(mutations(index_file)))), ValueError)


@effort(150)
@given(drafts(), st.data())
def test_an_index_with_a_right_checksum_over_nonsense_is_refused_or_harmless(draft: Draft, data: st.DataObject) -> None:
    content = data.draw(mutations(files_of(draft)[1][:-8]))
    hostile = content + struct.pack("<Q", xxh3_64_intdigest(content))

    def look() -> None:
        index = SegmentIndex(memoryview(hostile))
        index.first_tag_from(b'"a')
        for place in range(index.tag_count):
            index.tag_at(place)
            index.postings_at(place)

    refused(look, ValueError)


@effort(60)
@given(garbage | garbage.map(lambda rest: b"TPSEG001" + rest) | garbage.map(lambda rest: b"TPIDX001" + rest))
def test_bytes_that_were_never_segments_are_refused(hostile: bytes) -> None:
    assert refused(lambda: segment.decode_head(memoryview(hostile)), ValueError)
    assert refused(lambda: SegmentIndex(memoryview(hostile)), ValueError)


# Fragments and their parts


@st.composite
def views(draw: st.DrawFn) -> tuple[list[ModelRecord], View]:
    """A batch as the model has it, and its fragments; the text may be a view of something larger."""
    records = draw(batches.batches)
    node = draw(st.none() | batches.nodes)
    # Where the number of digits changes within the batch, the heads are not all of one length.
    first = draw(st.sampled_from([1, 5, 95, 10**9 - 3]) | st.integers(1, 2**63))
    ts, base = draw(st.integers(0, 2**50)), draw(st.integers(0, 2**30))
    fragments = encode_fragments(records, first, ts, node, base)
    expected = [
        ModelRecord(
            first + index,
            ts,
            record.tag,
            node if record.node is None else record.node,
            None if record.meta is None else bytes(record.meta),
            bytes(record.data),
            Home.LOG,
        )
        for index, record in enumerate(records)
    ]
    assert fragments.payload_bytes == sum(record.size for record in expected)
    assert fragments.traits == (
        any(record.tag is not None for record in expected)
        | any(record.node is not None for record in expected) << 1
        | any(record.meta is not None for record in expected) << 2
    )
    text = memoryview(b"<" + fragments.text + b">")[1:-1] if draw(st.booleans()) else fragments.text
    return expected, View(text, words(fragments.rows), base, len(records))


spans = st.tuples(st.integers(0, 20), st.integers(0, 20))


def clip(span: tuple[int, int], count: int) -> tuple[int, int]:
    lo, hi = sorted(min(bound, count) for bound in span)
    return lo, hi


@effort(150)
@given(views())
def test_fragments_are_the_records_they_were_made_of(drawn: tuple[list[ModelRecord], View]) -> None:
    records, view = drawn
    assert bytes(view.text) == b",".join(record.json() for record in records)
    decoded = msgspec.json.decode(b"[" + bytes(view.text) + b"]", type=list[dict[str, msgspec.Raw]])
    for index, (record, fields) in enumerate(zip(records, decoded, strict=True)):
        expected = {"$seq": b"%d" % record.seq, "$ts": b"%d" % record.ts, "data": record.data}
        expected |= {} if record.meta is None else {"meta": record.meta}
        assert {name: bytes(raw) for name, raw in fields.items() if name not in ("$node", "$tag")} == expected
        for name, value in (("$node", record.node), ("$tag", record.tag)):
            assert (msgspec.json.decode(fields[name]) if name in fields else None) == value
        assert data_of(view, index) == record.data
    assert [(index, tag_value(text)) for index, text in tag_texts(view, 0, view.count)] == [
        (index, record.tag) for index, record in enumerate(records) if record.tag is not None
    ]


@effort(150)
@given(views(), st.lists(spans, max_size=3), st.booleans(), st.booleans())
def test_a_projection_is_what_encoding_again_would_give(
    drawn: tuple[list[ModelRecord], View], requested: list[tuple[int, int]], tags: bool, meta: bool
) -> None:
    records, view = drawn
    ranges = [span for span in (clip(span, view.count) for span in requested) if span[0] < span[1]]
    expected = [record.json(tags, meta) for lo, hi in ranges for record in records[lo:hi]]
    assert b",".join(project(view, ranges, tags, meta)) == b",".join(expected)


@effort(100)
@given(views(), spans, st.lists(batches.nodes, max_size=3))
def test_a_node_filter_leaves_out_exactly_those_nodes(
    drawn: tuple[list[ModelRecord], View], span: tuple[int, int], nodes: list[str]
) -> None:
    records, view = drawn
    lo, hi = clip(span, view.count)
    kept = without_nodes(view, [(lo, hi)], tuple(map(node_suffix, nodes)))
    assert [index for begin, end in kept for index in range(begin, end)] == [
        index for index in range(lo, hi) if records[index].node not in nodes
    ]
    assert payload_sizes(view, lo, hi) == [record.size for record in records[lo:hi]]


@effort(80)
@given(views(), spans)
def test_as_much_fits_as_fits(drawn: tuple[list[ModelRecord], View], span: tuple[int, int]) -> None:
    records, view = drawn
    lo, hi = clip(span, view.count)
    sizes = [len(b",".join(record.json() for record in records[lo:end])) for end in range(lo + 1, hi + 1)]
    # Only next to a size does a byte more or less matter.
    for budget in {0, *(size + step for size in sizes for step in (-2, -1, 0, 1, 2))}:
        assert not sizes or end_that_fits(view, lo, hi, budget) == lo + sum(size <= budget for size in sizes)


# Flags, ranges and tags


@effort(150)
@given(st.none() | st.lists(st.sampled_from([0, 0, DELETED, DELETED, 1, 0xFF]), max_size=30).map(bytes), spans)
def test_live_ranges_are_what_no_flag_marks(flags: bytes | None, span: tuple[int, int]) -> None:
    lo, hi = clip(span, 30 if flags is None else len(flags))
    ranges = live_ranges(flags, lo, hi)
    assert [index for begin, end in ranges for index in range(begin, end)] == [
        index for index in range(lo, hi) if flags is None or flags[index] != DELETED
    ]
    ends = [bound for found in ranges for bound in found]
    assert ends == sorted(set(ends)), "ranges are ascending, apart and never empty"


@effort(100)
@given(st.lists(st.integers(1, 40), max_size=40), st.integers(0, 45))
def test_seqs_become_ranges_and_nothing_else(seqs: list[int], below: int) -> None:
    ranges = as_ranges(seqs, below)
    assert [seq for first, last in ranges for seq in range(first, last + 1)] == sorted(
        {seq for seq in seqs if seq < below}
    )
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


@effort(150)
@given(st.text() | batches.tags, st.text(max_size=3) | batches.tags, st.booleans(), st.data())
def test_tags_are_matched_by_their_json_text(tag: str, pattern: str, prefix: bool, data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from([pattern, tag, tag[: len(tag) // 2]]))
    match = TagMatch(pattern, prefix)
    text, requested = msgspec.json.encode(tag), match_text(match)
    assert (text.startswith(requested) if prefix else text == requested) == match.matches(tag)
