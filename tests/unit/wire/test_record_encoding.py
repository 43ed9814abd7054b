import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.records import Record, Values
from topics.wire import record_encoding as module
from topics.wire.record_encoding import Fragments, encode_fragments, node_suffix
from topics.wire.record_slicing import View, data_of, payload_sizes, tag_texts, tag_value

TS = 1_700_000_000_000


def encode(records: list[Record], first_seq: int = 1, node: str | None = None, base: int = 0) -> Fragments:
    return encode_fragments(records, first_seq, TS, node, base)


def view_of(fragments: Fragments, base: int = 0) -> View:
    rows = memoryview(fragments.rows).cast("I")
    return View(fragments.text, rows, base, len(rows) // 3)


def decoded(fragments: Fragments) -> list[dict[str, object]]:
    records: list[dict[str, object]] = msgspec.json.decode(b"[" + fragments.text + b"]")
    return records


def check_rows(fragments: Fragments, records: list[Record], base: int = 0) -> None:
    """However the rows were written, they must lead to every part of every record."""
    view = view_of(fragments, base)
    assert view.count == len(records)
    assert [data_of(view, i) for i in range(view.count)] == [bytes(record.data) for record in records]
    sizes = [len(record.data) + len(record.meta or b"") for record in records]
    assert payload_sizes(view, 0, view.count) == sizes
    assert fragments.payload_bytes == sum(sizes)
    tags = [(i, record.tag) for i, record in enumerate(records) if record.tag is not None]
    assert [(i, tag_value(text)) for i, text in tag_texts(view, 0, view.count)] == tags


def test_one_plain_record() -> None:
    fragments = encode([Record.of({"a": 1})], 7)
    assert fragments.text == b'{"$seq":7,"$ts":1700000000000,"data":{"a":1}}'
    assert fragments.traits == 0
    check_rows(fragments, [Record.of({"a": 1})])


def test_one_record_with_everything() -> None:
    record = Record.of(1, tag="t", node="n", meta={"m": True})
    fragments = encode([record], 7)
    assert fragments.text == b'{"$seq":7,"$ts":1700000000000,"$node":"n","data":1,"meta":{"m":true},"$tag":"t"}'
    assert fragments.traits == 7
    check_rows(fragments, [record])


def test_a_batch_is_joined_by_commas() -> None:
    records = [Record.of(value) for value in (1, "two", [3])]
    fragments = encode(records, 5)
    assert [record["$seq"] for record in decoded(fragments)] == [5, 6, 7]
    assert [record["data"] for record in decoded(fragments)] == [1, "two", [3]]
    check_rows(fragments, records)


@pytest.mark.parametrize("first", [8, 9, 98, 99, 998, 999, 10**19 - 2])
@pytest.mark.parametrize("tag", [None, "t"])
def test_a_batch_across_a_power_of_ten(first: int, tag: str | None) -> None:
    # The seq grows by a digit inside the batch, so heads of one batch have different lengths.
    records = [Record.of(value, tag=tag) for value in range(4)]
    fragments = encode(records, first)
    assert [record["$seq"] for record in decoded(fragments)] == list(range(first, first + 4))
    check_rows(fragments, records)


@pytest.mark.parametrize("first", [1, 10, 100, 1000])
def test_a_batch_that_begins_at_a_power_of_ten(first: int) -> None:
    records = [Record.of(value) for value in range(9)]
    fragments = encode(records, first)
    assert [record["$seq"] for record in decoded(fragments)] == list(range(first, first + 9))
    check_rows(fragments, records)


NODES = ["100%", "%d%b%%", 'a"b', "back\\slash", "comma,{}", "é", "\x01", "", "$node"]


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("count", [1, 3])
def test_the_batch_node_is_on_every_record(node: str, count: int) -> None:
    records = [Record.of(value) for value in range(count)]
    fragments = encode(records, 1, node)
    assert [record["$node"] for record in decoded(fragments)] == [node] * count
    assert fragments.traits == 2
    check_rows(fragments, records)


@pytest.mark.parametrize("node", NODES)
def test_a_record_node_wins_over_the_batch_node(node: str) -> None:
    records = [Record.of(1, node=node), Record.of(2)]
    fragments = encode(records, 1, "batch")
    assert [record["$node"] for record in decoded(fragments)] == [node, "batch"]


def test_percent_signs_in_the_data_are_data() -> None:
    records = [Record.of("100%d"), Record.of("%b%%")]
    fragments = encode(records, 1, "%s")
    assert [record["data"] for record in decoded(fragments)] == ["100%d", "%b%%"]
    check_rows(fragments, records)


@pytest.mark.parametrize("tag", ['a"b', "a\\b", "line\nbreak", "é", "\x7f\x01", "", ",{}:"])
def test_a_tag_with_escapes_is_found_again(tag: str) -> None:
    records = [Record.of(0), Record.of(1, tag=tag), Record.of(2)]
    fragments = encode(records)
    assert decoded(fragments)[1]["$tag"] == tag
    check_rows(fragments, records)


def test_mixed_records_keep_their_own_parts() -> None:
    records = [
        Record.of(0),
        Record.of(1, tag="t"),
        Record.of(2, meta={"a": [1, 2]}),
        Record.of(3, tag="u", meta={}),
        Record.of(4, node="n"),
    ]
    fragments = encode(records)
    assert [sorted(record) for record in decoded(fragments)] == [
        ["$seq", "$ts", "data"],
        ["$seq", "$tag", "$ts", "data"],
        ["$seq", "$ts", "data", "meta"],
        ["$seq", "$tag", "$ts", "data", "meta"],
        ["$node", "$seq", "$ts", "data"],
    ]
    assert fragments.traits == 7
    check_rows(fragments, records)


@pytest.mark.parametrize(
    ("record", "traits"),
    [
        (Record.of(1), 0),
        (Record.of(1, tag="t"), 1),
        (Record.of(1, node="n"), 2),
        (Record.of(1, meta={}), 4),
        (Record.of(1, tag="t", meta={}), 5),
    ],
)
def test_traits_state_what_some_record_has(record: Record, traits: int) -> None:
    assert encode([Record.of(0), record]).traits == traits


@pytest.mark.parametrize("tag", [None, "t"])
def test_starts_are_counted_from_the_base(tag: str | None) -> None:
    records = [Record.of(value, tag=tag) for value in range(3)]
    fragments = encode(records, 1, None, base=1000)
    assert memoryview(fragments.rows).cast("I")[0] == 1000
    check_rows(fragments, records, base=1000)
    assert fragments.text == encode(records).text


def test_data_is_kept_to_the_byte() -> None:
    records = [Record(b'{ "a" : 1.0 }'), Record(b"1E+2")]
    fragments = encode(records)
    assert b'"data":{ "a" : 1.0 }}' in fragments.text
    assert b'"data":1E+2}' in fragments.text
    check_rows(fragments, records)


def test_raw_parts_of_a_request_can_be_encoded() -> None:
    # A server cuts records out of a request body; they come as msgspec.Raw and not as bytes.
    records = msgspec.json.decode(b'[{"data": [1], "meta": {"m": 1}}, {"data": 2}]', type=list[Record])
    check_rows(encode(records), records)
    check_rows(encode(records[1:]), records[1:])
    check_rows(encode([records[1], records[1]]), [records[1], records[1]])


@pytest.mark.parametrize("node", NODES)
def test_a_head_ends_in_the_suffix_of_its_node(node: str) -> None:
    view = view_of(encode([Record.of("x", node=node)]))
    head = view.rows[2] >> 16
    assert bytes(view.text[:head]).endswith(node_suffix(node))


def test_no_node_is_a_suffix_of_another() -> None:
    # Otherwise a reader would miss the records of a node with a longer name.
    assert not node_suffix("ab").endswith(node_suffix("b"))
    assert not node_suffix('a","$node":"b').endswith(node_suffix("b"))


@given(
    st.lists(
        st.builds(
            Record,
            st.binary(min_size=1, max_size=12),
            st.none() | st.text(max_size=4),
            st.none() | st.none() | st.just("n"),
            st.none() | st.none() | st.just(b"{}"),
        ),
        min_size=2,
        max_size=30,
    ),
    st.sampled_from([1, 95, 990, 1_000, 9_985, 99_990, 123_456, 10**9 - 7]),
    st.none() | st.just("batch"),
    st.integers(0, 2**31),
)
def test_the_fast_ways_agree_with_the_general_one(
    records: list[Record], first: int, node: str | None, base: int
) -> None:
    expected = module._encode_mixed(records, first, TS, node, base)
    assert module.encode_fragments(records, first, TS, node, base) == expected
    bare = [Record(record.data) for record in records]
    values = Values([record.data for record in records])
    assert module.encode_fragments(values, first, TS, node, base) == module._encode_mixed(bare, first, TS, node, base)
