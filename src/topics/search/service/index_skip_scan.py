"""Reads that want few of many entries leap: a companion says where the next ones are, and nothing else is read.

What lies between is behind the reader then as if it had been looked at. Where no companion answers, where one cannot
be read, or near the end, a read goes on as it always does; so leaps change what a read costs and not what it finds.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from topics.engine.read import first_readable
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.schema.contract import decode_contract
from topics.search.file_index.file_format import IndexNeeds, needs_of_search
from topics.search.query.predicates import bind_filter
from topics.search.service.backend import Later, Searcher, SeqSpan, Trampoline
from topics.search.service.index_file_cache import IndexedRange, IndexFiles, plan_for
from topics.search.worker.messages import NO_INDEX, Mapped, Result, Seek
from topics.streams.chunked_validation import Description
from topics.streams.offsets import Position
from topics.streams.read import ReadSpec, StreamSlice, joined
from topics.streams.stream_state import stream_of

NEAR: Final = 4096
"""So few entries are sooner read than asked for."""
_GAP: Final = 64
"""Entries so near to each other are read together."""
_SEQS_MAX: Final = 1000


class Skip(NamedTuple):
    """Which entries are to be read next: those of the windows, in their order, and then those behind `through`."""

    windows: list[SeqSpan]
    through: int


LeapDone = Callable[[Skip | None], None]
"""Without a leap, the read goes on where it is."""


class IndexSkipScan:
    """Leaps of one read."""

    def __init__(
        self,
        searcher: Searcher,
        companions: IndexFiles,
        topic: Topic,
        key: str | None,
        text: str | None,
        index: Callable[[], int],
    ) -> None:
        """Without a `key` all keys will do, without a `text` there is no filter. `index` gives the number of an index
        that knows how the stream is described, and is asked only where there is a filter."""
        self._searcher = searcher
        self._companions = companions
        self._topic = topic
        self._key = key
        self._text = text
        self._index = index

    def leap(self, cursor: int, end: int, limit: int, done: LeapDone) -> None:
        """Where the next entries behind `cursor` are, up to `end`."""
        part = self._next_part(cursor, end)
        if part is None:
            done(None)
            return
        if not self._companions.is_near(part):
            # It may be some gigabytes: a read goes on meanwhile, and a later one finds it.
            self._companions.fetch(self._topic, part, lambda: None)
            done(None)
            return
        most = min(limit, _SEQS_MAX)
        try:
            index = NO_INDEX if self._text is None else self._index()
        except SearchUnavailableError:
            done(None)
            return
        mapped, key, text = Mapped(part.path, part.first, part.last), self._key, self._text or ""

        def told(result: Result | SearchUnavailableError) -> None:
            self._companions.end(part)
            if isinstance(result, SearchUnavailableError) or result.spent:
                done(None)
            elif result.unreadable:
                self._companions.distrust(self._topic, part.path, result.unreadable)
                self.leap(cursor, end, limit, done)
            else:
                seqs = result.seqs
                through = seqs[-1] if result.is_full and seqs else part.last
                done(Skip(_windows(seqs), through))

        self._companions.begin(part)
        self._searcher.ask(lambda request: Seek(request, index, mapped, key, text, most), told)

    def _next_part(self, cursor: int, end: int) -> IndexedRange | None:
        """What answers for the entry behind the cursor and for those behind it."""
        topic = self._topic
        if end - cursor < NEAR or cursor + 1 < first_readable(topic):
            # Who begins before the first entry is told what is lost.
            return None
        description = _description(topic)
        if description is None:
            return None
        found = self._companions.fitting(
            topic, plan_for(description.raw), needs_of_read(description.raw, self._text), cursor + 1, end
        )
        return found[0] if found and found[0].first == cursor + 1 and found[0].last - cursor >= NEAR else None


@lru_cache(maxsize=1024)
def needs_of_read(contract: bytes, text: str | None) -> IndexNeeds:
    """What a companion must have to say where the entries of a read are. Keys are stored with entries, and so they are
    the same in every generation."""
    config = decode_contract(contract).registry.search_config
    if text is None or config is None:
        return IndexNeeds()
    return needs_of_search(plan_for(contract), bind_filter(text, config), ())


def _description(topic: Topic) -> Description | None:
    state = stream_of(topic)
    return None if state is None else state.description


def _windows(seqs: Iterable[int]) -> list[SeqSpan]:
    found: list[SeqSpan] = []
    for seq in seqs:
        if found and seq - found[-1].last <= _GAP:
            found[-1] = SeqSpan(found[-1].first, seq)
        else:
            found.append(SeqSpan(seq, seq))
    return found


# Reads of one routing key: from leap to leap where companions know the way, and as any other read where not.

SliceDone = Callable[[StreamSlice | TopicsError], None]
Read = Callable[[ReadSpec, SliceDone], None]
"""A read without leaps. Raises TopicsError."""

_STEPS_MAX: Final = 256
"""So many reads make one answer at most; the next one goes on."""


class KeyedRead:
    def __init__(
        self, topic: Topic, spec: ReadSpec, leaper: IndexSkipScan, read: Read, later: Later, done: SliceDone
    ) -> None:
        self._topic = topic
        self._spec = spec
        """What is left of it; its position is how far the read has come."""
        self._leaper = leaper
        self._read = read
        self._later = later
        self._done = done
        self._found: StreamSlice | None = None
        self._windows: list[SeqSpan] = []
        self._through: int | None = None
        self._count = 0
        self._steps = Trampoline()

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

    def _take_leap(self, leap: Skip | None) -> None:
        if leap is None:
            self._read_rest()
        else:
            self._windows, self._through = leap.windows, leap.through
            self.run()

    def _take(self, window: SeqSpan, found: StreamSlice | TopicsError) -> None:
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
