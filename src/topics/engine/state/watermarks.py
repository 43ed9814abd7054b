"""The rules that a topic's state obeys at any moment, checked on the state as a snapshot has it. Pure."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from topics.core.config import decode_config
from topics.core.errors import quoted
from topics.core.names import is_own_name, is_topic_name
from topics.formats.queue import PART_NAME, decode_part
from topics.formats.snapshot import TopicState
from topics.formats.stream import PART_NAME as STREAM
from topics.formats.transaction import PART_NAME as TRANSACTIONS_PART
from topics.formats.transaction import decode_part as decode_transactions

SeqRange = tuple[int, int]


def state_problems(state: TopicState, tail: list[SeqRange]) -> Iterator[str]:
    """Everything that contradicts itself in a state; `tail` has the seqs of each block that follows it."""
    yield from _config_problems(state)
    if not 1 <= state.evict_floor <= state.earliest <= state.head + 1:
        yield (
            f"its watermarks are out of order: evicted below {state.evict_floor}, first live {state.earliest}, "
            f"head {state.head}"
        )
    if max(state.cap_floor, state.ttl_floor) > state.evict_floor:
        yield "a cap or a time evicted more than was evicted in all"
    if len(state.tail_flags) != len(tail):
        yield f"its tail has {len(tail)} blocks instead of {len(state.tail_flags)}"
    for flags, (first, last) in zip(state.tail_flags, tail, strict=False):
        if flags and len(flags) != last - first + 1:
            yield f"the delete flags of the block at {first} have the wrong length"
    segments = [(segment.first_seq, segment.first_seq + segment.count - 1) for segment in state.segments]
    runs = [*segments, *tail]
    if any(first > last for first, last in runs) or not _ascending(runs):
        yield "its segments and blocks overlap or are out of order"
    if runs and runs[-1][1] > state.head:
        yield f"it holds record {runs[-1][1]} and its head is {state.head}"
    if any(segment.flags and len(segment.flags) != segment.count for segment in state.segments):
        yield "the delete flags of a segment have the wrong length"
    times = [time for segment in state.segments for time in (segment.first_ts, segment.last_ts)]
    if any(before > after for before, after in pairwise([*times, state.last_ts])):
        yield "its times run back"
    lost = [(lost.first, lost.last) for lost in state.lost]
    if any(first > last for first, last in lost) or not _ascending(lost) or (lost and lost[-1][1] > state.head):
        yield "its lost ranges overlap, are out of order or lie beyond its head"
    yield from _queue_problems(state)
    yield from _transaction_problems(state)
    if any(last > state.head for last in _last_keyed(state)):
        yield "it knows an idempotency key of records beyond its head"


def _last_keyed(state: TopicState) -> Iterator[int]:
    """The last seqs that idempotency keys speak of."""
    for key in state.keys:
        yield key.first_seq + key.count - 1
    for keyed in state.keyed:
        place = 0 if isinstance(keyed.keys, str) else max(keyed.keys.values(), default=0)
        yield keyed.first_seq + place + keyed.count - 1


def _config_problems(state: TopicState) -> Iterator[str]:
    # A stream may be called more than a topic of /v0.
    if not (is_topic_name(state.name) or is_own_name(state.name) or STREAM in state.parts):
        yield f"{quoted(state.name)} is not the name of a topic"
    try:
        config = decode_config(state.config)
    except ValueError as error:
        yield f"its config makes no sense: {error}"
        return
    if config.durability.reserves_seqs and 0 < state.ceiling < state.head:
        yield f"its head {state.head} is above the ceiling {state.ceiling}"


def _queue_problems(state: TopicState) -> Iterator[str]:
    if PART_NAME not in state.parts:
        return
    try:
        part = decode_part(state.parts[PART_NAME])
    except ValueError as error:
        yield f"its queue makes no sense: {error}"
        return
    leased = {lease.seq for lease in part.leases}
    if len(leased) < len(part.leases) or any(seq in leased for seq, _ in (*part.delayed, *part.delivered)):
        yield "a job of its queue is in two states at once"
    # A delay may speak of jobs beyond the head: it is logged ahead of them.
    if any(seq > state.head for seq in leased) or any(seq > state.head for seq, _ in part.delivered):
        yield "its queue knows jobs beyond its head"


def _transaction_problems(state: TopicState) -> Iterator[str]:
    if TRANSACTIONS_PART not in state.parts:
        return
    try:
        part = decode_transactions(state.parts[TRANSACTIONS_PART])
    except ValueError as error:
        yield f"its transactions make no sense: {error}"
        return
    if any(one.first_seq + one.count - 1 > state.head for entry in part.open for one in entry.parts):
        yield "a transaction has staged records beyond its head"


def _ascending(ranges: Iterable[SeqRange]) -> bool:
    return all(before[1] < after[0] for before, after in pairwise(ranges))
