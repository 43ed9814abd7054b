"""Searching streams: the delivery of answers, the work of a filtered read, and the counters."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.conftest import append as append_records
from tests.unit.routers.conftest import route
from tests.unit.search.helpers import CONFIG, LOGS
from tests.unit.streams.conftest import append, create, slice_of
from tests.unit.streams.describing import JSON, update
from tests.unit.transactions.conftest import begin, commit, stage
from topics.api.v1.search_requests import SearchBody, bind_request
from topics.engine.engine import Engine
from topics.model.errors import (
    InvalidRequestError,
    SearchUnavailableError,
    ThrottledError,
    TopicNotFoundError,
    TopicsError,
)
from topics.search.service import backend, filtered_read, index_feed, query_execution, search_service
from topics.search.service.backend import InlineSearcher, ResultDone
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import Add, AskMessage, Drop, Finish, Head, More, Open, Question, SearchQuery, Trim
from topics.streams.stream_state import Position
from topics.streams.streams import Streams


class Watched(InlineSearcher):
    """Reports the messages sent, and may refuse or have no room."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.sent: list[Head] = []
        self.gone = False
        self.room = True
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_writable(self) -> bool:  # type: ignore[override]
        return self.room

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None:
        if self.gone:
            raise SearchUnavailableError("gone")
        self.sent.append(head)
        super().send(head, body)

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()) -> None:
        self.sent.append(make(0))
        super().ask(make, done, body)

    def kinds(self) -> list[type]:
        kinds, self.sent = [type(head) for head in self.sent], []
        return kinds


class Timers:
    """Runs due calls at once, and the rest on request."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        if not seconds:
            function()
            return lambda: None
        self.due.append(function)
        return lambda: self.due.remove(function) if function in self.due else None

    def pass_time(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


class World:
    def __init__(self, engine: Engine, now: Callable[[], float] = lambda: 0.0, **limits: int) -> None:
        self.searcher, self.timers = Watched(), Timers()
        search = StreamSearch(engine, self.searcher, self.timers, now, **limits)  # type: ignore[arg-type]
        self.streams = Streams(engine, search=search)

    def describe(self, name: str) -> None:
        create(self.streams, name, JSON)
        update(self.streams, name, schema={"type": "object"}, search=LOGS)

    def put(self, name: str, *statuses: int) -> None:
        append(self.streams, name, json.dumps([{"status": status} for status in statuses]).encode(), JSON)

    def ask(
        self,
        name: str,
        q: str = "",
        timeout_s: float = 3.0,
        sort: tuple[str, ...] = (),
        size: int = 50,
        after: list[Any] | None = None,
        ranked: bool = False,
    ) -> list[Any]:
        answers: list[Outcome | TopicsError] = []
        query = SearchQuery(q, sort, size, after, False, ranked)
        self.streams.search.query(self.streams.topic(name), query, timeout_s, answers.append)
        return answers

    def found(self, name: str, q: str = "") -> list[int]:
        (outcome,) = self.ask(name, q)
        assert isinstance(outcome, Outcome), outcome
        return [hit.seq for hit in outcome.result.hits]


@pytest.fixture
def world(streams: Streams) -> World:
    world = World(streams.engine)
    world.describe("a")
    return world


def test_entries_are_sent_once(world: World) -> None:
    world.put("a", 1, 2)
    assert world.found("a") == [2, 1]
    assert world.searcher.kinds() == [Open, Add, AskMessage]
    assert world.found("a") == [2, 1]
    assert world.searcher.kinds() == [AskMessage]
    world.put("a", 3)
    assert world.found("a") == [3, 2, 1]
    assert world.searcher.kinds() == [Add, AskMessage]


def test_another_description_is_another_index(world: World) -> None:
    world.put("a", 1)
    assert world.found("a") == [1]
    world.searcher.kinds()
    update(world.streams, "a", search=LOGS)
    assert world.found("a") == [1]
    assert world.searcher.kinds() == [Drop, Open, Add, AskMessage]


def test_a_process_that_was_lost_is_sent_everything_again(world: World) -> None:
    world.put("a", 1)
    assert world.found("a") == [1]
    world.searcher.kinds()
    world.searcher.generation = 5
    assert world.found("a") == [1]
    assert world.searcher.kinds() == [Open, Add, AskMessage]


def test_without_time_there_is_no_question(world: World) -> None:
    world.put("a", 1, 2)
    (outcome,) = world.ask("a", timeout_s=0)
    assert (outcome.missed, outcome.first_missed, outcome.spent, outcome.complete) == (2, 1, "time", False)
    assert world.searcher.kinds() == []


def test_late_query_returns_partial_hits_and_counts_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_feed, "PACK_RECORDS", 2)
    world.put("a", 1, 2)
    world.put("a", 3, 4, 5)
    assert world.found("a") == [5, 4, 3, 2, 1]
    world.put("a", 6)
    world.searcher.room = False
    answers = world.ask("a")
    assert answers == []
    world.timers.pass_time()
    (outcome,) = answers
    assert [hit.seq for hit in outcome.result.hits] == [5, 4, 3, 2, 1]
    assert (outcome.missed, outcome.missed_tail, outcome.first_missed, outcome.spent) == (1, 1, 6, "time")
    # A query in progress continues, and the next one finds it.
    world.searcher.room = True
    for callback in world.searcher.waiting:
        callback()
    assert world.found("a") == [6, 5, 4, 3, 2, 1]
    assert len(answers) == 1


def test_a_searcher_that_is_gone_is_notified(world: World) -> None:
    world.put("a", 1)
    world.searcher.gone = True
    with pytest.raises(SearchUnavailableError):
        world.ask("a")
    world.searcher.gone = False
    assert world.found("a") == [1]
    world.put("a", 2)
    world.searcher.gone = True
    (error,) = world.ask("a")
    assert isinstance(error, SearchUnavailableError)
    world.searcher.gone = False
    assert world.found("a") == [2, 1]


def test_unused_index_is_evicted(streams: Streams) -> None:
    world = World(streams.engine, memory_bytes=1)
    for name in ("a", "b"):
        world.describe(name)
        world.put(name, 1)
    assert world.found("a") == [1]
    assert world.found("b") == [1]
    assert world.searcher.kinds() == [Open, Add, AskMessage, Open, Drop, Add, AskMessage]
    assert world.found("a") == [1]
    assert world.searcher.kinds() == [Open, Drop, Add, AskMessage]


def test_an_index_that_is_only_filtered_by_takes_room_as_well(streams: Streams) -> None:
    world = World(streams.engine, memory_bytes=3 * index_feed.EMPTY_BYTES)
    for name in "abcde":
        world.describe(name)
        world.put(name, 1)
        assert slice_of(world.streams, name, filter="status:1").count == 1
    assert world.searcher.kinds().count(Drop) == 2


def statuses(outcome: Outcome) -> list[int]:
    return [hit.seq for hit in outcome.result.hits]


@pytest.fixture
def old(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> World:
    """A stream of twenty entries of which an index holds the last few, and of which two are scanned at a time."""
    monkeypatch.setattr(backend, "PACK_RECORDS", 2)
    world = World(streams.engine, stream_bytes=120)
    world.describe("a")
    for status in range(20):
        world.put("a", status)
    return world


def test_entries_outside_the_index_are_scanned(old: World) -> None:
    (outcome,) = old.ask("a")
    assert statuses(outcome) == list(range(20, 0, -1))
    assert outcome.complete and outcome.first > 10
    assert outcome.result.scanned == outcome.first - 1 and outcome.looked_at_in_memory == 21 - outcome.first
    assert max(part.last for part in outcome.scanned) == outcome.first - 1
    assert old.searcher.kinds().count(More) == len(outcome.scanned) > 3


def test_a_page_is_scanned_for_no_further_than_it_takes(old: World) -> None:
    (outcome,) = old.ask("a", size=2)
    assert statuses(outcome) == [20, 19]
    assert not outcome.scanned and outcome.complete
    (outcome,) = old.ask("a", "status:<10", size=3)
    assert statuses(outcome) == [10, 9, 8]
    assert min(part.first for part in outcome.scanned) >= 5
    assert outcome.complete and not outcome.missed
    (outcome,) = old.ask("a", sort=("offset:asc",), size=3)
    assert statuses(outcome) == [1, 2, 3]
    assert max(part.last for part in outcome.scanned) <= 4
    (outcome,) = old.ask("a", sort=("offset:asc",), size=50)
    assert statuses(outcome) == list(range(1, 21))


def test_what_does_not_fit_into_the_index_after_all_is_scanned_before_it(old: World) -> None:
    """The size estimate of an index counts the payloads of entries, and they are sent with their envelopes."""
    engine = old.streams.engine
    for stream_bytes in range(100, 2_000, 100):
        world = World(engine, stream_bytes=stream_bytes)
        (outcome,) = world.ask("a", sort=("offset:asc",), size=50)
        assert statuses(outcome) == list(range(1, 21)) and outcome.complete


def test_the_last_part_of_a_query_brings_its_answer(old: World) -> None:
    for sort, size in (((), 50), ((), 12), (("offset:asc",), 50), (("offset:asc",), 3)):
        (outcome,) = old.ask("a", sort=sort, size=size)
        assert len(statuses(outcome)) == min(size, 20) and outcome.complete
        kinds = old.searcher.kinds()
        assert More in kinds and Finish not in kinds


def test_a_later_page_does_not_scan_what_was_on_an_earlier_one(old: World) -> None:
    (outcome,) = old.ask("a", size=3, after=[9])
    assert statuses(outcome) == [8, 7, 6]
    assert max(part.last for part in outcome.scanned) == 8
    (outcome,) = old.ask("a", sort=("offset:asc",), size=3, after=[4])
    assert statuses(outcome) == [5, 6, 7]
    assert min(part.first for part in outcome.scanned) == 5
    (outcome,) = old.ask("a", sort=("offset:asc",), size=3, after=[20])
    assert statuses(outcome) == [] and outcome.complete


def test_a_scan_ends_with_its_budget_and_reports_what_it_left_out(streams: Streams, old: World) -> None:
    world = World(streams.engine, stream_bytes=120, scan_bytes=300)
    (outcome,) = world.ask("a")
    found = statuses(outcome)
    assert found == list(range(20, 20 - len(found), -1)) and 5 < len(found) < 20
    assert (outcome.missed, outcome.first_missed, outcome.spent) == (20 - len(found), 1, "bytes")
    assert not outcome.complete and outcome.scanned_bytes <= 300
    (outcome,) = world.ask("a", sort=("offset:asc",))
    found = statuses(outcome)
    assert found == list(range(1, len(found) + 1)) and 1 < len(found) < 20
    assert (outcome.missed, outcome.first_missed) == (20 - len(found), len(found) + 1)
    assert world.streams.search.stats().out_of_bytes == 2
    (outcome,) = world.ask("a", size=2)
    assert outcome.complete, "what is not needed is not missed"


def write_messages(world: World, count: int) -> None:
    world.describe("a")
    for number in range(count):
        append(world.streams, "a", json.dumps([{"message": "card " * (1 + number % 3)}]).encode(), JSON)


def test_a_ranking_takes_half_of_each_budget_for_counting(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PACK_RECORDS", 2)
    world = World(streams.engine, stream_bytes=120)
    write_messages(world, 20)
    (whole,) = world.ask("a", "message:card", ranked=True)
    assert whole.complete and whole.statistics == (20, sum(1 + n % 3 for n in range(20)), 20)
    assert world.ask("a", "message:card")[0].scanned_bytes * 2 == whole.scanned_bytes
    small = World(streams.engine, stream_bytes=120, scan_bytes=whole.scanned_bytes // 2)
    (outcome,) = small.ask("a", "message:card", ranked=True)
    assert outcome.spent == "bytes" and not outcome.complete and outcome.scanned_bytes <= whole.scanned_bytes // 2
    assert outcome.missed == 20 - outcome.statistics[0] == 20 - len(outcome.result.hits) > 0
    assert outcome.first_missed == 1


def test_a_ranking_ends_with_its_time(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PACK_RECORDS", 2)
    write_messages(World(streams.engine), 20)
    late: list[Outcome] = []
    for ticks in range(1, 200):
        clock = iter([0.0] * ticks + [9.0] * 200)
        world = World(streams.engine, now=lambda clock=clock: next(clock), stream_bytes=120)  # type: ignore[misc]
        (outcome,) = world.ask("a", "message:card", ranked=True)
        if outcome.spent is None:
            break
        late.append(outcome)
    assert outcome.complete and len(outcome.result.hits) == 20
    assert all(one.spent == "time" and one.missed >= 20 - len(one.result.hits) and not one.complete for one in late)
    # Some were late while they counted, others behind it.
    assert {sum(one.statistics[:1]) == 20 for one in late} == {True, False}


def test_a_ranking_without_words_counts_nothing(old: World) -> None:
    (outcome,) = old.ask("a", "status:>=0", ranked=True)
    assert outcome.complete and outcome.statistics == () and len(outcome.result.hits) == 20


def test_a_scan_ends_with_its_time(old: World) -> None:
    clock = iter([0.0] * 6 + [9.0] * 100)
    world = World(old.streams.engine, now=lambda: next(clock), stream_bytes=120)
    (outcome,) = world.ask("a")
    found = statuses(outcome)
    assert outcome.spent == "time" and outcome.missed == 20 - len(found) > 0
    assert outcome.first_missed == 1


def test_stretches_are_cut_again_where_entries_are_larger_than_they_seemed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_execution, "PACK_BYTES", 400)
    world = World(streams.engine, stream_bytes=10)
    world.describe("a")
    sizes = [300, 300, 300, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    body = [{"status": index, "pad": "x" * size} for index, size in enumerate(sizes)]
    append(world.streams, "a", json.dumps(body).encode(), JSON)
    for sort, expected in (((), range(12, 0, -1)), (("offset:asc",), range(1, 13))):
        (outcome,) = world.ask("a", "has:status", sort=sort)
        assert statuses(outcome) == list(expected)
        (outcome,) = world.ask("a", "has:status", sort=sort, size=5)
        assert statuses(outcome) == list(expected)[:5]


def test_a_window_moves_with_a_stream_that_grows(streams: Streams) -> None:
    world = World(streams.engine, stream_bytes=600)
    world.describe("a")
    sent = 0
    for status in range(60):
        world.put("a", status)
        (outcome,) = world.ask("a")
        assert len(statuses(outcome)) == min(status + 1, 50) and outcome.complete
        kinds = world.searcher.kinds()
        assert kinds.count(Open) == (not status), "nothing is indexed twice"
        sent += kinds.count(Trim)
    assert sent > 3
    assert outcome.first > 10


def test_a_read_that_fails_ends_the_query(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise TopicNotFoundError("a")

    old.found("a")
    old.searcher.kinds()
    monkeypatch.setattr(old.streams.engine, "read_as", failing)
    (error,) = old.ask("a")
    assert isinstance(error, TopicNotFoundError)
    assert old.searcher.kinds() == [AskMessage, Finish]


def test_a_stream_without_a_description_is_refused(streams: Streams) -> None:
    create(streams, "plain", JSON)
    with pytest.raises(InvalidRequestError, match="no search fields"):
        streams.search.query(streams.topic("plain"), SearchQuery("", (), 5), 3.0, lambda _: None)


def test_a_filtered_read_stops_when_it_has_looked_at_enough(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len('{"status": 1}')
    monkeypatch.setattr(filtered_read, "SCAN_BYTES", 3 * size)
    monkeypatch.setattr(filtered_read, "PACK_RECORDS", 3)
    world.put("a", *[1] * 8)
    part = slice_of(world.streams, "a", filter="status:2")
    assert (part.count, part.position, part.scan_limit_bytes) == (0, Position(3), 3 * size)
    part = slice_of(world.streams, "a", part.position, filter="status:2")
    assert (part.position, part.scan_limit_bytes) == (Position(6), 3 * size)
    part = slice_of(world.streams, "a", part.position, filter="status:2")
    assert (part.position, part.scan_limit_bytes, part.at_tail) == (Position(8), None, True)
    assert world.streams.search.stats().scanned_bytes == 8 * size


def test_a_filtered_read_gives_no_more_than_fits(world: World) -> None:
    world.put("a", *[1, 2] * 5)
    part = slice_of(world.streams, "a", filter="status:1", max_bytes=30)
    assert (part.count, part.position) == (2, Position(4)), "the third would not fit"
    part = slice_of(world.streams, "a", part.position, filter="status:1", max_bytes=1)
    assert (part.count, part.position) == (1, Position(6)), "one always does"
    part = slice_of(world.streams, "a", Position(0), filter="status:1", up_to=3)
    assert (json.loads(part.body), part.position) == ([{"status": 1}] * 2, Position(3))


def test_a_filter_that_the_stream_no_longer_knows_is_refused(world: World) -> None:
    fields = {"eventTime": LOGS["fields"]["eventTime"]}
    update(world.streams, "a", search={"primaryTimestampField": "eventTime", "fields": fields})
    with pytest.raises(InvalidRequestError, match="not indexed"):
        slice_of(world.streams, "a", filter="status:1")


def test_entries_that_are_too_large_for_one_answer_make_a_shorter_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_service, "ANSWER_BYTES", 20)
    world.put("a", 1, 2, 3, 4)
    answers: list[Any] = []
    world.streams.search.fetch(world.streams.topic("a"), [4, 2, 1], answers.append)
    assert answers[0][:2] == ({4: b'{"status": 4}', 2: b'{"status": 2}'}, 2)
    world.streams.search.fetch(world.streams.topic("a"), [], answers.append)
    assert answers[1][:2] == ({}, 0)


def test_a_field_is_shown_once_however_often_it_is_named(world: World) -> None:
    """Every hit looks at every name, and a request of a megabyte has a hundred thousand."""
    body = SearchBody(fields=["status", "message"] * 1000, highlight=["message"] * 1000)
    asked = bind_request(body, world.streams.topic("a"), CONFIG, 3000)
    assert asked.fields == ("status", "message")


def test_what_is_counted(world: World) -> None:
    world.put("a", 1, 2)
    world.found("a")
    world.ask("a", timeout_s=0)
    stats = world.streams.search.stats()
    assert (stats.queries, stats.entries, stats.out_of_time, stats.failures) == (2, 2, 1, 0)
    assert stats.memory_bytes > 0


def test_entries_are_indexed_before_anybody_asks(world: World) -> None:
    world.put("a", 1, 2)
    world.put("a", 3)
    assert world.searcher.kinds() == []
    world.timers.pass_time()
    assert world.searcher.kinds() == [Open, Add]
    assert world.found("a") == [3, 2, 1]
    assert world.searcher.kinds() == [AskMessage]
    world.put("a", 4)
    world.timers.pass_time()
    world.timers.pass_time()
    assert world.searcher.kinds() == [Add]
    assert world.timers.due == [], "who has nothing to do sleeps"


def by_topic_append(engine: Engine) -> None:
    append_records(engine, "a", {"status": 7})


def by_router(engine: Engine) -> None:
    append_records(engine, "source", {"status": 7})
    route(engine, "source", "a", from_seq=0)


def by_transaction(engine: Engine) -> None:
    begin(engine)
    stage(engine, "a", {"status": 7})
    commit(engine)


@pytest.mark.parametrize("write", [by_topic_append, by_router, by_transaction])
def test_entries_are_indexed_whoever_wrote_them(world: World, write: Callable[[Engine], None]) -> None:
    write(world.streams.engine)
    assert world.searcher.kinds() == []
    world.timers.pass_time()
    assert world.searcher.kinds() == [Open, Add]
    assert world.found("a", "status:7") == [1]
    assert world.searcher.kinds() == [AskMessage]


def test_streams_take_turns_at_being_indexed(world: World) -> None:
    world.describe("b")
    create(world.streams, "plain", JSON)
    world.put("a", 1)
    world.put("b", 1)
    append(world.streams, "plain", b"[1]", JSON)
    world.timers.pass_time()
    assert world.searcher.kinds() == [Open, Add]
    world.timers.pass_time()
    assert world.searcher.kinds() == [Open, Add]
    world.timers.pass_time()
    assert world.searcher.kinds() == []


def test_unrequested_indexes_do_not_evict_requested_ones(streams: Streams) -> None:
    world = World(streams.engine, memory_bytes=100)
    world.describe("a")
    world.describe("b")
    world.put("a", 1)
    assert world.found("a") == [1]
    world.searcher.kinds()
    world.put("b", 1)
    world.put("a", 2)
    for _ in range(4):
        world.timers.pass_time()
    assert world.searcher.kinds() == [Add], "only the index that was asked for"
    assert world.found("b") == [1], "who asks gets one"
    assert Drop in world.searcher.kinds()


def test_a_stream_that_is_gone_is_not_indexed(world: World) -> None:
    world.put("a", 1)
    world.streams.delete("a", lambda _: None)
    world.timers.pass_time()
    assert world.searcher.kinds() == []
    world.describe("a")
    world.put("a", 7)
    world.searcher.gone = True
    world.timers.pass_time()
    world.searcher.gone = False
    world.put("a", 8)
    world.timers.pass_time()
    assert world.searcher.kinds() == [Open, Add]
    assert world.found("a") == [2, 1]


def test_there_are_only_so_many_queries_at_once(streams: Streams) -> None:
    world = World(streams.engine, max_queries=3, max_queries_per_tenant=2)
    world.describe("a")
    world.put("a", 1)
    world.searcher.room = False
    answers: list[Any] = []
    topic, query = world.streams.topic("a"), SearchQuery("", (), 5)

    def ask(tenant: str | None) -> None:
        world.streams.search.query(topic, query, 3.0, answers.append, tenant)

    ask("one")
    ask("one")
    with pytest.raises(ThrottledError) as refused:
        ask("one")
    assert refused.value.detail["limit"] == "max_searches_per_key"
    ask(None)
    with pytest.raises(ThrottledError) as refused:
        ask("other")
    assert refused.value.detail["limit"] == "max_searches"
    world.searcher.room = True
    for callback in world.searcher.waiting:
        callback()
    assert len(answers) == 3
    for _ in range(5):
        ask("one")
        world.searcher.gone = True
        world.streams.search.query(topic, query, 0.0, answers.append, "one")
        world.searcher.gone = False
    assert len(answers) == 13, "who was answered counts no more"


def test_what_indexes_take_is_the_sum_of_what_each_takes(streams: Streams) -> None:
    world = World(streams.engine, memory_bytes=40_000)
    feed = world.streams.search._feed
    for name in "abcdef":
        world.describe(name)
        world.put(name, 1, 2, 3)
        assert world.found(name) == [3, 2, 1]
        assert feed.memory_bytes == sum(known.memory_bytes for known in feed._indexes.values())
    assert len(feed._indexes) < 6
    dropped = feed.for_query(world.streams.topic("f"), world.streams.state(world.streams.topic("f")).description)  # type: ignore[union-attr,arg-type]
    update(world.streams, "f", search=LOGS)
    assert world.found("f") == [3, 2, 1]
    before = feed.memory_bytes
    feed.weigh(dropped, 1 << 20)
    assert feed.memory_bytes == before == sum(known.memory_bytes for known in feed._indexes.values())
