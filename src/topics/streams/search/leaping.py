"""Reads that want few of many entries leap: a companion says where the next ones are, and nothing else is read.

What lies between is behind the reader then as if it had been looked at. Where no companion answers, where one cannot
be read, or near the end, a read goes on as it always does; so leaps change what a read costs and not what it finds.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from topics.core.errors import SearchUnavailableError
from topics.engine.read import first_readable
from topics.engine.streams.description import Description
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.indexing.companions.identity import Needs, needs_of_search
from topics.indexing.predicates import bind_filter
from topics.schema.contract import decode_contract
from topics.searching.messages import NO_INDEX, Mapped, Result, Seek
from topics.streams.search.companions import Companions, IndexedStretch, plan_for
from topics.streams.search.packing import Stretch
from topics.streams.search.searcher import Searcher

NEAR: Final = 4096
"""So few entries are sooner read than asked for."""
_GAP: Final = 64
"""Entries so near to each other are read together."""
_SEQS_MAX: Final = 1000


class Leap(NamedTuple):
    """Which entries are to be read next: those of the windows, in their order, and then those behind `through`."""

    windows: list[Stretch]
    through: int


LeapDone = Callable[[Leap | None], None]
"""Without a leap, the read goes on where it is."""


class Leaper:
    """Leaps of one read."""

    def __init__(
        self,
        searcher: Searcher,
        companions: Companions,
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
                done(Leap(_windows(seqs), through))

        self._companions.begin(part)
        self._searcher.ask(lambda request: Seek(request, index, mapped, key, text, most), told)

    def _next_part(self, cursor: int, end: int) -> IndexedStretch | None:
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
def needs_of_read(contract: bytes, text: str | None) -> Needs:
    """What a companion must have to say where the entries of a read are. Keys are stored with entries, and so they are
    the same in every generation."""
    config = decode_contract(contract).registry.search_config
    if text is None or config is None:
        return Needs()
    return needs_of_search(plan_for(contract), bind_filter(text, config), ())


def _description(topic: Topic) -> Description | None:
    state = stream_of(topic)
    return None if state is None else state.description


def _windows(seqs: Iterable[int]) -> list[Stretch]:
    found: list[Stretch] = []
    for seq in seqs:
        if found and seq - found[-1].last <= _GAP:
            found[-1] = Stretch(found[-1].first, seq)
        else:
            found.append(Stretch(seq, seq))
    return found
