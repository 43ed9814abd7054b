"""The engine's own books: its running totals must equal a new count."""

from collections import Counter

from topics.engine.engine import Engine
from topics.engine.topic import Run, Segment, Topic, live_ranges
from topics.log.fs import FileSystem
from topics.log.segment_files import SegmentKey
from topics.model.topic_config import SERVER_TOPICS, TRANSACTIONS_TOPIC, Durability, TopicType, is_server_name
from topics.queues.queue_state import find_queue


def all_topics(engine: Engine) -> list[Topic]:
    """Every topic of the engine; sleeping ones are woken."""
    for name in list(engine.core.pager.names):
        engine.core.directory.load(name)
    return list(engine.core.topics.values())


def check_books(engine: Engine) -> None:
    check_totals(engine)
    topics = all_topics(engine)
    for topic in topics:
        _check_topic(engine, topic)
    assert list(engine.core.names) == sorted(topic.name for topic in topics)
    check_totals(engine)


def check_totals(engine: Engine) -> None:
    """The running totals equal the sums over all topics."""
    stats, awake = engine.stats(), list(engine.core.topics.values())
    assert stats.tail_bytes == sum(topic.tail_bytes for topic in awake)
    topics = [*awake, *map(engine.core.pager.peek, engine.core.pager.names)]
    # Topics that the server writes are counted apart, except for the staging of transactions.
    system = [topic for topic in topics if topic.name in SERVER_TOPICS and topic.created]
    written = [topic for topic in system if topic.name != TRANSACTIONS_TOPIC]
    classes = Counter(topic.config.durability.value for topic in topics if topic not in system)
    assert stats.topics == sum(not is_server_name(topic.name) for topic in topics)
    assert stats.topics_by_class == {durability.value: classes[durability.value] for durability in Durability}
    assert stats.queue_topics == sum(topic.config.type is TopicType.QUEUE for topic in topics)
    assert stats.system_topics == len(system)
    assert stats.system_records_live == sum(topic.live_count for topic in written)
    assert stats.system_bytes_live == sum(topic.live_bytes for topic in written)
    assert stats.records_live == sum(topic.live_count for topic in topics) - stats.system_records_live
    assert stats.bytes_live == sum(topic.live_bytes for topic in topics) - stats.system_bytes_live
    queues = [queue for topic in topics if (queue := find_queue(topic)) is not None]
    assert engine.queues.in_flight() == sum(queue.lease_table.in_flight for queue in queues)


def _check_topic(engine: Engine, topic: Topic) -> None:
    runs: list[Run] = [*topic.segments, *topic.tail]
    previous = 0
    for run in runs:
        assert run.first_seq > previous, "runs overlap"
        previous = run.last_seq
        _check_run(engine, topic, run)
    assert previous <= topic.head
    assert topic.live_count == sum(run.live for run in runs)
    assert topic.live_bytes == sum(run.live_bytes for run in runs)
    assert topic.tail_count == sum(block.count for block in topic.tail)
    assert topic.tail_bytes == sum(block.memory_bytes for block in topic.tail)
    assert topic.evict_floor == max(topic.cap_floor, topic.ttl_floor)
    assert topic.evict_floor <= topic.earliest <= topic.head + 1
    ends = [0, *(bound for lost in topic.lost or () for bound in (lost.from_seq, lost.to_seq)), topic.head + 1]
    assert ends == sorted(ends), f"lost ranges overlap or leave the topic: {topic.lost}"
    assert len(set(ends[1:-1:2])) == len(ends[1:-1:2]), f"a lost range is remembered twice: {topic.lost}"
    assert topic.staged_count == topic.staged_bytes == topic.sync_inflight == 0
    assert topic.staged_head == topic.head


def _check_run(engine: Engine, topic: Topic, run: Run) -> None:
    reader = engine.core.reader
    flags = reader.flags(topic.id, run)
    ranges = live_ranges(flags, max(topic.earliest - run.first_seq, 0), run.count)
    assert run.live == sum(end - begin for begin, end in ranges)
    assert run.live_bytes == reader.payload_bytes(topic.id, run, ranges)
    if isinstance(run, Segment):
        assert run.live, "a dead segment is kept"
        assert run.marked == (0 if flags is None else flags.count(0xD5))


def check_no_litter(engine: Engine, fs: FileSystem) -> None:
    """Right after a checkpoint there is no unreferenced segment file."""
    core = engine.core
    named = {
        core.store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))
        for topic in all_topics(engine)
        for segment in topic.segments
    }
    named |= {core.store.path(key) for key in core.trash}
    found = set()
    for cold in (False, True):
        root = core.layout.topics(cold)
        for folder in fs.list_dir(root) if fs.exists(root) else ():
            found |= {f"{root}/{folder}/{name.rsplit('.', 1)[0]}" for name in fs.list_dir(f"{root}/{folder}")}
    assert found <= named
