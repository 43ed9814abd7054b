"""Reads of one routing key: from leap to leap where companions know the way, and as any other read where not."""

from collections.abc import Callable
from typing import Final

import msgspec

from topics.core.errors import TopicsError
from topics.engine.topic import Topic
from topics.streams.offsets import Position
from topics.streams.reading import ReadSpec, StreamSlice, joined
from topics.streams.search.leaping import Leap, Leaper
from topics.streams.search.packing import Stretch
from topics.streams.search.searcher import Later
from topics.streams.search.stepping import Steps

SliceDone = Callable[[StreamSlice | TopicsError], None]
Read = Callable[[ReadSpec, SliceDone], None]
"""A read without leaps. Raises TopicsError."""

_STEPS_MAX: Final = 256
"""So many reads make one answer at most; the next one goes on."""


class KeyedRead:
    def __init__(self, topic: Topic, spec: ReadSpec, leaper: Leaper, read: Read, later: Later, done: SliceDone) -> None:
        self._topic = topic
        self._spec = spec
        """What is left of it; its position is how far the read has come."""
        self._leaper = leaper
        self._read = read
        self._later = later
        self._done = done
        self._found: StreamSlice | None = None
        self._windows: list[Stretch] = []
        self._through: int | None = None
        self._count = 0
        self._steps = Steps()

    def run(self) -> None:
        self._steps.next(self._step)

    def _step(self) -> None:
        """The next window; behind the last one, another leap."""
        self._count += 1
        if self._windows:
            window = self._windows.pop(0)
            self._skip_to(window.first - 1)
            self._ask(msgspec.structs.replace(self._spec, up_to=window.last), lambda found: self._take(window, found))
            return
        if self._through is not None:
            self._skip_to(self._through)
            self._through = None
        position = self._spec.position
        if position.in_block:
            self._read_rest()
        elif self._count > _STEPS_MAX:
            self._answer()
        else:
            self._leaper.leap(position.counter, self._end(), self._spec.max_records, self._take_leap)

    def _end(self) -> int:
        head, up_to = self._topic.head, self._spec.up_to
        return head if up_to is None else min(up_to, head)

    def _skip_to(self, seq: int) -> None:
        self._spec = msgspec.structs.replace(self._spec, position=Position(seq))

    def _take_leap(self, leap: Leap | None) -> None:
        if leap is None:
            self._read_rest()
        else:
            self._windows, self._through = leap.windows, leap.through
            self.run()

    def _take(self, window: Stretch, found: StreamSlice | TopicsError) -> None:
        if not self._add(found):
            return
        assert isinstance(found, StreamSlice)
        rest = self._spec.behind(found)
        if rest is None or found.position < (window.last, 0) or self._count > _STEPS_MAX:
            self._answer()
            return
        self._spec = rest
        self._later(0, self.run)

    def _add(self, found: StreamSlice | TopicsError) -> bool:
        """Takes what a read found; answers and gives False where it is nothing to go on from."""
        if self._found is None:
            if isinstance(found, TopicsError):
                self._done(found)
                return False
            self._found = found
        elif isinstance(found, TopicsError) or found.tombstone is not None:
            # What was found before can be given; the next read meets the trouble itself.
            self._answer()
            return False
        else:
            self._found = joined(self._spec, self._found, found)
        self._spec = msgspec.structs.replace(self._spec, position=found.position)
        return True

    def _read_rest(self) -> None:
        """No companion knows what comes here: one read as it always was."""
        self._ask(self._spec, lambda rest: self._answer() if self._add(rest) else None)

    def _ask(self, spec: ReadSpec, done: SliceDone) -> None:
        try:
            self._read(spec, done)
        except TopicsError as error:
            done(error)

    def _answer(self) -> None:
        """With what was found, and the cursor where the read has come to."""
        found, head, position = self._found, self._topic.head, self._spec.position
        if found is None:
            found = StreamSlice(b"[]" if self._spec.as_json else b"", 0, position, head, None)
        self._done(msgspec.structs.replace(found, position=position, head=head))
