"""Where a fork leaves its source.

A fork begins behind an entry, or inside one: at so many bytes of an entry of bytes, which are then copied into the fork
as its first record, or behind so many values of an append of JSON, which have offsets of their own. Nothing else is
copied.
"""

from itertools import takewhile
from typing import NamedTuple

import msgspec

from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine.engine import Engine
from topics.engine.read import ReadPlan, ReadRequest, plan_read
from topics.engine.state.runs import Block, RunReader
from topics.engine.streams.state import JSON_TYPE, stream_of
from topics.engine.topic import Topic
from topics.formats.stream import Origin
from topics.streams.contents import is_json
from topics.streams.offsets import Position, epoch_at, read_offset
from topics.streams.reading import CHARACTER_MORE, ReadSpec, cutter
from topics.wire.cuts import tag_texts, tag_value

_ZERO = "0000000000000000_0000000000000000"
"""How the protocol's own tests spell the start of any stream."""


class ForkFrom(msgspec.Struct, frozen=True):
    """What a request says about its source; without an offset, the end of it."""

    source: str
    offset: str | None = None
    sub_offset: int = 0

    def place(self, source: Topic) -> Position | None:
        """The place in the source that the offset names; None for its end."""
        if self.offset is None:
            return None
        if self.offset == _ZERO:
            return Position(0)
        try:
            return read_offset(source, self.offset)
        except TopicsError as error:
            raise InvalidRequestError(f"Stream-Fork-Offset: {error.message}", field="Stream-Fork-Offset") from error


class ForkPoint(NamedTuple):
    origin: Origin
    asked: Position
    """Where the request, without its sub-offset, pointed to."""
    cut: bytes | None
    """The beginning of an entry that the fork does not have as a whole."""
    key: str | None
    epochs: tuple[tuple[int, int], ...]


def find_fork_point(engine: Engine, source: Topic, fork: ForkFrom) -> ForkPoint:
    asked = fork.place(source) or Position(source.head)
    if fork.offset is None and fork.sub_offset:
        raise _refusal("a sub-offset needs a Stream-Fork-Offset that it counts from")
    counter, cut, key = asked.counter, None, None
    state = stream_of(source)
    if is_json(state.content_type if state is not None else JSON_TYPE):
        counter += _values(source, counter, fork.sub_offset)
    elif asked.in_block or fork.sub_offset:
        cut, key = _beginning(engine, source, asked, fork.sub_offset)
    epochs = tuple(takewhile(lambda known: known[0] < counter, state.epochs)) if state is not None else ()
    epochs = (*epochs, (counter, epoch_at(source, counter)))
    return ForkPoint(Origin(source.id, counter), asked, cut, key, epochs)


def _values(source: Topic, counter: int, sub_offset: int) -> int:
    """So many values of the append behind a place. Where its end is no longer known, any up to the stream's end."""
    if not sub_offset:
        return 0
    room = source.head - counter
    for run in plan_read(source, ReadRequest(from_seq=counter, limit=1)).runs:
        if isinstance(run, Block):
            room = min(room, run.last_seq - counter)
    if sub_offset > room:
        raise _refusal(f"the append behind the offset holds {room} values")
    return sub_offset


def _beginning(engine: Engine, source: Topic, asked: Position, sub_offset: int) -> tuple[bytes, str | None]:
    """The bytes of the entry behind a place, up to the sub-offset, and its key."""
    wanted, reader = asked.in_block + sub_offset, engine.core.reader
    # No further than that entry, which may be deleted. A read may stop before a character that would be cut.
    spec = ReadSpec(
        position=Position(asked.counter), as_json=False, max_records=1, max_bytes=wanted + CHARACTER_MORE,
        up_to=asked.counter + 1,
    )  # fmt: skip
    plan = plan_read(source, spec.request())
    found = cutter(spec)(plan, reader)
    if len(found.body) < wanted:
        raise _refusal(f"the entry behind the offset has {max(len(found.body) - asked.in_block, 0)} bytes")
    return found.body[:wanted], _key_of(plan, reader)


def _key_of(plan: ReadPlan, reader: RunReader) -> str | None:
    """The key of the first entry of a plan."""
    run = plan.runs[0]
    first = plan.start - run.first_seq
    view, index, _, _ = next(reader.views(plan.topic_id, run, first, first + 1))
    tags = tag_texts(view, index, index + 1)
    return tag_value(tags[0][1]) if tags else None


def _refusal(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"Stream-Fork-Sub-Offset: {problem}", field="Stream-Fork-Sub-Offset")
