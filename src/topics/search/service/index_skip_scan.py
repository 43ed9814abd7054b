"""Index skip scan: a read by key or by filter finds its next entries with an index file (also known as: companion), and
reads only these.

The cursor moves over the entries in between as if they had been read. Without a usable index file, and near the end, a
read continues normally; so skips change the cost of a read and not its result.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import count
from typing import Final, NamedTuple

from msgspec.structs import replace

from topics.engine.background_jobs import Until
from topics.engine.read import first_readable
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.schema.contract import decode_contract
from topics.search.file_index.file_format import IndexNeeds, needs_of_search
from topics.search.query.predicates import bind_filter
from topics.search.service.backend import Later, Searcher, SeqSpan, Steps, next_turn
from topics.search.service.index_file_cache import IndexedRange, IndexFiles, plan_for
from topics.search.worker.messages import NO_INDEX, Mapped, Result, Seek
from topics.streams.chunked_validation import Description
from topics.streams.read import ReadSpec, StreamSlice, joined
from topics.streams.stream_state import Position, stream_of

NEAR: Final = 4096
"""Reading this many entries is cheaper than querying an index file."""
_GAP: Final = 64
"""Matches at most this far apart are read together."""
_SEQS_MAX: Final = 1000


class Skip(NamedTuple):
    """The entries to read next: those of the windows in this order, then those behind `through`."""

    windows: list[SeqSpan]
    through: int


class IndexSkipScan:
    """The skips of one read."""

    def __init__(
        self,
        searcher: Searcher,
        index_files: IndexFiles,
        topic: Topic,
        key: str | None,
        text: str | None,
        index: Callable[[], int],
    ) -> None:
        """Without a `key` all keys match, without a `text` all entries. `index` returns the number of an index with the
        stream's search description, and is called for filters only."""
        self._searcher = searcher
        self._index_files = index_files
        self._topic = topic
        self._key = key
        self._text = text
        self._index = index

    def next_windows(self, cursor: int, end: int, limit: int) -> Steps[Skip | None]:
        """Returns where the next entries between `cursor` and `end` are; None if the read has to continue at the
        cursor."""
        while (part := self._next_part(cursor, end)) is not None:
            if not self._index_files.is_near(part):
                # The file may have gigabytes: this read continues without it, and a later one uses it.
                self._index_files.fetch(self._topic, part, lambda: None)
                return None
            try:
                result = yield from self._seek(part, min(limit, _SEQS_MAX))
            except SearchUnavailableError:
                return None
            if result.spent:
                return None
            if not result.unreadable:
                seqs = result.seqs
                return Skip(_windows(seqs), seqs[-1] if result.is_full and seqs else part.last)
            self._index_files.distrust(self._topic, part.path, result.unreadable)
        return None

    def _seek(self, part: IndexedRange, limit: int) -> Steps[Result]:
        """Asks an index file for the seqs of the first matches. Raises SearchUnavailableError."""
        index = NO_INDEX if self._text is None else self._index()
        mapped, key, text = Mapped(part.path, part.first, part.last, part.seal), self._key, self._text or ""
        self._index_files.begin(part)
        try:
            result: Result = yield Until(
                lambda resume: self._searcher.ask(
                    lambda request: Seek(request, index, mapped, key, text, limit), resume
                )
            )
        finally:
            self._index_files.end(part)
        return result

    def _next_part(self, cursor: int, end: int) -> IndexedRange | None:
        """Returns the index file that covers the entry behind the cursor."""
        topic = self._topic
        if end - cursor < NEAR or cursor + 1 < first_readable(topic):
            # A read that begins before the first entry returns a tombstone.
            return None
        description = _description(topic)
        if description is None:
            return None
        found = self._index_files.fitting(
            topic, plan_for(description.raw), needs_of_read(description.raw, self._text), cursor + 1, end
        )
        return found[0] if found and found[0].first == cursor + 1 and found[0].last - cursor >= NEAR else None


@lru_cache(maxsize=1024)
def needs_of_read(contract: bytes, text: str | None) -> IndexNeeds:
    """Returns the columns that an index file must have to find the entries of a read. Keys are stored with entries, so
    they are the same in every generation."""
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


# Reads of one routing key: window by window where index files cover the range, and as any other read elsewhere.

SliceDone = Callable[[StreamSlice | TopicsError], None]
Read = Callable[[ReadSpec, SliceDone], None]
"""A read without skips. Raises TopicsError."""

_STEPS_MAX: Final = 256
"""The maximum number of reads for one answer; the next answer continues."""


def read_key(topic: Topic, spec: ReadSpec, skip_scan: IndexSkipScan, read: Read, later: Later) -> Steps[StreamSlice]:
    """Reads the entries of one routing key, for one answer."""
    found: StreamSlice | None = None
    windows: list[SeqSpan] = []
    through: int | None = None
    for step in count(1):
        # The start of `spec` is the position that the read has reached.
        window: SeqSpan | None = None
        if windows:
            window = windows.pop(0)
            spec = replace(spec, position=Position(window.first - 1))
        else:
            if through is not None:
                spec, through = replace(spec, position=Position(through)), None
            if not spec.position.in_block:
                if step > _STEPS_MAX:
                    break
                end = topic.head if spec.up_to is None else min(spec.up_to, topic.head)
                skip = yield from skip_scan.next_windows(spec.position.counter, end, spec.max_records)
                if skip is not None:
                    windows, through = skip
                    continue
        # Without a window no index file covers the rest: one read to the end.
        requested = spec if window is None else replace(spec, up_to=window.last)
        try:
            part: StreamSlice = yield Until(partial(read, requested))
        except TopicsError:
            if found is None:
                raise
            # Earlier results can be returned; the next read raises the failure.
            break
        if found is not None and part.tombstone is not None:
            break
        found = part if found is None else joined([found, part] if part.count else [found], spec.as_json)
        spec = replace(spec, position=part.position)
        rest = spec.behind(part)
        if window is None or rest is None or part.position < (window.last, 0) or step > _STEPS_MAX:
            break
        spec = rest
        yield next_turn(later)
    if found is None:
        found = StreamSlice(b"[]" if spec.as_json else b"", 0, spec.position, topic.head, None)
    return replace(found, position=spec.position, head=topic.head)
