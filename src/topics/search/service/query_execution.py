"""One query over one stream, part by part.

What is fresh is asked of the index, once all that the query has to see was brought to it. What is older than the index
is asked of companions. Where there is none it is read from the stream and looked at entry by entry, the newest first,
as long as time and bytes last; a query that wants the oldest entries first begins at the other end. What was not looked
at is told.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, first_readable
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.search.query.score import terms_of
from topics.search.query.sort import OFFSET
from topics.search.service.backend import (
    PACK_BYTES,
    PACK_RECORDS,
    Later,
    Pack,
    Searcher,
    SeqSpan,
    Trampoline,
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
from topics.search.worker.query_cache import known_search
from topics.streams.chunked_validation import Description

# What a query found, and what its answer covers.


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    result: Result
    head: int
    """The last entry when the query came."""
    first: int
    """The index was asked about entries from here to `last`."""
    last: int
    missed_sealed: int = 0
    """Entries that were not looked at, at most."""
    missed_tail: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    scanned: tuple[SeqSpan, ...] = ()
    """What was looked at entry by entry, in the order in which it was."""
    scanned_segments: int = 0
    scanned_bytes: int = 0
    indexed_segments: int = 0
    """Segments that companions answered for."""
    spent: str | None = None
    """The budget that ran out."""
    statistics: tuple[int, ...] = ()
    """What was counted for a ranking."""

    @property
    def missed(self) -> int:
        return self.missed_sealed + self.missed_tail

    @property
    def complete(self) -> bool:
        return self.spent is None and not self.missed

    @property
    def looked_at_fresh(self) -> int:
        """Entries that the index has looked at."""
        return self.result.looked_at - self.result.scanned - self.result.indexed


_first_seq, _last_seq = attrgetter("first_seq"), attrgetter("last_seq")

OutcomeDone = Callable[[Outcome | TopicsError], None]


def account(
    topic: Topic,
    result: Result,
    head: int,
    fresh: SeqSpan,
    scanned: Sequence[SeqSpan],
    scanned_bytes: int,
    indexed: Sequence[SeqSpan],
    missed: Sequence[SeqSpan],
    spent: str | None,
) -> Outcome:
    """Counts what was missed, by where it is. Seqs are counted and not live entries: the bound is never too small."""
    last_sealed = topic.segments[-1].last_seq if topic.segments else (topic.origin.upto if topic.origin else 0)
    sealed = sum([max(min(part.last, last_sealed) - part.first + 1, 0) for part in missed])
    # What the index itself did not get to is counted with the tail.
    tail = sum([max(part.last - max(part.first, last_sealed + 1) + 1, 0) for part in missed]) + result.missed
    firsts = [part.first for part in missed if part.first <= part.last]
    if result.missed:
        firsts.append(fresh.first if result.first_missed is None else result.first_missed)
    return Outcome(
        result=result,
        head=head,
        first=fresh.first,
        last=fresh.last,
        missed_sealed=sealed,
        missed_tail=tail,
        missed_segments=_segments_in(topic, missed) if sealed else 0,
        first_missed=min(firsts) if firsts else None,
        scanned=tuple(scanned),
        scanned_segments=_segments_in(topic, scanned),
        scanned_bytes=scanned_bytes,
        indexed_segments=_segments_in(topic, indexed),
        spent=spent,
    )


def _segments_in(topic: Topic, parts: Sequence[SeqSpan]) -> int:
    """How many segments have a seq of these. Each part is a small stretch, so neighbours are often of one segment."""
    segments, count, behind = topic.segments, 0, 0
    for part in sorted(parts):
        if part.first <= part.last:
            begin = bisect_left(segments, part.first, behind, key=_last_seq)
            behind = bisect_right(segments, part.last, begin, key=_first_seq)
            count += behind - begin
    return count


_LATE_S = 1.0
"""Who is late already gets what is there: the answer to it is a matter of milliseconds."""
_NOTHING = SeqSpan(1, 0)
_AT_ONCE = 64
"""Companions that one question is about."""


class QueryContext(NamedTuple):
    """What a query is answered with."""

    engine: Engine
    searcher: Searcher
    follower: IndexFeed
    later: Later
    now: Callable[[], float]
    scan_bytes: int
    companions: IndexFiles | None = None
    """None where there is no disk to look for any."""


class QueryExecution:
    """One query on its way. It goes from step to step by callbacks: each asks for something and is called with it."""

    def __init__(
        self,
        means: QueryContext,
        topic: Topic,
        query: Query,
        deadline: float,
        done: OutcomeDone,
        head: int | None = None,
    ) -> None:
        """Nothing behind `head` is looked at; that is the end of the stream unless told."""
        self._means = means
        self._topic = topic
        self._query = query
        self._deadline = deadline
        self._done = done
        self._head = topic.head if head is None else head
        self._wanted, self._ascending = _wanted(query, SeqSpan(first_readable(topic), self._head))
        self._fresh: SeqSpan | None = None
        """What the index was asked about."""
        self._left: list[SeqSpan | IndexedRange] = []
        """What is still to be looked at, by companions or by a scan, the next one last."""
        self._planned_through = 0
        self._scanned: list[SeqSpan] = []
        self._skipped: list[SeqSpan] = []
        """What a read did not get to, though nobody knows why."""
        self._scanned_bytes = 0
        self._indexed: list[SeqSpan] = []
        """What companions were asked about."""
        self._asked: int | None = None
        """The number of the question, while it waits for further parts."""
        self._enough = False
        self._spent: str | None = None
        self._waits_for_entries = self._waits_for_companion = False
        self._steps = Trampoline()
        self._cancel: Callable[[], None] = _nothing

    def answer_nothing(self) -> None:
        """The time was over before anything was done."""
        self._spent = "time"
        self._answer(Result())

    def begin(self, description: Description, timeout_s: float) -> None:
        """Raises SearchUnavailableError."""
        self._description = description
        self._followed = self._means.follower.of(self._topic, description)
        self._cancel = self._means.later(timeout_s, self._late)
        if self._ascending and self._plan_scan():
            self._ask(_NOTHING, stays=True)
        else:
            self._bring()

    def _next(self) -> None:
        """The next step, behind any part."""
        self._steps.next(self._step)

    def _step(self) -> None:
        if self._spent is None and self._means.now() >= self._deadline:
            self._spent = "time"
        if self._enough or self._spent is not None:
            self._finish()
        elif self._left or (self._ascending and self._plan_scan()):
            part = self._left[-1]
            if isinstance(part, IndexedRange):
                self._look_up(part)
            else:
                self._scan(part)
        elif self._fresh is None:
            self._bring()
        else:
            self._finish()

    # What is fresh

    def _bring(self) -> None:
        self._waits_for_entries = True
        self._means.follower.bring(self._followed, self._head, self._brought)

    def _brought(self, outcome: FedIndex | TopicsError) -> None:
        if not self._waits_for_entries:
            return
        self._waits_for_entries = False
        if isinstance(outcome, TopicsError):
            self._fail(outcome)
        elif self._ascending and self._plan_scan():
            # Meanwhile some of what was in the index has fallen out of it, or did not fit into it.
            if self._asked is None:
                self._ask(_NOTHING, stays=True)
            else:
                self._next()
        else:
            self._ask_fresh()

    def _late(self) -> None:
        """The time is over: who waits for entries to be brought, or for a companion, goes on with what is there."""
        self._spent = "time"
        if self._waits_for_entries:
            self._waits_for_entries = False
            self._ask_fresh()
        elif self._waits_for_companion:
            self._waits_for_companion = False
            self._next()

    def _ask_fresh(self) -> None:
        followed, wanted = self._followed, self._wanted
        fresh = self._fresh = SeqSpan(
            max(wanted.first, followed.start + 1), min(wanted.last, followed.through, self._head)
        )
        asked = self._asked
        if asked is not None:
            removed = self._removed(fresh)
            self._tell(lambda request: More(request, asked, (), fresh.first, fresh.last, removed, is_last=True))
        else:
            stays = not self._ascending and self._plan_scan() and self._spent is None
            self._ask(fresh, stays)

    def _ask(self, fresh: SeqSpan, stays: bool) -> None:
        """Begins the query: what is fresh, and in the same question the companions that come next."""
        # Where entries were removed it takes a while to tell which, and what is fresh is often enough.
        is_quick = fresh.first > fresh.last or not has_removed(self._topic)
        parts = self._take_near() if stays and is_quick else []
        removed, index = self._removed(_around(fresh, parts)), self._followed.index
        deadline = self._deadline + (_LATE_S if self._spent is not None else 0.0)
        is_last = self._is_last

        def make(request: int) -> AskMessage:
            self._asked = request if stays else None
            return AskMessage(
                request, index, deadline, fresh.first, fresh.last, removed, self._query, _mapped(parts), stays, is_last
            )

        self._means.searcher.ask(make, lambda result: self._told_of(parts, result))

    def _removed(self, part: SeqSpan) -> tuple[tuple[int, int], ...]:
        return removed_between(self._topic, self._means.engine.core.reader, part.first, part.last)

    # What is older

    def _plan_scan(self) -> bool:
        """Lays out what the index does not have and nobody has looked at; whether there is anything."""
        first = max(self._wanted.first, self._planned_through + 1)
        last = min(self._followed.start, self._wanted.last)
        self._planned_through = max(last, self._planned_through)
        self._left = self._laid_out(first, last) if first <= last else []
        if not self._ascending:
            self._left.reverse()
        return bool(self._left)

    def _laid_out(self, first: int, last: int) -> list[SeqSpan | IndexedRange]:
        """What is to be looked at of a range, the newest first: companions, and what none of them has."""
        companions = self._means.companions
        found: list[SeqSpan | IndexedRange] = []
        if companions is not None:
            for part in reversed(companions.choose(self._topic, self._description, self._query, first, last)):
                if part.last < last:
                    found += seq_spans(self._topic, part.last + 1, last, PACK_BYTES)
                found.append(part)
                last = part.first - 1
        if first <= last:
            found += seq_spans(self._topic, first, last, PACK_BYTES)
        return found

    def _fetch(self, companions: IndexFiles, part: IndexedRange) -> None:
        """The entries that it has are as far away, so the query waits. What is not there then is not chosen again."""
        self._waits_for_companion = True

        def done() -> None:
            # Until then it is what is left, and if the time is over meanwhile, what is missed.
            if self._waits_for_companion:
                self._waits_for_companion = False
                self._left.pop()
                self._lay_out_again(part)

        companions.fetch(self._topic, part, done)

    def _lay_out_again(self, part: IndexedRange) -> None:
        """What a companion was to answer for, as it can be looked at now."""
        instead = self._laid_out(part.first, part.last)
        self._left += instead if self._ascending else reversed(instead)
        self._next()

    def _look_up(self, part: IndexedRange) -> None:
        """Asks the companions that come next."""
        companions, asked = self._means.companions, self._asked
        assert companions is not None and asked is not None
        if not companions.is_near(part):
            self._fetch(companions, part)
            return
        parts = self._take_near()
        removed, is_last = self._removed(_around(_NOTHING, parts)), self._is_last
        self._means.searcher.ask(
            lambda request: More(request, asked, removed=removed, mapped=_mapped(parts), is_last=is_last),
            lambda result: self._told_of(parts, result),
        )

    def _take_near(self) -> list[IndexedRange]:
        """The companions that come next and are near, several at once: each question goes to another process and
        back. They are in use until it is told what became of them."""
        companions, parts = self._means.companions, list[IndexedRange]()
        while self._left and len(parts) < _AT_ONCE:
            following = self._left[-1]
            if companions is None or not isinstance(following, IndexedRange) or not companions.is_near(following):
                break
            if parts and following.remote is not None:
                # One at a time of those that were fetched: none of them can make room for others while it is asked.
                break
            parts.append(following)
            self._left.pop()
            companions.begin(following)
        return parts

    def _told_of(self, parts: list[IndexedRange], result: Result | SearchUnavailableError) -> None:
        """What companions had, as many of them as were asked. The others are left."""
        companions = self._means.companions
        for one in parts:
            assert companions is not None
            companions.end(one)
        if not isinstance(result, Result):
            self._end(result)
            return
        done, rest = parts[: result.looked_up], parts[result.looked_up :]
        self._indexed += [SeqSpan(one.first, one.last) for one in done]
        self._left += reversed(rest)
        if result.unreadable:
            assert companions is not None
            self._left.pop()
            self._enough, self._spent = result.enough, self._spent or result.spent
            companions.distrust(self._topic, rest[0].path, result.unreadable)
            self._lay_out_again(rest[0])
        else:
            self._take(result)

    def _scan(self, part: SeqSpan) -> None:
        request = ReadRequest(from_seq=part.first - 1, limit=PACK_RECORDS, max_bytes=PACK_BYTES, up_to=part.last)
        try:
            self._means.engine.read_as(
                self._topic, request, pack, lambda outcome: self._take_pack(part, outcome), aside=True
            )
        except TopicsError as error:
            self._fail(error)

    def _take_pack(self, part: SeqSpan, packed: Pack | TopicsError) -> None:
        if isinstance(packed, TopicsError):
            self._fail(packed)
            return
        if self._scanned_bytes + packed.text_bytes > self._means.scan_bytes:
            self._spent = "bytes"
            self._next()
            return
        self._left.pop()
        reached = min(packed.through, part.last)
        if reached < part.first:
            self._skipped.append(part)
            self._next()
            return
        if reached < part.last:
            self._left.append(SeqSpan(reached + 1, part.last))
            if not self._ascending:
                # It was larger than it seemed. What comes behind is to be looked at first, so this is read again.
                self._left.insert(-1, SeqSpan(part.first, reached))
                self._next()
                return
        self._scanned.append(SeqSpan(part.first, reached))
        self._scanned_bytes += packed.text_bytes
        asked = self._asked
        assert asked is not None
        if packed.pieces:
            self._tell(lambda request: More(request, asked, packed.pieces, is_last=self._is_last), packed.body)
        else:
            self._next()

    # Asking and answering

    @property
    def _is_last(self) -> bool:
        """Whether nothing follows on what is asked now. With the oldest first, what is fresh does."""
        return not self._left and not self._ascending

    def _tell(self, make: Callable[[int], Question], body: tuple[bytes | memoryview, ...] = ()) -> None:
        """Asks something after which there is more to do."""
        self._means.searcher.ask(make, self._told, body)

    def _told(self, result: Result | SearchUnavailableError) -> None:
        if isinstance(result, SearchUnavailableError):
            self._end(result)
        else:
            self._take(result)

    def _take(self, result: Result) -> None:
        self._enough, self._spent = result.enough, self._spent or result.spent
        if result.is_final:
            self._take_final(result)
        else:
            self._next()

    def _fail(self, error: TopicsError) -> None:
        """Gives up; whoever keeps the question may forget it."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._means.searcher.ask(lambda request: Finish(request, asked), lambda _: None)
        self._end(error)

    def _finish(self) -> None:
        asked = self._asked
        assert asked is not None
        self._means.searcher.ask(lambda request: Finish(request, asked), self._take_final)

    def _take_final(self, result: Result | SearchUnavailableError) -> None:
        if isinstance(result, SearchUnavailableError):
            self._end(result)
            return
        self._means.follower.weigh(self._followed, result.memory_bytes)
        self._answer(result)

    def _answer(self, result: Result) -> None:
        self._spent = self._spent or result.spent
        wanted, fresh = self._wanted, self._fresh
        missed: list[SeqSpan] = []
        if not self._enough:
            missed += (*(SeqSpan(part.first, part.last) for part in self._left), *self._skipped)
            # Behind what was, or would have been, scanned.
            begin = max(wanted.first, self._planned_through + 1)
            missed.append(SeqSpan(begin if fresh is None else max(begin, fresh.last + 1), wanted.last))
        looked = fresh or SeqSpan(wanted.first, wanted.first - 1)
        self._end(
            account(
                self._topic, result, self._head, looked, self._scanned, self._scanned_bytes, self._indexed, missed,
                self._spent,
            )
        )  # fmt: skip

    def _end(self, outcome: Outcome | TopicsError) -> None:
        # Let go at once, and not by the garbage collector: the timer holds this, too.
        cancel, self._cancel = self._cancel, _nothing
        cancel()
        self._done(outcome)


def _nothing() -> None:
    return


def _around(fresh: SeqSpan, parts: list[IndexedRange]) -> SeqSpan:
    """All seqs between the first and the last of what is asked about."""
    firsts, lasts = [part.first for part in parts], [part.last for part in parts]
    if fresh.first <= fresh.last:
        firsts.append(fresh.first)
        lasts.append(fresh.last)
    return SeqSpan(min(firsts), max(lasts)) if firsts else _NOTHING


def _mapped(parts: list[IndexedRange]) -> tuple[Mapped, ...]:
    return tuple([Mapped(one.path, one.first, one.last) for one in parts])


def _wanted(query: Query, everything: SeqSpan) -> tuple[SeqSpan, bool]:
    """What a query has to look at, and whether it begins with the oldest."""
    if not isinstance(query, SearchQuery):
        return everything, False
    name, _, direction = (query.sort[0] if query.sort else OFFSET).strip().partition(":")
    ascending = name == OFFSET and direction == "asc"
    # Without a sort, a query for words is sorted by more than the offset.
    if query.after is None or query.count_all or name != OFFSET or (not query.sort and len(query.after) > 1):
        return everything, ascending
    # What comes before the place where the page begins is no part of the answer.
    place: int = query.after[0]
    if ascending:
        return SeqSpan(max(everything.first, place + 1), everything.last), True
    return SeqSpan(everything.first, min(everything.last, place - 1)), False


# Searches that are ranked by rarity: terms are counted in all parts first, and then the query is asked like any other.
#
# Both go the same way through the same parts, up to the same entry. Each may take half of the time and of the bytes, so
# that a ranked search costs no more than another one may. What was counted goes with the place where the next page
# begins: that page is ranked by the same statistics, whatever was written or removed in between, and counts nothing.


class RankedQueryExecution:
    """One ranked search on its way."""

    def __init__(
        self, means: QueryContext, topic: Topic, query: SearchQuery, deadline: float, done: OutcomeDone
    ) -> None:
        self._means = means._replace(scan_bytes=means.scan_bytes // 2)
        self._topic = topic
        self._query = query
        self._deadline = deadline
        self._done = done
        self._head = topic.head

    def begin(self, description: Description, timeout_s: float) -> None:
        """Raises SearchUnavailableError."""
        self._description = description
        if not terms_of(known_search(self._query.q, description.contract.registry).predicate):
            self._search(None)
            return
        half_s = timeout_s / 2
        counting = QueryExecution(
            self._means, self._topic, CountQuery(self._query.q), self._deadline - half_s, self._counted, self._head
        )
        counting.begin(description, half_s)

    def _counted(self, counted: Outcome | TopicsError) -> None:
        if isinstance(counted, TopicsError):
            self._done(counted)
            return
        self._query = replace(self._query, statistics=counted.result.counted)
        try:
            self._search(counted)
        except TopicsError as error:
            self._done(error)

    def _search(self, counted: Outcome | None) -> None:
        def done(outcome: Outcome | TopicsError) -> None:
            if counted is not None and isinstance(outcome, Outcome):
                outcome = _joined(counted, outcome)
            self._done(outcome)

        asking = QueryExecution(self._means, self._topic, self._query, self._deadline, done, self._head)
        left_s = self._deadline - self._means.now()
        if left_s <= 0:
            asking.answer_nothing()
        else:
            asking.begin(self._description, left_s)


def _joined(counted: Outcome, found: Outcome) -> Outcome:
    """What was found, with all that was spent. What was not counted may stand in another place, so it is missing."""
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
        first_missed=counted.first_missed,
    )
