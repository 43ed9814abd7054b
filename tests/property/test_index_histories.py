"""Random lives of a stream whose sealed entries have companions: real files, made and merged by the pipeline, between
appends, deletes, evolutions, new descriptions, forks, kills and moves to an object store. Wherever entries of the
stream are - in merged companions, in single ones, in segments without one or in the tail, local or remote - the answers
equal the answers of a plain filter."""

import json
from functools import partial
from typing import Any, NamedTuple

import msgspec
from hypothesis import event, given, note
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.property.search_model import WORDS, SortItems, configs, plain_search, queries, sorts
from tests.property.test_search_laws import plenty
from tests.property.test_stream_search_laws import OPTIONS, Life
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import tiered
from topics.model.router_rules import DeleteSelector, parse_match
from topics.schema.search_fields import SearchConfig
from topics.search.query.aggregate import parse_aggregation, show
from topics.search.query.plan import Entries, Entry, Span, aggregate
from topics.search.query.predicates import Node, print_query
from topics.search.query.scan import Scan
from topics.search.service.index_file_cache import Fetched
from topics.search.worker.messages import AggregateQuery, KeysQuery
from topics.spark.index_builds.index_plan import RETIRE_MS
from topics.testing import FolderStore

rows = st.fixed_dictionaries(
    {
        "key": st.sampled_from(WORDS),
        "word": st.sampled_from(WORDS),
        "int": st.integers(-2, 3),
        "num": st.sampled_from((0, 1, 0.25)),
        "time": st.sampled_from((0, 1, 59_999, 60_000, 3_600_000)),
    }
)
appends = st.tuples(st.just("append"), st.lists(rows, min_size=2, max_size=5))
others = st.tuples(
    st.sampled_from(
        (
            "delete",
            "delete before",
            "delete all",
            "evolve",
            "kill",
            "checkpoint",
            "fork",
            "look",
            "describe",
            "index",
            "relocate",
            "tidy",
        )
    )
)
indexings = st.sampled_from((("index",), ("relocate",)))
lives = st.lists(st.one_of(appends, others, indexings), min_size=4, max_size=12)
COLD = "s3://bucket/cold"


class Case(NamedTuple):
    config: SearchConfig
    steps: list[tuple[Any, ...]]
    held_bytes: int
    cache_bytes: int
    asked: list[tuple[Node | None, SortItems, int]]
    is_grouped: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(configs())
    asked = st.tuples(st.one_of(st.none(), queries(config)), sorts(config), st.integers(1, 4))
    first = [draw(appends), ("index",)]
    return Case(
        config,
        [*first, *draw(lives)],
        draw(st.sampled_from((0, 100, 400))),
        draw(st.sampled_from((0, 12_000, 1 << 24))),
        draw(st.lists(asked, min_size=4, max_size=4)),
        draw(st.booleans()),
    )


class IndexedLife(Life):
    described = 0
    layout = Layout("data", COLD)
    options = msgspec.structs.replace(OPTIONS, cold_dir=COLD, hot_retain_segments=0)

    def __init__(self, config: SearchConfig, held_bytes: int, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        super().__init__(config, held_bytes)

    def files(self) -> FileSystem:
        return tiered(self.disk, COLD, FolderStore(self.disk, "bucket"), LocalCopies(self.disk, "data/near", 1 << 20))

    def relocate(self) -> None:
        """Moves segments to the store, and the companions behind them; those in the data folder go."""
        for topic in list(self.engine.core.directory.resident.values()):
            self.engine.run_job(self.engine.housekeeper.relocate(topic))
        self.index()
        self.clock.advance(RETIRE_MS)
        self.index()

    def take(self, step: tuple[Any, ...]) -> None:
        if step[0] == "describe":
            self.describe()
        elif step[0] == "relocate":
            self.relocate()
        elif step[0] == "tidy":
            self.engine.second_passed.emit()
        elif step[0] == "delete all":
            # Segments are gone as a whole then.
            for tag in ("odd", "even"):
                selector = DeleteSelector(None, parse_match(tag))
                self.ask(partial(self.engine.delete_records, self.name, selector))
        else:
            super().take(step)

    def describe(self) -> None:
        """A description with one more field: another plan, by which everything must be indexed again."""
        self.described += 1
        registry = self.streams.contract(self.name).registry
        assert registry.search is not None
        document = json.loads(registry.search)
        document["fields"][f"more{self.described}"] = document["fields"]["int"]
        body = json.dumps({"search": document}).encode()
        self.ask(lambda done: self.streams.update_schema(self.name, body, done))


@given(cases())
@effort(160)
def test_the_answers_are_those_of_a_plain_filter(case: Case) -> None:
    life = IndexedLife(case.config, case.held_bytes, case.cache_bytes)
    for step in case.steps:
        life.take(step)
    live = life.live()
    seqs, values = list(live), list(live.values())
    note(f"{live}")
    indexed = 0
    for node, items, size in case.asked:
        expected = [(seqs[index], score) for index, score in plain_search(values, node, items, case.config)]
        found: list[tuple[int, float]] = []
        after = None
        while True:
            outcome = life.search(node, items, size, after)
            indexed += outcome.indexed_segments
            found += [(hit.seq, hit.score) for hit in outcome.result.hits]
            if not outcome.result.is_full:
                break
            after = outcome.result.hits[-1].place
        assert found == expected
        check_sums(life, node, case, live)
    topic = life.streams.topic(life.name)
    keys = life.ask(lambda done: life.streams.search.query(topic, KeysQuery(None, 9), 3.0, done))
    assert list(keys.result.keys) == sorted({"odd" if number_of(value) % 2 else "even" for value in values})
    cache = life.streams.search.index_files.cache if life.streams.search.index_files is not None else None
    fetched = cache is not None and cache.outcomes[Fetched.OK] > 0
    event(f"companions: {bool(indexed)}, fetched: {fetched}, forks: {bool(life.forks)}, version {life.version}")


def number_of(value: Any) -> int:
    number: int = value.get("number", value.get("id"))
    return number


def check_sums(life: Life, node: Node | None, case: Case, live: dict[int, Any]) -> None:

    dimensions = case.config.rollups["sums"].dimensions
    asked = {"rollup": "sums", "from": 0, "to": 3_600_000, "interval": "1m"}
    asked |= {"group_by": dimensions[:1] if case.is_grouped else [], "q": "" if node is None else print_query(node)}
    for body in (asked, {**asked, "q": ""}):
        raw = json.dumps(body).encode()
        outcome = life.ask(partial(life.streams.search.query, life.streams.topic(life.name), AggregateQuery(raw), 3.0))
        entries = [Entry(seq, value, 1) for seq, value in live.items()]
        ask = parse_aggregation(raw, case.config, 1)
        expected = aggregate([Scan(Entries(Span(0, 1 << 40, len(entries)), entries))], ask, plenty())
        assert outcome.result.buckets == show(expected.groups, ask)
