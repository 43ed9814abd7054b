"""Random histories of topics and routers, held against the plainest model of forwarding there is.

In the model a record is copied the moment it is appended, from topic to topic, as far as routers lead. The engine does
the same on the caller's stack, and must look the same after every kill, clean stop, power cut and checkpoint: every
topic is of class fsync, so nothing may be missing.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.property.totals import check_totals
from tests.unit.conftest import append, checkpoint, delete, drop, one, put, read
from tests.unit.routers.conftest import ask_route, ask_unroute
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.model.errors import TopicsError
from topics.model.records import Record
from topics.model.router_rules import Guarantee, TagMatch
from topics.model.topic_config import Durability
from topics.routers.routers import RouterPutResult
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

NAMES = "abcdef"
TAGS = (None, "x", "xy", "z")


@dataclass
class Copy:
    data: object
    tag: str | None
    node: str | None
    stamp: str | None = None
    """The router and the seq that the stamp in its meta names."""


@dataclass
class Rule:
    source: str
    dest: str
    rules: dict[str, Any]
    cursor: int


@dataclass
class ModelTopic:
    head: int = 0
    live: dict[int, Copy] = field(default_factory=dict)


class Model:
    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        self.rules: dict[str, Rule] = {}

    def append(self, name: str, records: list[Copy]) -> None:
        topic = self.topics.setdefault(name, ModelTopic())
        for record in records:
            topic.head += 1
            topic.live[topic.head] = record
        self.forward(name)

    def forward(self, name: str) -> None:
        topic = self.topics[name]
        for router, rule in list(self.rules.items()):
            if rule.source != name:
                continue
            waiting = [seq for seq in sorted(topic.live) if seq > rule.cursor]
            rule.cursor = topic.head
            copies = [
                copied(topic.live[seq], rule.rules, router, seq) for seq in waiting if passes(topic.live[seq], rule)
            ]
            if copies:
                self.append(rule.dest, copies)


def passes(record: Copy, rule: Rule) -> bool:
    match = rule.rules.get("filter")
    return match is None or match.matches(record.tag)


def copied(record: Copy, rules: dict[str, Any], router: str, seq: int) -> Copy:
    stamp = f"{router}/{seq}" if rules.get("guarantee") is Guarantee.EXACTLY_ONCE else record.stamp
    return Copy(
        record.data,
        record.tag if rules.get("preserve_tag", True) else None,
        record.node if rules.get("preserve_node", True) else None,
        stamp,
    )


def shown(engine: Engine, name: str) -> dict[int, Copy]:
    found: dict[int, Copy] = {}
    result = read(engine, name, include_tags=True, max_bytes=1 << 30)
    assert result.tombstone is None, result.tombstone
    for record in result.records():
        meta: Any = record.get("meta")
        stamp = meta and f"{meta['_topics_router']['router']}/{meta['_topics_router']['source_seq']}"
        seq, tag, node = record["$seq"], record.get("$tag"), record.get("$node")
        assert isinstance(seq, int) and isinstance(tag, str | None) and isinstance(node, str | None)
        found[seq] = Copy(record["data"], tag, node, stamp or None)
    return found


names = st.sampled_from(NAMES)
rules_of = st.fixed_dictionaries(
    {},
    optional={
        "filter": st.sampled_from([TagMatch("x"), TagMatch("x", True)]),
        "preserve_tag": st.booleans(),
        "preserve_node": st.booleans(),
        "guarantee": st.sampled_from(Guarantee),
    },
)
steps_of = st.lists(
    st.one_of(
        st.tuples(st.just("append"), names, st.integers(1, 5), st.sampled_from(TAGS), st.sampled_from([None, "n"])),
        st.tuples(st.just("append"), names, st.integers(1, 5), st.sampled_from(TAGS), st.none()),
        st.tuples(st.just("delete"), names, st.integers(1, 30)),
        st.tuples(st.just("route"), names, names, rules_of, st.sampled_from([None, None, 0])),
        st.tuples(st.just("route"), names, names, rules_of, st.none()),
        st.tuples(st.just("unroute"), names, names),
        st.tuples(st.just("drop"), names),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("restart"), st.sampled_from(["kill", "cut", "stop"])),
    ),
    min_size=5,
    max_size=40,
)


class Play:
    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.disk = FakeDisk()
        self.boot = self.lives = 0
        self.model = Model()
        self.value = 0
        self.engine = self.open()

    def open(self) -> Engine:
        options = EngineOptions(data_dir="data", wal_shards=self.shards, wal_file_bytes=4096, segment_max_events=7)
        # Each life has its own entropy, so that random values never repeat.
        self.lives += 1
        return Engine.recover(self.disk, options, ManualClock(), SeededEntropy(self.lives), boot_id=str(self.boot))

    def step(self, kind: str, *given: Any) -> None:
        getattr(self, kind)(*given)
        for name, topic in self.model.topics.items():
            assert shown(self.engine, name) == topic.live, name
            assert self.engine.info(name).head_seq == topic.head
        assert {info.router for info in self.engine.list_routers()} == set(self.model.rules)
        check_totals(self.engine)

    def exists(self, name: str) -> None:
        if name not in self.model.topics:
            put(self.engine, name, durability=Durability.FSYNC)
            self.model.topics[name] = ModelTopic()

    def append(self, name: str, count: int, tag: str | None, node: str | None) -> None:
        self.exists(name)
        values = [self.value + place for place in range(count)]
        self.value += count
        append(self.engine, name, *[Record.of(value, tag=tag, node=node) for value in values])
        self.model.append(name, [Copy(value, tag, node) for value in values])

    def delete(self, name: str, before: int) -> None:
        self.exists(name)
        delete(self.engine, name, before_seq=before)
        live = self.model.topics[name].live
        self.model.topics[name].live = {seq: record for seq, record in live.items() if seq >= before}

    def route(self, source: str, dest: str, rules: dict[str, Any], from_seq: int | None) -> None:
        for name in (source, dest):
            self.exists(name)
        name = f"{source}->{dest}"
        if rules.get("guarantee") is Guarantee.EXACTLY_ONCE:
            from_seq = None  # The content that it would find itself belongs to another test.
        try:
            result = one(ask_route(self.engine, source, dest, from_seq=from_seq, **rules), RouterPutResult)
        except TopicsError:
            return
        if result.created:
            topic = self.model.topics[source]
            self.model.rules[name] = Rule(source, dest, rules, topic.head if from_seq is None else 0)
            self.model.forward(source)
        else:
            self.model.rules[name].rules = rules

    def unroute(self, source: str, dest: str) -> None:
        ask_unroute(self.engine, f"{source}->{dest}")
        self.model.rules.pop(f"{source}->{dest}", None)

    def drop(self, name: str) -> None:
        drop(self.engine, name)
        self.model.topics.pop(name, None)
        self.model.rules = {key: rule for key, rule in self.model.rules.items() if name not in (rule.source, rule.dest)}

    def checkpoint(self) -> None:
        checkpoint(self.engine)

    def restart(self, how: str) -> None:
        if how == "stop":
            self.engine.close_inline()
            self.disk = self.disk.clone()
        else:
            self.disk = self.disk.crash(Survival.NOTHING if how == "cut" else Survival.EVERYTHING)
            self.boot += how == "cut"
        self.engine = self.open()
        self.engine.routing.kick()


@effort(300)
@given(steps_of, st.integers(1, 3))
def test_a_history_looks_like_its_model(steps: list[tuple[Any, ...]], shards: int) -> None:
    play = Play(shards)
    for step in steps:
        note(str(step))
        play.step(*step)
