"""Random lives of a stream that is searched: whatever was appended, deleted, forked, described anew, sealed or read
back after a kill, a search finds what a plain filter over its live entries finds, and so does a filtered read."""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import msgspec
from hypothesis import event, given, note
from hypothesis import strategies as st

from tests.property.bm25_model import Bm25
from tests.property.effort import effort
from tests.property.search_model import SortItems, configs, entries, judge, plain_search, queries, sorts
from topics.engine.background_jobs import InlineRunner
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.router_rules import DeleteSelector, parse_match
from topics.schema.search_fields import SearchConfig
from topics.search.query.predicates import Clause, Node, Text, bind_filter, print_query
from topics.search.service.backend import InlineSearcher, at_once
from topics.search.service.index_file_cache import IndexFileCache, IndexFiles
from topics.search.service.query_execution import Outcome
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import Close, SearchQuery
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Pipeline
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_state import Position
from topics.streams.streams import Streams
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

LAYOUT = Layout("data")
OPTIONS = EngineOptions(data_dir="data", wal_shards=1, wal_file_bytes=65536, segment_max_events=4)
JSON = "application/json"
NUMBERED = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
RENAMED = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}
RENAME = {"op": "rename", "from": "/id", "to": "/number"}
ID = {
    "kind": "integer",
    "exact": True,
    "column": True,
    "sortable": True,
    "bindings": [{"version": 1, "jsonPointer": "/id"}, {"version": 2, "jsonPointer": "/number"}],
}

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.lists(entries.filter(lambda entry: isinstance(entry, dict)), min_size=1, max_size=3)
        ),
        st.tuples(st.just("append"), st.lists(st.just({"key": "a", "word": "a b"}), min_size=1, max_size=3)),
        st.tuples(
            st.sampled_from(
                ("delete", "delete before", "evolve", "kill", "checkpoint", "fork", "look", "index", "index")
            )
        ),
    ),
    max_size=9,
)


class Life:
    layout = LAYOUT
    options = OPTIONS
    cache_bytes = 0

    def __init__(self, config: SearchConfig, held_bytes: int = 1 << 27) -> None:
        """`held_bytes` of the stream are in the index; older entries are scanned."""
        self.disk, self.clock, self.held_bytes = FakeDisk(), ManualClock(), held_bytes
        self.name, self.forks, self.version, self.count = "s", 0, 1, 0
        self.open()
        self.ask(lambda done: self.streams.create(self.name, CreateRequest(content_type=JSON), done))
        document = msgspec.to_builtins(config)
        document["fields"]["ident"] = ID
        body = {"schema": NUMBERED, "search": document}
        self.ask(lambda done: self.streams.update_schema(self.name, json.dumps(body).encode(), done))

    def open(self) -> None:
        self.engine = Engine.recover(self.files(), self.options, self.clock, SeededEntropy(1), boot_id="a")
        now = self.clock.monotonic
        disk = self.disk
        searcher = InlineSearcher(now, lambda path: disk.open(path).map())
        # It looks at manifests each time it is asked.
        far, cache = self.engine.core.store.far, None
        if far is not None:
            cache = IndexFileCache(
                far, self.layout, self.cache_bytes, InlineRunner(), lambda path: searcher.send(Close(path))
            )
        index_files = IndexFiles(disk, self.layout, count().__next__, cache)
        search = StreamSearch(
            self.engine, searcher, at_once, now, stream_bytes=self.held_bytes, index_files=index_files
        )
        self.streams = Streams(self.engine, search=search)

    def files(self) -> FileSystem:
        return self.disk

    @staticmethod
    def ask(ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        ask(answers.append)
        if isinstance(answers[0], TopicsError):
            raise answers[0]
        return answers[0]

    def take(self, step: tuple[Any, ...]) -> None:
        what = step[0]
        if what == "append":
            self.append(step[1])
        elif what.startswith("delete"):
            head = self.streams.topic(self.name).head
            tag = None if "before" in what else parse_match("odd")
            before = head // 3 + 1 if "before" in what else None
            self.ask(lambda done: self.engine.delete_records(self.name, DeleteSelector(before, tag), done))
        elif what == "evolve" and self.version == 1:
            lens = {"apiVersion": "durable.lens/v1", "schema": self.name, "from": 1, "to": 2, "ops": [RENAME]}
            body = json.dumps({"schema": RENAMED, "lens": lens}).encode()
            self.ask(lambda done: self.streams.update_schema(self.name, body, done))
            self.version = 2
        elif what == "kill":
            self.disk = self.disk.crash(Survival.EVERYTHING)
            self.open()
        elif what == "checkpoint":
            self.engine.run_job(self.engine.checkpointer.job())
        elif what == "fork":
            self.forks += 1
            source, self.name = self.name, f"f{self.forks}"
            self.ask(lambda done: self.streams.create(self.name, CreateRequest(fork=ForkFrom(source)), done))
        elif what == "index":
            self.index()
        elif what == "look":
            # An index that is there already has to be brought up to date.
            self.search(None, [("offset", False)], 5)

    def index(self) -> None:
        """Seals everything, and lets the pipeline make companions of it and merge them."""
        for topic in self.engine.core.directory.resident.values():
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)
        self.engine.run_job(self.engine.checkpointer.job())
        fs = self.files()
        product = IndexProduct(fs, self.layout, IndexRules(fan_out=2), SeededEntropy(self.count))
        pipeline = Pipeline(fs, self.layout, [product], InlineExecutor(fs), self.clock)
        while pipeline.round():
            pass
        assert not pipeline.status.quarantined

    def append(self, values: list[dict[str, Any]]) -> None:
        for value in values:
            self.count += 1
            named = {"id" if self.version == 1 else "number": self.count, **value}
            request = AppendRequest(
                body=json.dumps([named]).encode(), content_type=JSON, key="odd" if self.count % 2 else "even"
            )
            self.ask(partial(self.streams.append, self.name, request))

    def read(self, position: Position, **more: Any) -> StreamSlice:
        topic = self.streams.topic(self.name)
        found = self.ask(lambda done: self.streams.read(topic, ReadSpec(position=position, **more), done))
        assert isinstance(found, StreamSlice)
        return found

    def live(self) -> dict[int, Any]:
        """The live entries by their seqs, as a plain read shows them."""
        found: dict[int, Any] = {}
        position, head = Position(0), self.streams.topic(self.name).head
        while position.counter < head:
            part = self.read(position, max_records=1)
            if part.count:
                found[part.position.counter] = json.loads(part.body)[0]
            assert part.position > position
            position = part.position
        return found

    def search(
        self, node: Node | None, items: SortItems, size: int, after: Any = None, ranked: bool = False,
        statistics: tuple[int, ...] = (),
    ) -> Outcome:  # fmt: skip
        sort = tuple(f"{name}:{'asc' if up else 'desc'}" for name, up in items)
        query = SearchQuery("" if node is None else print_query(node), sort, size, after, False, ranked, statistics)
        topic = self.streams.topic(self.name)
        outcome = self.ask(lambda done: self.streams.search.query(topic, query, 3.0, done))
        assert isinstance(outcome, Outcome)
        assert outcome.complete
        return outcome


cases = configs().flatmap(
    lambda config: st.tuples(st.just(config), st.one_of(st.none(), queries(config)), sorts(config))
)


@given(cases, steps, st.integers(1, 4), st.sampled_from((0, 60, 200, 1 << 27)), st.booleans())
@effort(160)
def test_a_search_finds_what_is_alive(
    case: tuple[SearchConfig, Node | None, SortItems],
    lived: list[tuple[Any, ...]],
    size: int,
    held_bytes: int,
    ranked: bool,
) -> None:
    config, node, items = case
    life = Life(config, held_bytes)
    for step in lived:
        life.take(step)
    live = life.live()
    seqs = list(live)
    note(f"{live}")
    score_of = Bm25(list(live.values()), config).score if ranked else None
    expected = [
        (seqs[index], score) for index, score in plain_search(list(live.values()), node, items, config, score_of)
    ]
    event(f"{min(len(expected), 3)} hits, {life.forks and 'forks'}, version {life.version}")
    found: list[tuple[int, float]] = []
    after = None
    statistics: tuple[int, ...] = ()
    while True:
        outcome = life.search(node, items, size, after, ranked, statistics)
        result, statistics = outcome.result, statistics or outcome.statistics
        found += [(hit.seq, hit.score) for hit in result.hits]
        if not result.is_full:
            break
        after = result.hits[-1].place
    assert found == expected
    for number in {entry.get("number", entry.get("id")) for entry in live.values() if isinstance(entry, dict)}:
        if isinstance(number, int):
            (hit, *_) = life.search(_id(number), [("offset", False)], 9).result.hits
            assert live[hit.seq].get("number" if life.version == 2 else "id") == number


def _id(number: int) -> Node:
    return Clause("ident", "", Text(str(number), True))


@given(cases, steps, st.integers(1, 4))
@effort(80)
def test_a_filtered_read_gives_what_is_alive(
    case: tuple[SearchConfig, Node | None, SortItems], lived: list[tuple[Any, ...]], size: int
) -> None:
    config, node, _ = case
    text = "has:ident" if node is None else print_query(node)
    try:
        bind_filter(text, config) if node is not None else None
    except InvalidRequestError:
        node, text = None, "has:ident"
    life = Life(config)
    for step in lived:
        life.take(step)
    live = life.live()
    expected = [entry for entry in live.values() if node is None or judge(node, entry, config) is not None]
    found: list[Any] = []
    position = Position(0)
    while True:
        part = life.read(position, filter=text, max_records=size)
        found += json.loads(part.body)
        assert part.count <= size
        if part.at_tail:
            break
        assert part.position > position
        position = part.position
    assert found == expected
