"""Query execution: one query over one stream, as one generator that yields everything it waits for.

The newest entries are in the memory index, which is first completed up to the last entry. Older entries are in index
files (also known as: companions). Entries without an index are scanned: read from the stream and matched one by one,
newest first, within the budgets of time and bytes. A query sorted by ascending offset starts with the oldest entries.
The outcome contains the coverage.

The generator runs on the loop (`backend.run_steps`). It waits for messages to the search process, for reads of the disk
and for downloads of index files from an object store; a timer bounds the long waits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from topics.engine.background_jobs import Until
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, first_readable
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.search.query.plan import known_search
from topics.search.query.score import terms_of
from topics.search.query.sort import OFFSET
from topics.search.service.backend import (
    PACK_BYTES,
    PACK_RECORDS,
    Later,
    Pack,
    Searcher,
    SeqSpan,
    Steps,
    has_removed,
    pack,
    removed_between,
    seq_spans,
)
from topics.search.service.index_feed import FedIndex, IndexFeed
from topics.search.service.index_file_cache import IndexedRange, IndexFiles
from topics.search.worker.messages import (
    AskMessage,
    CountQuery,
    Finish,
    Mapped,
    More,
    Query,
    Question,
    Result,
    SearchQuery,
)

# Results of a query, and the coverage of its answer.


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    result: Result
    head: int
    """The last entry when the query started."""
    first: int
    """The memory index was searched from here to `last`."""
    last: int
    missed_sealed: int = 0
    """The maximum number of entries that were not examined."""
    missed_tail: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    scanned: tuple[SeqSpan, ...] = ()
    """Ranges scanned entry by entry, in the order of the scan."""
    scanned_segments: int = 0
    scanned_bytes: int = 0
    indexed_segments: int = 0
    """Segments covered by the used index files."""
    index_files: int = 0
    """The number of used index files."""
    scanned_cold_segments: int = 0
    """Segments of the cold tier among the scanned and the missed ones."""
    missed_cold_segments: int = 0
    spent: str | None = None
    """The budget that was exhausted."""
    statistics: tuple[int, ...] = ()
    """Term statistics for ranking."""

    @property
    def missed(self) -> int:
        return self.missed_sealed + self.missed_tail

    @property
    def complete(self) -> bool:
        return self.spent is None and not self.missed

    @property
    def looked_at_in_memory(self) -> int:
        """The number of entries examined in the memory index."""
        return self.result.looked_at - self.result.scanned - self.result.indexed


_first_seq, _last_seq = attrgetter("first_seq"), attrgetter("last_seq")

OutcomeDone = Callable[[Outcome | TopicsError], None]


def account(
    topic: Topic,
    result: Result,
    head: int,
    memory_range: SeqSpan,
    scanned: Sequence[SeqSpan],
    scanned_bytes: int,
    indexed: Sequence[SeqSpan],
    missed: Sequence[SeqSpan],
    spent: str | None,
) -> Outcome:
    """Counts missed entries by place. It counts seqs and not live entries, so the bound is never too low."""
    last_sealed = topic.segments[-1].last_seq if topic.segments else (topic.origin.upto if topic.origin else 0)
    sealed = sum([max(min(part.last, last_sealed) - part.first + 1, 0) for part in missed])
    # Entries that the memory index did not examine count as tail.
    tail = sum([max(part.last - max(part.first, last_sealed + 1) + 1, 0) for part in missed]) + result.missed
    firsts = [part.first for part in missed if part.first <= part.last]
    if result.missed:
        firsts.append(memory_range.first if result.first_missed is None else result.first_missed)
    return Outcome(
        result=result,
        head=head,
        first=memory_range.first,
        last=memory_range.last,
        missed_sealed=sealed,
        missed_tail=tail,
        missed_segments=_segments_in(topic, missed) if sealed else 0,
        missed_cold_segments=_segments_in(topic, missed, cold_only=True) if sealed else 0,
        scanned_cold_segments=_segments_in(topic, scanned, cold_only=True),
        index_files=len(indexed),
        first_missed=min(firsts) if firsts else None,
        scanned=tuple(scanned),
        scanned_segments=_segments_in(topic, scanned),
        scanned_bytes=scanned_bytes,
        indexed_segments=_segments_in(topic, indexed),
        spent=spent,
    )


def _segments_in(topic: Topic, parts: Sequence[SeqSpan], cold_only: bool = False) -> int:
    """Returns the number of segments that contain a seq of the given ranges. Ranges are small, so neighbours are often
    in one segment."""
    segments, count, behind = topic.segments, 0, 0
    for part in sorted(parts):
        if part.first <= part.last:
            begin = bisect_left(segments, part.first, behind, key=_last_seq)
            behind = bisect_right(segments, part.last, begin, key=_first_seq)
            count += sum([segment.cold for segment in segments[begin:behind]]) if cold_only else behind - begin
    return count


_LATE_S = 1.0
"""A query past its deadline still gets hits from indexes, which takes milliseconds."""
_NOTHING = SeqSpan(1, 0)
_INDEX_FILES_MAX = 64
"""The maximum number of index files in one message."""


class QueryContext(NamedTuple):
    """The services and limits of a query."""

    engine: Engine
    searcher: Searcher
    feed: IndexFeed
    later: Later
    now: Callable[[], float]
    scan_bytes: int
    index_files: IndexFiles | None = None
    """None without a disk."""
    owner: str = ""
    """The API key of the query; the search process serves owners in turns."""


class _Progress:
    """The progress of one query: searched ranges, remaining ones, and the current message."""

    __slots__ = (
        "ascending", "context", "deadline", "enough", "head", "index", "indexed", "left", "memory_range",
        "planned_through", "query", "question", "requested", "scanned", "scanned_bytes", "skipped", "spent",
        "time_is_up", "topic",
    )  # fmt: skip

    def __init__(self, context: QueryContext, topic: Topic, query: Query, deadline: float, head: int | None) -> None:
        self.context = context
        self.topic = topic
        self.query = query
        self.deadline = deadline
        self.head = topic.visible_head if head is None else head
        self.requested, self.ascending = _requested_span(query, SeqSpan(first_readable(topic), self.head))
        self.index: FedIndex
        self.memory_range: SeqSpan | None = None
        """The range searched in the memory index."""
        self.left: list[SeqSpan | IndexedRange] = []
        """Ranges left for index files or a scan; the next one is last."""
        self.planned_through = 0
        self.scanned: list[SeqSpan] = []
        self.skipped: list[SeqSpan] = []
        """Ranges that were not read, for any reason."""
        self.scanned_bytes = 0
        self.indexed: list[SeqSpan] = []
        """Ranges searched in index files."""
        self.question: int | None = None
        """The number of the open query in the search process; None if it has none."""
        self.enough = False
        self.spent: str | None = None
        """The budget that was exhausted."""
        self.time_is_up: Callable[[object], None] | None = None
        """Ends a wait that may be long."""

    def late(self) -> None:
        """Called at the deadline: a query that waits for entries or for an index file continues with what is
        available."""
        self.spent = "time"
        if self.time_is_up is not None:
            self.time_is_up(_LATE)

    @property
    def is_last(self) -> bool:
        """Returns whether the current part is the last one. In ascending order that is the memory index."""
        return not self.left and not self.ascending

    def plan_older(self) -> bool:
        """Plans the unexamined entries outside of the memory index. Returns whether there are any."""
        first = max(self.requested.first, self.planned_through + 1)
        last = min(self.index.start, self.requested.last)
        self.planned_through = max(last, self.planned_through)
        self.left = self.plan_range(first, last) if first <= last else []
        if not self.ascending:
            self.left.reverse()
        return bool(self.left)

    def plan_range(self, first: int, last: int) -> list[SeqSpan | IndexedRange]:
        """Returns the parts of a range to search, newest first: index files, and the gaps between them."""
        index_files = self.context.index_files
        found: list[SeqSpan | IndexedRange] = []
        if index_files is not None:
            for part in reversed(index_files.choose(self.topic, self.index.description, self.query, first, last)):
                if part.last < last:
                    found += seq_spans(self.topic, part.last + 1, last, PACK_BYTES)
                found.append(part)
                last = part.first - 1
        if first <= last:
            found += seq_spans(self.topic, first, last, PACK_BYTES)
        return found

    def plan_again(self, part: IndexedRange) -> None:
        """Plans the range of an index file again, without this file."""
        instead = self.plan_range(part.first, part.last)
        self.left += instead if self.ascending else reversed(instead)

    def take_near(self) -> list[IndexedRange]:
        """Takes the next index files that are local, several at once, because each message is a round trip between
        processes. They count as used until the answer."""
        index_files, parts = self.context.index_files, list[IndexedRange]()
        while self.left and len(parts) < _INDEX_FILES_MAX:
            following = self.left[-1]
            if index_files is None or not isinstance(following, IndexedRange) or not index_files.is_near(following):
                break
            if parts and following.remote is not None:
                # Fetched files are searched one at a time, because a file in use cannot be evicted for the next one.
                break
            parts.append(following)
            self.left.pop()
            index_files.begin(following)
        return parts

    def release(self, parts: list[IndexedRange]) -> None:
        """Index files are no longer in use."""
        for part in parts:
            assert self.context.index_files is not None
            self.context.index_files.end(part)

    def take(self, result: Result) -> Result:
        """Stores the result of a part."""
        self.enough, self.spent = result.enough, self.spent or result.spent
        return result

    def take_parts(self, parts: list[IndexedRange], result: Result) -> Result | None:
        """Stores the result of index files. Files that were not searched within the time stay planned. Returns None if
        a file cannot be read; its range is planned again."""
        self.take(result)
        if not parts:
            return result
        done, rest = parts[: result.looked_up], parts[result.looked_up :]
        self.indexed += [SeqSpan(part.first, part.last) for part in done]
        self.left += reversed(rest)
        if not result.unreadable:
            return result
        assert self.context.index_files is not None
        unreadable = rest[0]
        self.left.pop()
        self.context.index_files.distrust(self.topic, unreadable.path, result.unreadable)
        self.plan_again(unreadable)
        return None

    def removed(self, part: SeqSpan) -> tuple[tuple[int, int], ...]:
        return removed_between(self.topic, self.context.engine.reader, part.first, part.last)

    def outcome(self, result: Result) -> Outcome:
        self.spent = self.spent or result.spent
        requested, memory_range = self.requested, self.memory_range
        missed: list[SeqSpan] = []
        if not self.enough:
            missed += (*(SeqSpan(part.first, part.last) for part in self.left), *self.skipped)
            # Behind the entries that were scanned, or would have been.
            begin = max(requested.first, self.planned_through + 1)
            missed.append(SeqSpan(begin if memory_range is None else max(begin, memory_range.last + 1), requested.last))
        looked = memory_range or SeqSpan(requested.first, requested.first - 1)
        return account(
            self.topic, result, self.head, looked, self.scanned, self.scanned_bytes, self.indexed, missed, self.spent
        )


_LATE = object()
"""The outcome of a wait that the deadline cut short."""


def nothing_in_time(context: QueryContext, topic: Topic, query: Query, head: int | None = None) -> Outcome:
    """Returns the outcome of a query whose deadline was over at the start."""
    progress = _Progress(context, topic, query, 0.0, head)
    progress.spent = "time"
    return progress.outcome(Result())


def execute_query(
    context: QueryContext,
    topic: Topic,
    index: FedIndex,
    query: Query,
    deadline: float,
    timeout_s: float,
    head: int | None = None,
) -> Steps[Outcome]:
    """Answers a query within its time, from the memory index, index files and a scan of the rest. Entries after `head`,
    by default the end of the stream, are not examined."""
    progress = _Progress(context, topic, query, deadline, head)
    progress.index = index
    cancel = context.later(timeout_s, progress.late)
    result: Result | None
    try:
        # In ascending order the oldest parts come first, otherwise the memory index.
        if progress.ascending and progress.plan_older():
            result = yield from _open_question(progress, _NOTHING, stays=True)
        else:
            result = yield from _ask_memory_index(progress)
        while result is None or not result.is_final:
            if progress.spent is None and context.now() >= deadline:
                progress.spent = "time"
            if progress.enough or progress.spent is not None:
                result = yield _finish(progress)
                break
            if progress.left or (progress.ascending and progress.plan_older()):
                part = progress.left[-1]
                if isinstance(part, IndexedRange):
                    result = yield from _ask_index_files(progress, part)
                else:
                    result = yield from _scan(progress, part)
            elif progress.memory_range is None:
                result = yield from _ask_memory_index(progress)
            else:
                result = yield _finish(progress)
                break
    finally:
        cancel()
    assert result is not None
    context.feed.weigh(index, result.memory_bytes)
    return progress.outcome(result)


def _ask_memory_index(progress: _Progress) -> Steps[Result | None]:
    """Fills the memory index and queries it. Returns None if older entries must be examined first."""
    context, index, requested = progress.context, progress.index, progress.requested
    filled: object = None
    if index.through < progress.head:
        try:
            filled = yield from _unless_late(progress, lambda resume: context.feed.fill(index, progress.head, resume))
        except TopicsError:
            _abandon(progress)
            raise
    if filled is not _LATE and progress.ascending and progress.plan_older():
        # Meanwhile some entries were dropped from the memory index, or did not fit.
        return (yield from _open_question(progress, _NOTHING, stays=True)) if progress.question is None else None
    span = SeqSpan(max(requested.first, index.start + 1), min(requested.last, index.through, progress.head))
    progress.memory_range = span
    question = progress.question
    if question is None:
        stays = not progress.ascending and progress.plan_older() and progress.spent is None
        return (yield from _open_question(progress, span, stays))
    removed = progress.removed(span)
    return progress.take(
        (
            yield _ask(
                progress, lambda request: More(request, question, (), *span, removed, is_last=True, owner=context.owner)
            )
        )
    )


def _open_question(progress: _Progress, span: SeqSpan, stays: bool) -> Steps[Result | None]:
    """Opens the query with a range of the memory index and, in the same message, the next index files."""
    # Finding removed entries takes time, and the memory index often has enough hits.
    is_quick = span.first > span.last or not has_removed(progress.topic)
    parts = progress.take_near() if stays and is_quick else []
    removed, index = progress.removed(_around(span, parts)), progress.index.index
    deadline = progress.deadline + (_LATE_S if progress.spent is not None else 0.0)
    query, is_last, owner = progress.query, progress.is_last, progress.context.owner

    def make(request: int) -> AskMessage:
        progress.question = request if stays else None
        return AskMessage(request, index, deadline, *span, removed, query, _mapped(parts), stays, is_last, owner)

    try:
        result: Result = yield _ask(progress, make)
    finally:
        progress.release(parts)
    return progress.take_parts(parts, result)


def _ask_index_files(progress: _Progress, part: IndexedRange) -> Steps[Result | None]:
    """Searches the next index files. A file that is not cached is fetched first, because its entries are in the same
    store."""
    index_files, question = progress.context.index_files, progress.question
    assert index_files is not None and question is not None
    if not index_files.is_near(part):
        fetched = yield from _unless_late(
            progress, lambda resume: index_files.fetch(progress.topic, part, lambda: resume(None))
        )
        # Until it is fetched its range is left, and missed if the deadline passes. If the fetch fails, the file is not
        # selected again.
        if fetched is not _LATE:
            progress.left.pop()
            progress.plan_again(part)
        return None
    parts = progress.take_near()
    removed, is_last, owner = progress.removed(_around(_NOTHING, parts)), progress.is_last, progress.context.owner

    def make(request: int) -> More:
        return More(request, question, removed=removed, mapped=_mapped(parts), is_last=is_last, owner=owner)

    try:
        result: Result = yield _ask(progress, make)
    finally:
        progress.release(parts)
    return progress.take_parts(parts, result)


def _scan(progress: _Progress, part: SeqSpan) -> Steps[Result | None]:
    """Reads unindexed entries and sends them to be scanned."""
    context, question = progress.context, progress.question
    assert question is not None
    read = ReadRequest(from_seq=part.first - 1, limit=PACK_RECORDS, max_bytes=PACK_BYTES, up_to=part.last)
    try:
        packed: Pack = yield Until(
            lambda resume: context.engine.read_as(progress.topic, read, pack, resume, aside=True)
        )
    except TopicsError:
        _abandon(progress)
        raise
    if progress.scanned_bytes + packed.text_bytes > context.scan_bytes:
        progress.spent = "bytes"
        return None
    progress.left.pop()
    reached = min(packed.through, part.last)
    if reached < part.first:
        progress.skipped.append(part)
        return None
    if reached < part.last:
        progress.left.append(SeqSpan(reached + 1, part.last))
        if not progress.ascending:
            # The range was larger than estimated. The entries behind it are to be searched first, so it is read again
            # later.
            progress.left.insert(-1, SeqSpan(part.first, reached))
            return None
    progress.scanned.append(SeqSpan(part.first, reached))
    progress.scanned_bytes += packed.text_bytes
    if not packed.pieces:
        return None
    is_last = progress.is_last
    result: Result = yield _ask(
        progress,
        lambda request: More(request, question, packed.pieces, is_last=is_last, owner=context.owner),
        packed.body,
    )
    return progress.take(result)


def _ask(progress: _Progress, make: Callable[[int], Question], body: Sequence[bytes | memoryview] = ()) -> Until:
    """Sends a message to the search process and waits for its result."""
    return Until(partial(progress.context.searcher.ask, make, body=body))


def _unless_late(progress: _Progress, wait: Callable[[Callable[[object], None]], None]) -> Steps[object]:
    """Waits for an outcome until the deadline, and then returns `_LATE`."""

    def register(resume: Callable[[object], None]) -> None:
        progress.time_is_up = resume
        wait(resume)

    try:
        return (yield Until(register))
    finally:
        progress.time_is_up = None


def _finish(progress: _Progress) -> Until:
    """Ends an open query. The result combines all its parts."""
    question = progress.question
    assert question is not None
    return _ask(progress, lambda request: Finish(request, question, progress.context.owner))


def _abandon(progress: _Progress) -> None:
    """Drops an open query whose answer is no longer needed."""
    question, progress.question = progress.question, None
    if question is not None:
        owner = progress.context.owner
        progress.context.searcher.ask(lambda request: Finish(request, question, owner), lambda _: None)


def _around(memory_range: SeqSpan, parts: list[IndexedRange]) -> SeqSpan:
    """Returns the range from the first to the last queried seq."""
    firsts, lasts = [part.first for part in parts], [part.last for part in parts]
    if memory_range.first <= memory_range.last:
        firsts.append(memory_range.first)
        lasts.append(memory_range.last)
    return SeqSpan(min(firsts), max(lasts)) if firsts else _NOTHING


def _mapped(parts: list[IndexedRange]) -> tuple[Mapped, ...]:
    return tuple([Mapped(one.path, one.first, one.last, one.seal) for one in parts])


def _requested_span(query: Query, everything: SeqSpan) -> tuple[SeqSpan, bool]:
    """Returns the range that a query has to search, and whether it starts with the oldest entry."""
    if not isinstance(query, SearchQuery):
        return everything, False
    name, _, direction = (query.sort[0] if query.sort else OFFSET).strip().partition(":")
    ascending = name == OFFSET and direction == "asc"
    # Without a sort, a query for words is sorted by score.
    if query.after is None or query.count_all or name != OFFSET or (not query.sort and len(query.after) > 1):
        return everything, ascending
    # Entries before the start of the page are not part of the answer.
    place: int = query.after[0]
    if ascending:
        return SeqSpan(max(everything.first, place + 1), everything.last), True
    return SeqSpan(everything.first, min(everything.last, place - 1)), False


# Searches that are ranked by BM25: terms are counted in all parts first, then the query runs like any other.
#
# Both passes use the same parts, up to the same entry. Each may take half of the time and of the bytes, so that a
# ranked search costs no more than another one. The counts are part of the cursor of the next page: that page is ranked
# by the same statistics, whatever was written or removed in between, and does not count again.


def execute_ranked_query(
    context: QueryContext, topic: Topic, index: FedIndex, query: SearchQuery, deadline: float, timeout_s: float
) -> Steps[Outcome]:
    """Answers a ranked search; like `execute_query`."""
    context = context._replace(scan_bytes=context.scan_bytes // 2)
    description, head = index.description, topic.visible_head
    counted: Outcome | None = None
    if terms_of(known_search(query.q, description.contract.registry).predicate):
        half_s = timeout_s / 2
        counted = yield from execute_query(context, topic, index, CountQuery(query.q), deadline - half_s, half_s, head)
        query = replace(query, statistics=counted.result.counted)
    left_s = deadline - context.now()
    if left_s <= 0:
        found = nothing_in_time(context, topic, query, head)
    else:
        # Requested again, because the index may have been evicted while terms were counted.
        index = context.feed.for_query(topic, description)
        found = yield from execute_query(context, topic, index, query, deadline, left_s, head)
    return found if counted is None else _joined(counted, found)


def _joined(counted: Outcome, found: Outcome) -> Outcome:
    """Merges two outcomes with all costs. Uncounted entries could change the ranking, so they count as missed."""
    joined = replace(
        found,
        spent=found.spent or counted.spent,
        scanned_bytes=found.scanned_bytes + counted.scanned_bytes,
        statistics=counted.result.counted,
    )
    if counted.missed <= found.missed:
        return joined
    return replace(
        joined,
        missed_sealed=counted.missed_sealed,
        missed_tail=counted.missed_tail,
        missed_segments=counted.missed_segments,
        missed_cold_segments=counted.missed_cold_segments,
        first_missed=counted.first_missed,
    )
