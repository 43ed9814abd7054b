"""A topic put together from its snapshot: when the engine starts, and when one that was asleep is asked for."""

from topics.core.config import decode_config
from topics.core.loss import LossReason, LostRange
from topics.engine.features import Features
from topics.engine.state.keys import KeyMemory
from topics.engine.state.runs import Block, RunReader, Segment, live_ranges
from topics.engine.topic import Topic
from topics.engine.write.seq_reserve import grant
from topics.formats.snapshot import TopicState


def load_state(state: TopicState, reserve: int, features: Features) -> Topic:
    """The topic without the blocks of its tail."""
    topic = Topic(state.topic_id, state.name, state.epoch, decode_config(state.config), state.created_ts, True)
    topic.head, topic.ceiling, topic.earliest = state.head, state.ceiling, state.earliest
    topic.evict_floor, topic.cap_floor, topic.ttl_floor = state.evict_floor, state.cap_floor, state.ttl_floor
    topic.last_ts, topic.last_write_ts, topic.next_base = state.last_ts, state.last_write_ts, state.next_base
    if state.segments:
        topic.segments = [Segment(segment) for segment in state.segments]
        topic.live_count = sum([segment.live for segment in topic.segments])
        topic.live_bytes = sum([segment.live_bytes for segment in topic.segments])
    if state.lost:
        topic.lost = [LostRange(lost.first, lost.last, LossReason(lost.reason)) for lost in state.lost]
    if state.keyed or state.keys:
        topic.keys = KeyMemory.load(state.keyed, state.keys)
    topic.unlogged = state.unlogged
    grant(topic, reserve)
    features.load(topic, state.parts)
    return topic


def load_block(topic: Topic, block: Block, flags: bytes, reader: RunReader) -> None:
    """The next block of a topic's tail; `flags` are empty where nothing in it is deleted."""
    if flags:
        block.flags = bytearray(flags)
    lo = max(topic.earliest - block.first_seq, 0)
    if flags or lo:
        ranges = live_ranges(block.flags, lo, block.count)
        block.live = sum([end - begin for begin, end in ranges])
        block.live_bytes = reader.payload_bytes(topic.id, block, ranges)
    topic.tail.append(block)
    topic.tail_count += block.count
    topic.tail_bytes += block.memory_bytes
    topic.live_count += block.live
    topic.live_bytes += block.live_bytes
