"""Companions: cases that the property tests do not cover."""

import weakref
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.search.helpers import LOGS, plenty, states_of
from topics.schema.registry import Registry, Version
from topics.search.file_index import rollups
from topics.search.file_index.file_format import (
    IndexFileDamagedError,
    IndexPlan,
    MappedTexts,
    SectionFile,
    SectionWriter,
    is_same,
    needs_of_search,
    pack_strings,
    plan_of,
)
from topics.search.file_index.merge import build, merge
from topics.search.file_index.query_part import IndexFilePart, ResultCache, key_of
from topics.search.file_index.reader import IndexFile, join_texts, texts_at, texts_behind
from topics.search.file_index.rollups import read_rollup, write_rollups
from topics.search.query.aggregate import parse_aggregation, show
from topics.search.query.aggregate_arrays import Buckets, Counts, Dimension, Groups, States, Summed, Sums, regroup
from topics.search.query.field_values import FIRST_ROWS
from topics.search.query.plan import Ask, Budget, Entries, Entry, Span, aggregate, list_keys, search
from topics.search.query.predicates import bind_search
from topics.search.query.scan import Scan
from topics.search.query.sort import parse_sort

ROLLUPS = {
    "rollups": {
        "load": {
            "dimensions": ["service"],
            "intervals": ["1m"],
            "measures": {
                "n": {"kind": "count"},
                "parts": {
                    "kind": "summary_parts", "countJsonPointer": "/m/c", "sumJsonPointer": "/m/s",
                    "minJsonPointer": "/m/min", "maxJsonPointer": "/m/max", "histogramJsonPointer": "/m/h",
                },
            },
        }
    }
}  # fmt: skip


def registry(search: dict[str, Any] | None = None, versions: int = 1) -> Registry:
    raw = None if search is None else msgspec.json.encode(search)
    lens = b'{"apiVersion":"durable.lens/v1","schema":"s","from":1,"to":2,"ops":[]}'
    made = [Version(b"{}", lens if number else None, 10 * number) for number in range(versions)]
    return Registry(tuple(made), None, raw)


def index_file(described: Registry, rows: list[Entry], block_rows: int = 65_536) -> IndexFile:
    data = bytearray()
    build(described, [rows], 1, rows[0].number, rows[-1].number, data.extend, block_rows)
    return IndexFile(bytes(data))


def part(one: IndexFile, described: Registry) -> IndexFilePart:
    head = one.head
    return IndexFilePart(one, Span(head.first, head.last, head.rows, "index"), plan_of(described))


def test_more_than_a_million_keys_are_one_table() -> None:
    """The lexicon of others ends at 1,048,576 keys."""
    count = 1_100_000
    described = registry()
    halves = [
        index_file(described, [Entry(number, None, 1, f"k{number:07}") for number in numbers])
        for numbers in (range(count // 2), range(count // 2, count))
    ]
    data = bytearray()
    merge(halves, data.extend)
    whole = IndexFile(bytes(data))
    assert whole.head.key.distinct == count
    answered = part(whole, described)
    assert list_keys([answered], None, 2, plenty()).keys == ["k0000000", "k0000001"]
    assert list_keys([answered], "k1048574", 3, plenty()).keys == ["k1048575", "k1048576", "k1048577"]
    assert list_keys([answered], f"k{count - 2:07}", 9, plenty()).keys == [f"k{count - 1:07}"]


def test_every_changed_byte_that_counts_is_found() -> None:
    described = registry({**LOGS, **ROLLUPS})
    values = [{"eventTime": n, "service": f"s{n % 3}", "message": f"a b{n}", "m": {"c": 1, "s": n}} for n in range(20)]
    whole = index_file(described, [Entry(n, value, 1, f"k{n}") for n, value in enumerate(values)], block_rows=8)
    data = bytes(whole.file._view)
    used = {0, len(data) - 1, *range(len(data) - 200, len(data), 7)}
    for section in whole.file._sections.values():
        used |= {section.offset, section.offset + section.size - 1} if section.size else set()
    for place in sorted(used):
        broken = bytearray(data)
        broken[place] ^= 0x41
        with pytest.raises(IndexFileDamagedError):
            IndexFile(bytes(broken)).check()
    for length in (0, 7, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(IndexFileDamagedError):
            IndexFile(data[:length])


def test_a_part_that_is_late_reports_it() -> None:
    described = registry(LOGS)
    rows = [Entry(n, {"eventTime": n, "status": n % 5, "message": "a"}, 1) for n in range(64)]
    answered = part(index_file(described, rows, block_rows=8), described)
    config = described.search_config
    assert config is not None
    query = bind_search("status:>=1", config)
    ask = Ask(
        config=config, version=1, predicate=query.predicate, sort=parse_sort((), config, False), size=60, count_all=True
    )
    moments = iter(range(100))
    found = search([answered], ask, Budget(lambda: next(moments), 4.0, 1 << 60))
    assert not found.coverage.complete
    assert 0 < len(found.hits) < 51
    assert 64 - found.coverage.missed <= found.coverage.looked_at


def test_a_part_that_has_nothing_to_look_at_is_late_as_well() -> None:
    """Two words that are never together are found out by their postings, block by block."""
    described = registry(LOGS)
    # More of each than are looked at without being taken apart, and few in a block.
    words = {0: "left", 10: "right"}
    rows = [Entry(n, {"eventTime": n, "message": words.get(n % 20, "none")}, 1) for n in range(12_000)]
    answered = part(index_file(described, rows, block_rows=100), described)
    config = described.search_config
    assert config is not None
    query = bind_search("left right", config)
    ask = Ask(config=config, version=1, predicate=query.predicate, sort=parse_sort((), config, True), size=9)
    moments = iter(range(100))
    found = search([answered], ask, Budget(lambda: next(moments), 4.0, 1 << 60))
    assert (found.coverage.spent, found.coverage.missed, found.coverage.looked_at) == ("time", 12_000, 0)


def test_summaries_are_added_up_ahead_and_come_back_as_they_were() -> None:
    described = registry({**LOGS, **ROLLUPS})
    huge = 2**80
    values: list[dict[str, Any]] = [
        {"eventTime": 60_000 * (n % 4), "service": f"s{n % 2}", "m": {"c": n, "s": huge + n, "max": n, "h": {"4": n}}}
        for n in range(40)
    ]
    values.append({"eventTime": 1, "service": "s0", "m": {"c": None}})
    rows = [Entry(n, value, 1) for n, value in enumerate(values)]
    config = described.search_config
    assert config is not None
    answered = part(index_file(described, rows, block_rows=8), described)
    scan = Scan(Entries(Span(0, 40, 41), rows))
    for body in (
        {"rollup": "load", "from": 0, "to": 240_000, "interval": "1m", "group_by": ["service"]},
        {"rollup": "load", "from": 1, "to": 180_001, "interval": "1m", "q": "service:s1"},
    ):
        ask = parse_aggregation(msgspec.json.encode(body), config, 1)
        found = aggregate([answered], ask, plenty())
        assert states_of(found.groups) == states_of(aggregate([scan], ask, plenty()).groups)
        assert found.coverage.rolled


def test_only_a_field_that_changed_has_another_digest() -> None:
    before = plan_of(registry(LOGS))
    assert plan_of(registry(LOGS)).generation == before.generation
    fields: dict[str, Any] = dict(LOGS["fields"])
    fields["status"] = {**fields["status"], "bindings": [{"version": 1, "jsonPointer": "/code"}]}
    fields["extra"] = fields["ok"]
    after = plan_of(registry({**LOGS, "fields": fields}))
    assert after.generation != before.generation
    changed = registry({**LOGS, "fields": fields}).search_config
    assert changed is not None
    for query, fits in (("service:a message:b", True), ("status:1", False), ("extra:true", False)):
        needs = needs_of_search(after, bind_search(query, changed).predicate, ("eventTime",))
        assert needs.are_met(before) is fits, query
    # A field that only supports other queries is extracted alike.
    flags = {**LOGS["fields"], "hidden": {**LOGS["fields"]["hidden"], "exact": True}}
    assert plan_of(registry({**LOGS, "fields": flags})).generation == before.generation
    # Another version promotes old entries, so every field of them may differ.
    assert plan_of(registry(LOGS, versions=2)).fields["service"] != before.fields["service"]


def test_rollups_are_read_at_any_places() -> None:
    """Precomputed sums, group by group: of any length, and groups without a name."""
    numbers = np.arange(1_500)
    names = [None, *(f"s{number:04}" for number in range(1, 1_500))]
    exact = [Summed(n, 10 ** (n % 40), -n, None, {1 << n % 90: n, 1: 1.5}) for n in range(1_500)]
    buckets = Buckets(2 * (numbers + 1), np.tile([0, 63], 1_500), np.arange(3_000))
    groups = Groups(
        60_000 * numbers,
        [Dimension(np.where(numbers % 3, numbers, 0), names)],
        [Counts(numbers), States(exact), Sums(numbers, numbers * 0.5, -1.0 * numbers, 1.0 * numbers, buckets)],
    )
    data = bytearray()
    writer = SectionWriter(data.extend)
    assert write_rollups(writer, "load", {(60_000, "all"): regroup([groups], 60_000, [0])})
    writer.finish(IndexPlan({}, {}, {}))
    stored = read_rollup(SectionFile(bytes(data)), "load", 60_000, "all")
    assert stored is not None
    expected = list(states_of(groups).items())
    for places in (range(1_500), range(0), [0], [1_499], range(0, 1_500, 7)):
        found = stored.at(np.array(places, np.int64), range(3))
        assert list(states_of(found).items()) == [expected[place] for place in places]
    [key] = states_of(stored.at(numbers, [0], [(0, "s0004")]))
    assert key == (240_000, ("s0004",))
    assert not len(stored.at(numbers, [0], [(0, "none")]))


def test_groups_are_named_by_the_dimensions_in_whatever_order_they_are_asked_for() -> None:
    search = {**LOGS, "rollups": {"load": {**ROLLUPS["rollups"]["load"], "dimensions": ["service", "status"]}}}
    described = registry(search)
    values = [
        {"eventTime": 1, "service": f"s{number % 3}", "status": number % 2, "m": {"c": 1, "s": number}}
        for number in range(20)
    ]
    rows = [Entry(number, value, 1) for number, value in enumerate(values)]
    config = described.search_config
    assert config is not None
    for group_by in (["service", "status"], ["status", "service"], ["status"]):
        body = {"rollup": "load", "from": 0, "to": 60_000, "interval": "1m", "group_by": group_by}
        ask = parse_aggregation(msgspec.json.encode(body), config, 1)
        found = aggregate([part(index_file(described, rows), described)], ask, plenty())
        scanned = aggregate([Scan(Entries(Span(0, 19, 20), rows))], ask, plenty())
        assert found.coverage.rolled
        assert show(found.groups, ask) == show(scanned.groups, ask)


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 100])
def test_dictionaries_become_one_however_many_texts_are_looked_at(at_a_time: int) -> None:
    lists = [["", "a", "b", "z"], [], ["a", "a\0", "ab", "\ud800"], ["b"], ["y", "z", "\U0001f600", "\U0001f601"]]
    joined, codes = join_texts([MappedTexts(*pack_strings(texts)) for texts in lists], at_a_time)
    assert list(joined) == sorted({text for texts in lists for text in texts})
    assert [[joined[code] for code in some.tolist()] for some in codes] == lists
    assert len(join_texts([MappedTexts(*pack_strings([]))])[0]) == 0


def test_texts_are_chosen_and_put_behind_each_other() -> None:
    first, second = pack_strings(["a", "", "bc"]), pack_strings(["d"])
    assert list(MappedTexts(*texts_at(*first, np.array([2, 1])))) == ["bc", ""]
    assert list(MappedTexts(*texts_at(*first, np.zeros(0, np.int64)))) == []
    assert list(MappedTexts(*texts_behind([first, pack_strings([]), second]))) == ["a", "", "bc", "d"]


@pytest.mark.parametrize("other", [None, "x"])
def test_keys_that_are_a_field_are_merged_with_it(other: str | None) -> None:
    described = registry(LOGS)
    index_files, rows = [], [Entry(n, {"requestId": f"r{n % 4}"}, 1, f"r{n % 4}") for n in range(6)]
    rows[-1] = rows[-1]._replace(key=other or rows[-1].key)
    for begin in (0, 3):
        data = bytearray()
        build(described, [rows[begin : begin + 3]], 1, begin, begin + 2, data.extend)
        index_files.append(IndexFile(bytes(data)))
    merged = bytearray()
    merge(index_files, merged.extend, [(0, 0)])
    key, field = IndexFile(bytes(merged)).key, IndexFile(bytes(merged)).column("requestId")
    assert [field.texts[code] for code in field.values.tolist()] == ["r1", "r2", "r3", "r0", "r1"]
    assert [key.texts[code] for code in key.values.tolist()] == ["r1", "r2", "r3", "r0", other or "r1"]
    assert is_same(key, field) is (other is None)


def test_an_index_file_of_another_time_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    described = registry({**LOGS, **ROLLUPS})
    rows = [
        Entry(number, {"eventTime": 60_000 * number, "service": "a", "m": {"c": 1, "s": 2}}, 1)
        for number in range(1, 9)
    ]
    one = index_file(described, rows)
    looked: list[str] = []
    monkeypatch.setattr(rollups, "read_rollup", lambda *given: looked.append("rollup") or read_rollup(*given))  # type: ignore[func-returns-value]
    config = described.search_config
    assert config is not None
    for begin, end, groups in ((0, 60_000, 0), (540_000, 900_000, 0), (60_000, 120_000, 1), (480_000, 540_000, 1)):
        looked.clear()
        asked = {"rollup": "load", "from": begin, "to": end, "interval": "1m"}
        ask = parse_aggregation(msgspec.json.encode(asked), config, 1)
        found = aggregate([part(one, described)], ask, plenty())
        assert (len(found.groups), len(looked)) == (groups, groups)
        assert found.coverage.looked_at == len(rows) and not found.coverage.missed


def test_an_index_file_is_not_looked_into_once_others_have_better_hits() -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    values = [{"eventTime": 10 * n, "status": n % 7, "duration": n % 5, "message": f"a b{n}"} for n in range(240)]
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    parts = [part(index_file(described, entries[at : at + 60], block_rows=20), described) for at in range(0, 240, 60)]
    scan = Scan(Entries(Span(0, 239, 240), entries))
    # Of each of the others it is known ahead that its best is not good enough; but if all of them are counted.
    for q, sort, count_all, most in (
        ("a", (), False, 60),
        ("a", (), True, 240),
        ("status:>=1", ("eventTime",), False, 20),
        ("status:>=1", ("service", "eventTime"), False, 20),
        ("status:>=1", ("duration:asc",), False, 60),
        ("status:>=1", ("eventTime:asc",), False, 80),
    ):
        query = bind_search(q, config)
        ask = Ask(
            config=config, version=1, predicate=query.predicate, sort=parse_sort(sort, config, query.has_text), size=9,
            count_all=count_all,
        )  # fmt: skip
        found, expected = search(parts, ask, plenty()), search([scan], ask, plenty())
        assert found.hits == expected.hits
        assert found.coverage.looked_at == most and found.coverage.indexed_segments == len(parts)
        assert found.matched == expected.matched or not count_all


def test_of_a_block_only_those_rows_are_judged_that_have_the_rarest_of_the_words() -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    # As many values of the keyword as just do not fit into two bytes.
    values = [
        {"eventTime": n, "service": "s", "message": "often" + " seldom" * (n < 40_000 or n % 50 == 0)}
        for n in range(65_536)
    ]
    entries = [Entry(number, value, 1) for number, value in enumerate(values)]
    whole = index_file(described, entries, block_rows=8192)
    scan = Scan(Entries(Span(0, 65_535, 65_536), entries))
    seldom = len(range(57_350, 65_536, 50))
    for q, most in (
        ("seldom", seldom),
        ("often seldom", seldom),
        ('"often seldom"', seldom),
        ("seldom OR absent", seldom),
        ("service:s seldom", seldom),
        ("absent often", 0),
        ("message:seld*", seldom),
        ("often", 8192),
        ("service:s", 8192),
    ):
        predicate, sort = bind_search(q, config).predicate, parse_sort(("eventTime",), config, True)
        ask = Ask(config=config, version=1, predicate=predicate, sort=sort, size=9)
        found, expected = search([part(whole, described)], ask, plenty()), search([scan], ask, plenty())
        assert found.hits == expected.hits, q
        assert found.coverage.looked_at == most, q


@pytest.mark.parametrize("ascending", [True, False])
def test_of_a_block_in_the_order_of_its_hits_the_first_rows_are_looked_at_first(ascending: bool) -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    values = [{"service": "s" if n % 2 else "t", "status": n % 1000} for n in range(65_536)]
    # With a hole, so that a row is not its number.
    entries = [Entry(number if number < 40_000 else number + 7, value, 1) for number, value in enumerate(values)]
    whole = index_file(described, entries, block_rows=65_536)
    scan = Scan(Entries(Span(0, 65_542, 65_536), entries))
    first, second = FIRST_ROWS, 5 * FIRST_ROWS
    for q, size, count_all, most in (
        ("service:s", 9, False, first),
        ("has:service -service:t", 9, False, first),
        ("status:<500", first // 2 + 999, False, second),
        ("status:<500", 9, True, 65_536),
        ("service:s", 40_000, False, 65_536),
    ):
        sort = parse_sort((f"offset:{'asc' if ascending else 'desc'}",), config, False)
        predicate = bind_search(q, config).predicate
        ask = Ask(config=config, version=1, predicate=predicate, sort=sort, size=size, count_all=count_all)
        found, expected = search([part(whole, described)], ask, plenty()), search([scan], ask, plenty())
        assert found.hits == expected.hits, q
        assert found.coverage.looked_at == most, q
        assert found.matched == expected.matched or not count_all


def test_what_was_found_in_an_index_file_is_remembered_as_long_as_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    rows = [Entry(n, {"eventTime": n, "status": n % 5, "message": "a"}, 1) for n in range(64)]
    opened, result_cache, judged = [index_file(described, rows, block_rows=8)], ResultCache(25_000), list[int]()
    look = IndexFilePart._look

    def watched(self: IndexFilePart, *given: Any) -> None:
        judged.append(1)
        look(self, *given)

    monkeypatch.setattr(IndexFilePart, "_look", watched)

    def ask(q: str, budget: Budget | None = None, *removed: tuple[int, int], last: int = 63, **more: Any) -> list[int]:
        """The numbers that are found; whether anything was judged for them is in `judged`."""
        judged.clear()
        query = bind_search(q, config)
        asked = Ask(
            config=config, version=1, predicate=query.predicate, sort=parse_sort((), config, False),
            **{"size": 9, **more},
        )  # fmt: skip
        answered = IndexFilePart(opened[0], Span(0, last, last + 1, "index"), plan_of(described), removed, result_cache)
        return [hit.number for hit in answered.search(asked, budget or plenty()).hits]

    expected = [63, 62, 61, 59, 58, 57, 56, 54, 53]
    moments = iter(range(100))
    assert ask("status:>=1", Budget(lambda: next(moments), 4.0, 1 << 60)) != expected, "its time was over"
    assert ask("status:>=1") == expected and judged
    assert ask("status:>=1") == expected and not judged
    # Whatever else is asked is found out, and what was removed since.
    assert ask("status:>=2")[0] == 63 and judged
    assert ask("status:>=1", last=60)[0] == 59 and judged
    assert ask("status:>=1", size=2) == expected[:2] and judged
    assert ask("status:>=1", after=(59,)) == [58, 57, 56, 54, 53, 52, 51, 49, 48] and judged
    assert ask("status:>=1", None, (63, 63))[0] == 62 and judged
    assert ask("status:>=1", None, (63, 63))[0] == 62 and judged
    # By now there were too many.
    assert ask("status:>=1") == expected and judged
    gone = weakref.ref(opened.pop())
    assert gone() is None, "what was found does not keep it"


def test_what_is_remembered_is_counted_with_its_texts() -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    rows = [Entry(n, {"service": "x" * 1000}, 1) for n in range(9)]
    for sort, is_kept in (((), True), (("service",), False)):
        whole, result_cache = index_file(described, rows), ResultCache(20_000)
        asked = Ask(
            config=config, version=1, predicate=bind_search("", config).predicate, sort=parse_sort(sort, config, False),
            size=9,
        )  # fmt: skip
        span = Span(0, 8, 9, "index")
        found = IndexFilePart(whole, span, plan_of(described), (), result_cache).search(asked, plenty())
        key = key_of(asked, 0, 9)
        assert key is not None and len(found.hits) == 9
        assert (result_cache.get(whole, key) is found) == is_kept


def test_an_index_file_with_nothing_behind_the_page_before_is_not_looked_into() -> None:
    described = registry(LOGS)
    config = described.search_config
    assert config is not None
    entries = [Entry(number, {"eventTime": number, "duration": number % 5}, 1) for number in range(240)]
    parts = [part(index_file(described, entries[at : at + 60], block_rows=20), described) for at in range(0, 240, 60)]
    ask = Ask(
        config=config, version=1, predicate=bind_search("duration:>=0", config).predicate,
        sort=parse_sort(("duration:asc",), config, False), size=9, after=(1, 200),
    )  # fmt: skip
    found = search(parts, ask, plenty())
    assert found.hits == search([Scan(Entries(Span(0, 239, 240), entries))], ask, plenty()).hits
    # All have a duration of 0, which came on pages before; entries with 1 in the older half are behind the hits.
    assert [hit.number for hit in found.hits] == list(range(196, 155, -5))
    assert found.coverage.looked_at == 72
