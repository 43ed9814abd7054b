"""Search worker: keeps memory indexes and open index files, and answers questions in turns by owner.

Fair queueing: a question is one step of a query and usually takes some milliseconds. Each owner, which is an API key,
has a queue of questions, and the owners are served round-robin. Between two steps of a query, another key therefore
gets at most one step, however many queries it sends.

A query searches the memory index first, then index files and scanned entries, until no part is left.
"""

import mmap
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np

from topics.model.seq_ranges import SeqRange
from topics.schema.registry import Registry, decode_registry
from topics.search.file_index.file_format import IndexFileDamagedError, MappedFile, plan_of
from topics.search.file_index.manifest import parse_index_file_name
from topics.search.file_index.query_part import IndexFilePart, ResultCache
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.memory_index.column_store import Decoder, read_value
from topics.search.memory_index.memory_index import MemoryIndex, MemoryIndexPart
from topics.search.memory_index.row_selection import MaskEvaluator
from topics.search.query.aggregate import Aggregation, show
from topics.search.query.field_values import Numbers
from topics.search.query.plan import (
    LONGEST_KNOWN,
    AggregatePlan,
    Ask,
    Budget,
    Count,
    CountPlan,
    KeyListPlan,
    Running,
    SearchPlan,
    Span,
    known_aggregation,
    known_search,
    known_sort,
)
from topics.search.query.plan import Ask as PlanAsk
from topics.search.query.predicates import Predicate, bind_filter, fields_of
from topics.search.query.scan import EntryReader
from topics.search.query.schemaless_filter import Looked, free_filter
from topics.search.query.score import Weights, terms_of
from topics.search.query.sort import OFFSET, Hit, Sort, parse_sort
from topics.search.worker.messages import (
    NO_INDEX,
    Add,
    AggregateQuery,
    Answer,
    AskMessage,
    Close,
    CountQuery,
    Drop,
    Filter,
    Finish,
    Hits,
    KeysQuery,
    Mapped,
    Message,
    Messages,
    More,
    Open,
    Piece,
    Query,
    Question,
    Result,
    SearchQuery,
    Seek,
    Trim,
    encode_message,
    views,
)
from topics.wire.record_slicing import View, data_parts, head_of, tag_texts, tag_value

# State of a stream in the search process: its description, and its newest entries as columns in chunks.

_DECODERS = 64
"""The maximum number of cached decoders, one for each set of fields."""
_KNOWN_KEYS = 4096
"""The maximum number of cached routing keys: consecutive entries have few different ones."""


class HeldIndex:
    """A memory index and the parser of its entries.

    It consists of chunks, so that the oldest entries can be dropped without indexing the others again.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.config = registry.search_config
        self.version = registry.current_version
        self._reader = EntryReader(registry)
        self.plan = plan_of(registry)
        self._chunks: list[MemoryIndex] = []
        self._decoder = MemoryIndex(self.config, self.version).decoder()
        self._decoders: dict[tuple[str, ...] | None, Decoder] = {}
        self._known_keys: dict[bytes, str] = {}

    def add(self, pieces: tuple[Piece, ...], body: memoryview, new: bool) -> None:
        if new or not self._chunks:
            self._chunks.append(MemoryIndex(self.config, self.version))
        self._fill(self._chunks[-1], self._decoder, pieces, body, with_keys=True)

    def columns(
        self, names: tuple[str, ...] | None, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool = False
    ) -> tuple[MemoryIndex, int]:
        """Indexes the given entries only, with the requested fields (None for all). Returns the index and the size of
        the entries in bytes. This takes half as long as matching entries one by one."""
        index = MemoryIndex(self.config, self.version, names)
        decoder = self._decoders.get(names)
        if decoder is None:
            if len(self._decoders) >= _DECODERS:
                self._decoders.clear()
            decoder = self._decoders[names] = index.decoder()
        return index, self._fill(index, decoder, pieces, body, with_keys)

    def _fill(
        self, index: MemoryIndex, decoder: Decoder, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool
    ) -> int:
        """Indexes the entries of all pieces in one step, because a step costs more than an entry."""
        numbers: list[int] = []
        raws: list[bytes | memoryview] = []
        keys: list[str | None] = []
        for first_seq, view in views(pieces, body):
            numbers += range(first_seq, first_seq + view.count)
            raws += data_parts(view, 0, view.count)
            keys += self._keys_in(view, with_keys)
        self._reader.fill(index, decoder, numbers, raws, keys)
        return sum(map(len, raws))

    def _keys_in(self, view: View, requested: bool) -> list[str | None]:
        keys: list[str | None] = [None] * view.count
        known = self._known_keys
        for index, text in tag_texts(view, 0, view.count) if requested else ():
            key = known.get(text)
            if key is None:
                key = known[text] = tag_value(text)
            keys[index] = key
        if len(known) > _KNOWN_KEYS:
            known.clear()
        return keys

    def trim(self, first: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.last >= first]

    def parts(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> list[MemoryIndexPart]:
        """The chunks that have entries of a range, newest first."""
        parts = []
        for chunk in reversed(self._chunks):
            rows = chunk.count_between(first, last)
            if rows:
                span = Span(max(first, int(chunk.numbers[0])), min(last, chunk.last), rows)
                parts.append(MemoryIndexPart(chunk, span, removed))
        return parts

    @property
    def memory_bytes(self) -> int:
        return sum(chunk.memory_bytes for chunk in self._chunks)


_NO_SCAN_LIMIT = 1 << 62
"""The sender limits the number of scanned entries."""


class RunningQuery:
    """An open query and its results so far."""

    def __init__(
        self,
        held: HeldIndex,
        query: Query,
        now: Callable[[], float],
        deadline: float,
        result_cache: ResultCache | None = None,
    ) -> None:
        self.held = held
        # A long query would take more memory than its result.
        is_short = isinstance(query, SearchQuery) and len(query.q) <= LONGEST_KNOWN
        self._result_cache = result_cache if is_short else None
        self._budget = Budget(now, max(deadline - now(), 0.0), _NO_SCAN_LIMIT)
        self._aggregation: Aggregation | None = None
        self._ascending = False
        self._names: Callable[[], tuple[str, ...] | None] = tuple
        """Returns the fields that the query uses, or None for all. Only callers that read entries need it."""
        self._running = self._begin(query)
        self._scanned = 0
        self._indexed = 0

    def _begin(self, query: Query) -> Running:
        held = self.held
        if isinstance(query, KeysQuery):
            return KeyListPlan(query.after, query.limit, self._budget)
        assert held.config is not None
        if isinstance(query, AggregateQuery):
            aggregation = self._aggregation = known_aggregation(query.body, held.registry)
            self._names = lambda: aggregation.needed_fields
            return AggregatePlan(aggregation, self._budget)
        if isinstance(query, CountQuery):
            terms = terms_of(known_search(query.q, held.registry).predicate)
            self._names = lambda: tuple(dict.fromkeys(term.field for term in terms))
            return CountPlan(Count(config=held.config, version=held.version, terms=terms), self._budget)
        asked = _plan_ask(held, query)
        self._names = lambda: tuple(dict.fromkeys((*fields_of(asked.predicate), *asked.sort.fields)))
        by_offset = asked.sort.by_offset
        self._ascending = by_offset is not None and by_offset.ascending
        return SearchPlan(asked, self._budget)

    def take_memory_index(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Searches a range of the memory index."""
        parts = self.held.parts(first, last, removed)
        for part in reversed(parts) if self._ascending else parts:
            if self._running.needs_span(part.span):
                self._running.take(part)

    def take_entries(self, pieces: tuple[Piece, ...], body: memoryview) -> None:
        """Scans entries without an index, as one part."""
        count = sum([piece.count for piece in pieces])
        if not count:
            return
        last = pieces[-1]
        span = Span(pieces[0].first_seq, last.first_seq + last.count - 1, count, "segment")
        if self._running.needs_span(span):
            self._scanned += count
            index, _ = self.held.columns(self._names(), pieces, body, isinstance(self._running, KeyListPlan))
            self._running.take(MemoryIndexPart(index, span))

    def take_index_file(self, index_file: IndexFile, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Searches a range of an index file."""
        rows = index_file.count_between(first, last)
        span = Span(first, last, rows, "index")
        if self._running.needs_span(span):
            before = self._running.coverage.looked_at
            self._running.take(IndexFilePart(index_file, span, self.held.plan, removed, self._result_cache))
            self._indexed += self._running.coverage.looked_at - before

    @property
    def enough(self) -> bool:
        return self._running.enough

    def progress(self, looked_up: int = 0, unreadable: str = "") -> Result:
        """Returns the progress after a part."""
        return Result(enough=self._running.enough, spent=self._budget.spent, looked_up=looked_up, unreadable=unreadable)

    def finish(self, looked_up: int = 0) -> Result:
        """Returns the answer. `looked_up` is the number of index files searched by the last question."""
        running = self._running
        if isinstance(running, KeyListPlan):
            keys = running.keys()
            return self._result(looked_up, keys=tuple(keys.keys), is_full=keys.next_after is not None)
        if isinstance(running, CountPlan):
            return self._result(looked_up, counted=tuple(running.numbers()))
        if isinstance(running, AggregatePlan):
            assert self._aggregation is not None
            return self._result(looked_up, buckets=show(running.sums().groups, self._aggregation))
        page = running.page()
        return self._result(
            looked_up, hits=_hits(running.sort, page.hits), is_full=page.next_after is not None, matched=page.matched
        )

    def _result(self, looked_up: int, **found: Any) -> Result:
        coverage = self._running.coverage
        return Result(
            scanned=self._scanned,
            indexed=self._indexed,
            rolled=coverage.rolled,
            looked_at=coverage.looked_at,
            missed=coverage.missed,
            first_missed=coverage.first_missed,
            spent=coverage.spent,
            enough=self._running.enough,
            memory_bytes=self.held.memory_bytes,
            looked_up=looked_up,
            is_final=True,
            **found,
        )


def _hits(sort: Sort, found: Sequence[Hit]) -> Hits:
    scores = [hit.score for hit in found]
    keys = [None if key.name == OFFSET else [hit.place[index] for hit in found] for index, key in enumerate(sort.keys)]
    return Hits([hit.number for hit in found], scores if any(scores) else [], keys)


def _plan_ask(held: HeldIndex, query: SearchQuery) -> PlanAsk:
    assert held.config is not None
    bound = known_search(query.q, held.registry)
    return PlanAsk(
        config=held.config,
        version=held.version,
        predicate=bound.predicate,
        sort=known_sort(query.sort, held.registry, bound.has_text),
        size=query.size,
        after=None if query.after is None else tuple(query.after),
        count_all=query.count_all,
        weights=Weights(bound.predicate, query.statistics) if query.ranked else None,
    )


# Index files that are open in the search process. A file is mapped at its first search; the least recently used mapping
# is closed when there are too many.

OPEN_MAX = 1024
"""Mapped pages can be reclaimed by the system, but the number of mappings of a process is limited."""

MapFile = Callable[[str], memoryview | MappedFile]
"""Maps a whole file. Raises OSError."""


class UnreadableError(Exception):
    """An index file is missing or damaged."""


class OpenIndexFiles:
    def __init__(self, map_file: MapFile, open_max: int = OPEN_MAX) -> None:
        self._map_file = map_file
        self._open_max = open_max
        self._open: OrderedDict[str, IndexFile] = OrderedDict()

    def open(self, path: str) -> IndexFile:
        """Raises UnreadableError."""
        known = self._open.get(path)
        if known is None:
            try:
                known = IndexFile(self._map_file(path))
            except (OSError, ValueError) as error:
                # Mapping an empty file raises ValueError, like other damage.
                raise UnreadableError(str(error)) from error
            _check_name(path, known)
            self._open[path] = known
            if len(self._open) > self._open_max:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return known

    def close(self, path: str) -> None:
        self._open.pop(path, None)


def _check_name(path: str, index_file: IndexFile) -> None:
    """Raises UnreadableError if the file contains another range or plan than its name. Manifests of earlier releases
    have no checksum that proves more (`Mapped.seal`)."""
    named, head = parse_index_file_name(path.rpartition("/")[2]), index_file.head
    if named is not None and named != (head.first, head.last, head.generation[:8]):
        raise UnreadableError(f"{path}: the content does not match the name of the index file")


# Filters over records of topics without a search description. Only the fields that the filter uses are decoded.


def filter_records(head: Filter, body: memoryview) -> Result:
    requested = free_filter(head.filter)
    fields, matches = requested.fields, requested.matches
    seqs: list[int] = []
    scanned = 0
    for first_seq, view in views(head.pieces, body):
        raws = data_parts(view, 0, view.count)
        tags = dict(tag_texts(view, 0, view.count)) if "tag" in fields else {}
        for index, raw in enumerate(raws):
            ts, node = head_of(view, index) if "ts" in fields or "node" in fields else (0, None)
            tag = tags.get(index)
            looked = Looked(
                first_seq + index,
                ts,
                None if tag is None else tag_value(tag),
                node,
                read_value(raw) if "data" in fields else None,
            )
            if matches(looked):
                seqs.append(looked.seq)
        scanned += sum(map(len, raws))
    return Result(seqs=tuple(seqs), scanned_bytes=scanned)


# Finds the seqs of the next entries in an index file for a read by routing key, by filter, or both. The result may
# include entries that were removed since, which the reader detects. It never omits an entry.


def seek(index_file: IndexFile, held: HeldIndex | None, head: Seek, budget: Budget) -> Result:
    """`held` has the description of the entries; it is not needed for a lookup by key alone."""
    first, last = head.mapped.first, head.mapped.last
    predicate = None
    if head.filter:
        assert held is not None and held.config is not None
        predicate = bind_filter(head.filter, held.config)
    if head.key is not None:
        rows = _rows_of_key(index_file, head.key, first, last)
        if predicate is not None and len(rows):
            rows = rows[
                MaskEvaluator(picked := Rows(index_file, 0, index_file.head.rows, rows), picked.count).mask(predicate)
            ]
        seqs = Rows(index_file, 0, index_file.head.rows, rows[: head.limit]).numbers.tolist()
        return Result(seqs=tuple(seqs), is_full=len(rows) > head.limit)
    assert held is not None and predicate is not None
    return _matching(index_file, held, predicate, head, budget)


def _rows_of_key(index_file: IndexFile, key: str, first: int, last: int) -> Numbers:
    column = index_file.key
    code = column.texts.code(key)
    if code is None:
        return np.zeros(0, np.int64)
    lo, hi = index_file.row_range(first, last)
    rows = np.asarray(column.rows_at(column.places_of(code, code + 1)), np.int64)
    return rows[np.searchsorted(rows, lo) : np.searchsorted(rows, hi)]


def _matching(index_file: IndexFile, held: HeldIndex, predicate: Predicate, head: Seek, budget: Budget) -> Result:
    assert held.config is not None
    first, last = head.mapped.first, head.mapped.last
    ask = Ask(
        config=held.config, version=held.version, predicate=predicate,
        sort=parse_sort(("offset:asc",), held.config, False), size=head.limit,
    )  # fmt: skip
    span = Span(first, last, index_file.count_between(first, last), "index")
    found = IndexFilePart(index_file, span, held.plan).search(ask, budget)
    seqs = sorted(hit.number for hit in found.hits)
    if found.missed:
        # Out of time. The caller continues behind the entries found, or from the start.
        return Result(seqs=(), spent="time")
    return Result(seqs=tuple(seqs[: head.limit]), is_full=len(seqs) >= head.limit)


_SEEK_S: Final = 1.0
"""A lookup that takes longer is stopped and continued by the next read."""
_NO_LIMIT: Final = 1 << 62
_READ_BYTES: Final = 1 << 20
_SLICE_S: Final = 0.005
"""The time slice of a query over index files while other queries wait."""


class Worker:
    def __init__(self, now: Callable[[], float], map_file: MapFile) -> None:
        self._now = now
        self._library = OpenIndexFiles(map_file)
        self._result_cache = ResultCache()
        self._held: dict[int, HeldIndex] = {}
        self._asked: dict[int, RunningQuery] = {}

    def take(self, message: Message) -> bytes | None:
        """Handles a message; returns the answer, if it requires one."""
        head = message.head
        if isinstance(head, AskMessage | More | Finish | Filter | Seek):
            return encode_message(self._answer(head, message.body))
        if isinstance(head, Open):
            self._held[head.index] = HeldIndex(decode_registry(head.registry))
        elif isinstance(head, Drop):
            self._held.pop(head.index, None)
        elif isinstance(head, Trim):
            if head.index in self._held:
                self._held[head.index].trim(head.first)
        elif isinstance(head, Close):
            self._library.close(head.path)
        elif isinstance(head, Add):
            self._add(head, message.body)
        return None

    def concerns(self, question: Question, index: int) -> bool:
        """Whether a question depends on the current content of an index."""
        if isinstance(question, More | Finish):
            asked = self._asked.get(question.asked)
            return asked is not None and asked.held is self._held.get(index)
        return question.index == index

    def _add(self, head: Add, body: memoryview) -> None:
        held = self._held.get(head.index)
        if held is None:
            return
        try:
            held.add(head.pieces, body, head.new)
        except Exception:
            # Columns of different lengths must not be searched. Later questions get the error of an unknown index.
            del self._held[head.index]

    def _answer(self, head: Question, body: memoryview) -> Answer:
        try:
            if isinstance(head, AskMessage):
                return Answer(head.request, self._ask(head))
            if isinstance(head, Filter) and head.index == NO_INDEX:
                return Answer(head.request, filter_records(head, body))
            if isinstance(head, Filter):
                return Answer(head.request, _filter(self._index(head.index), head, body))
            if isinstance(head, Seek):
                return Answer(head.request, self._seek(head))
            if isinstance(head, Finish):
                return Answer(head.request, self._asked.pop(head.asked).finish())
            return Answer(head.request, self._ask_more(head, body))
        except UnreadableError as error:
            return Answer(head.request, Result(unreadable=_reason(error)))
        except Exception as error:
            # One failing query must not affect others. The server has validated the request already.
            if isinstance(head, More):
                # The caller does not send further parts.
                self._asked.pop(head.asked, None)
            return Answer(head.request, None, f"{type(error).__name__}: {error}")

    def _ask_more(self, head: More, body: memoryview) -> Result:
        asked = self._asked[head.asked]
        asked.take_entries(head.pieces, body)
        looked_up, unreadable = self._ask_index_files(asked, head.mapped, head.removed, self._now() + _SLICE_S)
        asked.take_memory_index(head.first, head.last, head.removed)
        if not unreadable and (asked.enough or (head.is_last and looked_up == len(head.mapped))):
            del self._asked[head.asked]
            return asked.finish(looked_up)
        return asked.progress(looked_up, unreadable)

    def _ask_index_files(
        self, asked: RunningQuery, mapped: tuple[Mapped, ...], removed: tuple[SeqRange, ...], end: float
    ) -> tuple[int, str]:
        """Searches index files in order until the time slice ends while other queries wait. Returns the number of
        searched files and, if the next one cannot be read, the reason; that file contributes nothing."""
        for number, one in enumerate(mapped):
            if asked.enough or (number and self._now() >= end):
                return number, ""
            try:
                with self._opened(one) as index_file:
                    asked.take_index_file(index_file, one.first, one.last, removed)
            except UnreadableError as error:
                return number, _reason(error)
        return len(mapped), ""

    def _seek(self, head: Seek) -> Result:
        """Raises UnreadableError."""
        held = None if head.index == NO_INDEX else self._index(head.index)
        with self._opened(head.mapped) as index_file:
            return seek(index_file, held, head, Budget(self._now, _SEEK_S, _NO_LIMIT))

    @contextmanager
    def _opened(self, one: Mapped) -> Iterator[IndexFile]:
        """Opens an index file. A damaged file, or one with another identity, is closed and reported as unreadable."""
        try:
            index_file = self._library.open(one.path)
            if one.seal is not None and index_file.seal != one.seal:
                raise IndexFileDamagedError("it is not the companion that the manifest names")
            yield index_file
        except IndexFileDamagedError as error:
            self._library.close(one.path)
            raise UnreadableError(f"{one.path}: {error}") from error

    def _index(self, index: int) -> HeldIndex:
        held = self._held.get(index)
        if held is None:
            raise LookupError("unknown index")
        return held

    def _ask(self, head: AskMessage) -> Result:
        end = self._now() + _SLICE_S
        asked = RunningQuery(self._index(head.index), head.query, self._now, head.deadline, self._result_cache)
        asked.take_memory_index(head.first, head.last, head.removed)
        looked_up, unreadable = self._ask_index_files(asked, head.mapped, head.removed, end)
        is_last = not head.stays or (head.is_last and looked_up == len(head.mapped))
        if not unreadable and (asked.enough or is_last):
            return asked.finish(looked_up)
        self._asked[head.request] = asked
        return asked.progress(looked_up, unreadable)


def _reason(error: UnreadableError) -> str:
    return str(error) or type(error).__name__


def _filter(held: HeldIndex, head: Filter, body: memoryview) -> Result:
    assert held.config is not None
    predicate = bind_filter(head.filter, held.config)
    index, size = held.columns(tuple(fields_of(predicate)), head.pieces, body)
    return Result(seqs=tuple(index.matching(predicate)), scanned_bytes=size)


class QuestionQueue:
    """Scheduler of messages: questions wait for their turn, other messages are handled immediately."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._waiting: OrderedDict[str, deque[Message]] = OrderedDict()

    def __len__(self) -> int:
        """The number of owners with waiting questions."""
        return len(self._waiting)

    def take(self, message: Message) -> list[bytes]:
        """Handles a message or queues it. Returns the answers that are due immediately. Entries may be added to an
        index before earlier questions are answered, but not dropped from it."""
        head = message.head
        if isinstance(head, AskMessage | More | Finish | Filter | Seek):
            owner = "" if isinstance(head, Filter | Seek) else head.owner
            self._waiting.setdefault(owner, deque()).append(message)
            return []
        answers = self._answer_about(head.index) if isinstance(head, Drop | Trim) else []
        self._worker.take(message)
        return answers

    def answer_next(self) -> bytes:
        """Answers the oldest question of the owner whose turn it is."""
        owner, waiting = self._waiting.popitem(last=False)
        message = waiting.popleft()
        if waiting:
            self._waiting[owner] = waiting
        return self._worker.take(message) or b""

    def _answer_about(self, index: int) -> list[bytes]:
        answers = []
        for owner, waiting in list(self._waiting.items()):
            left: deque[Message] = deque()
            for message in waiting:
                if self._worker.concerns(cast(Question, message.head), index):
                    answers.append(self._worker.take(message) or b"")
                else:
                    left.append(message)
            self._waiting[owner] = left
            if not left:
                del self._waiting[owner]
        return answers


def serve(connection: socket.socket, worker: Worker) -> None:
    """Serves a connection until it is closed. Messages received meanwhile are taken between two questions."""
    messages, questions = Messages(), QuestionQueue(worker)
    while True:
        try:
            data = connection.recv(_READ_BYTES, socket.MSG_DONTWAIT if questions else 0)
        except BlockingIOError:
            pass
        else:
            if not data:
                return
            for message in messages.feed(data):
                for answer in questions.take(message):
                    connection.sendall(answer)
        if questions:
            connection.sendall(questions.answer_next())


# File access of the search process. It opens files named in messages only, and never writes.


def map_file(path: str) -> MappedFile:
    """Maps a whole file. The mapping stays valid after the file is removed."""
    with open(path, "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read(offset: int, length: int) -> bytes:
        # The file is opened again for each part: the mapping has its descriptor, and another one for each open file
        # would exhaust the limit.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return bytes(view[offset : offset + length])
        try:
            return os.pread(fd, length, offset)
        finally:
            os.close(fd)

    return MappedFile(view, read)
