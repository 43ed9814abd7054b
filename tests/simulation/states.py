"""The content of an engine, to compare a stopped engine with the one that was started behind it."""

from typing import Any

from tests.simulation.oracle import Broken
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.model.topic_config import encode_config

State = dict[str, tuple[Any, ...]]


def state_of(engine: Engine) -> State:
    """Every topic whose records a stop keeps."""
    core = engine.core
    topics = {**core.topics, **{i: core.peek_at(i) for i in core.pager.places.by_id if core.pager.is_paged_out(i)}}
    return {t.name: _of(engine, t) for t in topics.values() if t is not None and t.config.durability.logged}


def _of(engine: Engine, topic: Topic) -> tuple[Any, ...]:
    lost = [(lost.from_seq, lost.to_seq, lost.reason) for lost in topic.lost or ()]
    # The state of streams and queues contains moments that are renewed in memory, with a grace behind a start.
    parts = {n: part if n not in ("stream", "queue") else b"" for n, part in engine.core.features.save(topic).items()}
    counted = (topic.head, topic.earliest, topic.evict_floor, topic.cap_floor, topic.live_count, topic.live_bytes)
    return (topic.id, topic.epoch, encode_config(topic.config), *counted, lost, topic.next_base, parts)


def check_same(before: State, after: State) -> None:
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            pairs = zip(before.get(name, ()), after.get(name, ()), strict=False)
            differing = [pair for pair in pairs if pair[0] != pair[1]]
            raise Broken(f"{name}: was and is after a stop: {differing or (before.get(name), after.get(name))}")
