import msgspec
import pytest

from topics.model.records import Record
from topics.wire.record_encoding import encode_fragments, node_suffix
from topics.wire.record_slicing import (
    View,
    data_of,
    end_that_fits,
    parts_of,
    payload_sizes,
    project,
    tag_texts,
    tag_value,
    without_nodes,
)

MIXED = [
    Record.of("plain"),
    Record.of("tagged", tag='t"1'),
    Record.of("noted", meta={"m": 1}),
    Record.of("both", tag="t2", meta={"m": [2]}),
    Record.of("noded", node="n"),
    Record.of("all", tag="t3", node="n", meta={}),
]


def view_of(records: list[Record], first_seq: int = 8, base: int = 500) -> View:
    fragments = encode_fragments(records, first_seq, 1, None, base)
    return View(fragments.text, memoryview(fragments.rows).cast("I"), base, len(records))


def decoded(pieces: list[bytes | memoryview]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = msgspec.json.decode(b"[" + b",".join(pieces) + b"]")
    return records


VIEW = view_of(MIXED)


def sizes(view: View) -> list[int]:
    """The length of each fragment, without its comma."""
    return [view.start(i + 1) - 1 - view.start(i) for i in range(view.count)]


def test_the_whole_view_is_the_text_itself() -> None:
    assert VIEW.whole(0, VIEW.count) is VIEW.text


@pytest.mark.parametrize(("lo", "hi"), [(0, 1), (1, 3), (5, 6), (0, 5), (1, 6)])
def test_a_slice_is_one_piece_without_outer_commas(lo: int, hi: int) -> None:
    whole = bytes(VIEW.whole(lo, hi))
    assert [record["$seq"] for record in decoded([whole])] == list(range(8 + lo, 8 + hi))


def test_a_view_over_a_mapped_file_reads_the_same() -> None:
    mapped = View(memoryview(bytes(VIEW.text)), VIEW.rows, VIEW.bias, VIEW.count)
    assert bytes(mapped.whole(1, 3)) == VIEW.whole(1, 3)
    assert decoded(project(mapped, [(0, 6)], False, False)) == decoded(project(VIEW, [(0, 6)], False, False))


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("ranges", [[(0, 6)], [(0, 1), (2, 4)], [(5, 6)], [(1, 2)], []])
def test_a_projection_leaves_out_exactly_what_was_not_asked_for(
    tags: bool, meta: bool, ranges: list[tuple[int, int]]
) -> None:
    full = decoded([VIEW.text])
    expected = []
    for lo, hi in ranges:
        for record in full[lo:hi]:
            left_out = {name for name, requested in (("$tag", tags), ("meta", meta)) if not requested}
            expected.append({key: value for key, value in record.items() if key not in left_out})
    assert decoded(project(VIEW, ranges, tags, meta)) == expected


def test_a_projection_that_keeps_all_copies_nothing() -> None:
    assert project(VIEW, [(0, VIEW.count)], True, True) == [VIEW.text]
    assert project(VIEW, [(0, VIEW.count)], True, True)[0] is VIEW.text


def test_all_fit_into_their_own_length() -> None:
    assert end_that_fits(VIEW, 0, 6, len(VIEW.text)) == 6


def test_one_byte_less_leaves_the_last_one_out() -> None:
    assert end_that_fits(VIEW, 0, 6, len(VIEW.text) - 1) == 5


def test_the_comma_behind_the_last_one_does_not_count() -> None:
    first, second = sizes(VIEW)[:2]
    assert end_that_fits(VIEW, 0, 6, first + 1 + second) == 2
    assert end_that_fits(VIEW, 0, 6, first + second) == 1


def test_nothing_fits_into_too_little() -> None:
    assert end_that_fits(VIEW, 2, 6, sizes(VIEW)[2] - 1) == 2


@pytest.mark.parametrize("budget", [0, -1, -2, -1000])
def test_nothing_fits_into_nothing(budget: int) -> None:
    # A first record that had to be delivered over the budget leaves less than nothing for the others.
    assert end_that_fits(VIEW, 3, 6, budget) == 3


def test_the_end_is_respected_whatever_the_budget() -> None:
    assert end_that_fits(VIEW, 1, 4, 10**9) == 4


@pytest.mark.parametrize("lo", range(6))
def test_fitting_agrees_with_adding_up(lo: int) -> None:
    for budget in range(len(VIEW.text) + 2):
        end, used = lo, -1
        while end < VIEW.count and used + 1 + sizes(VIEW)[end] <= budget:
            used += 1 + sizes(VIEW)[end]
            end += 1
        assert end_that_fits(VIEW, lo, VIEW.count, budget) == end, budget


def test_records_of_a_node_are_left_out() -> None:
    assert without_nodes(VIEW, [(0, 6)], (node_suffix("n"),)) == [(0, 4)]


def test_what_lies_between_them_stays_in_spans() -> None:
    view = view_of([Record.of(i, node="ab"[i % 3 == 0]) for i in range(7)])
    assert without_nodes(view, [(0, 7)], (node_suffix("b"),)) == [(1, 3), (4, 6)]


def test_several_nodes_at_once() -> None:
    view = view_of([Record.of(i, node="abc"[i % 3]) for i in range(6)])
    assert without_nodes(view, [(0, 6)], (node_suffix("a"), node_suffix("c"))) == [(1, 2), (4, 5)]


def test_ranges_that_were_cut_already_stay_cut() -> None:
    view = view_of([Record.of(i, node="ab"[i == 3]) for i in range(6)])
    assert without_nodes(view, [(0, 2), (3, 5)], (node_suffix("b"),)) == [(0, 2), (4, 5)]


def test_record_without_node_matches_no_node_filter() -> None:
    assert without_nodes(VIEW, [(0, 1)], (node_suffix(""),)) == [(0, 1)]


def test_payload_that_looks_like_a_head_is_not_a_head() -> None:
    view = view_of([Record(b'{"x":1,"$node":"n","data":2}')])
    assert without_nodes(view, [(0, 1)], (node_suffix("n"),)) == [(0, 1)]


def test_payload_sizes_are_data_and_meta_without_their_names() -> None:
    assert payload_sizes(VIEW, 0, 6) == [len(record.data) + len(record.meta or b"") for record in MIXED]
    assert payload_sizes(VIEW, 2, 4) == payload_sizes(VIEW, 0, 6)[2:4]


def test_tags_of_a_slice_come_with_their_index() -> None:
    assert tag_texts(VIEW, 0, 6) == [(1, b'"t\\"1"'), (3, b'"t2"'), (5, b'"t3"')]
    assert tag_texts(VIEW, 2, 5) == [(3, b'"t2"')]


@pytest.mark.parametrize(
    ("text", "value"), [(b'"t"', "t"), (b'""', ""), (b'"a\\"b"', 'a"b'), (b'"\\u0001"', "\x01"), ('"é"'.encode(), "é")]
)
def test_a_tag_is_decoded_from_its_json(text: bytes, value: str) -> None:
    assert tag_value(text) == value


def test_data_is_given_back_verbatim() -> None:
    assert [data_of(VIEW, i) for i in range(6)] == [bytes(record.data) for record in MIXED]


def test_a_record_is_taken_apart_into_what_was_sent() -> None:
    records = [
        Record(b'{"a":1}', 't\u00e9"g', 'n"o\\de', b'{"m":[1,2]}'),
        Record(b'"plain"'),
        Record(b'{",\\"$node\\":\\"x\\"":1}', None, None, b'{"$tag":"no"}'),
        Record(b"null", "only tag"),
        Record(b"0", None, "only node"),
    ]
    view = view_of(records)
    for index, record in enumerate(records):
        parts = parts_of(view, index)
        assert (parts.data, parts.meta, parts.tag, parts.node) == (record.data, record.meta, record.tag, record.node)
