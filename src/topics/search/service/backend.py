"""Search backend: the interface to the search process, an inline one for tests and for engines without a server, and
the helpers of every search of a stream: packed entries, seq ranges, counters and the runner of generators.

Supervision of the search process: it is started with the first question and restarted if it dies. A new process has no
state; a new `generation` shows senders that earlier messages are lost.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from topics.engine.background_jobs import Until
from topics.engine.read import ReadPlan, chain_of, corrupt_error
from topics.engine.topic import Run, RunReader, Topic, live_ranges
from topics.log.segment_files import SegmentDamaged
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.model.seq_ranges import Ranges, SeqRange, Tombstone
from topics.search.worker.messages import Answer, Head, Messages, Piece, Question, Result, encode_message
from topics.search.worker.search_worker import MapFile, map_file
from topics.wire.record_slicing import View, end_that_fits

# Scheduling of search answers: one in each turn of the loop, after clients that wait for a commit.
#
# Rendering hits takes time, and other requests must not wait until all answers that arrived together are rendered.
# Neither must a commit: the commit thread needs the interpreter lock several times for a moment, and a loop that is
# busy rendering delays it, so that appends would take several times as long during searches. While a write to the disk
# is in progress, an answer therefore waits until it is acknowledged, but for a few milliseconds at most; the other
# answers that arrived meanwhile have then waited, too. A step of a query without hits to render takes almost no time
# and does not wait: a long query has hundreds of them.
#
# Priority for appends is not sufficient. When clients search as fast as they are answered, the server, the search
# process and the clients use every core, and a client that waits for an append gets no core. So while clients append
# and several search, the loop pauses after an answer, which slows the searching clients. The longer the line of
# answers, the more of them are sent between two pauses. Reads by key or through a filter receive only positions, which
# takes little time, and cause no pause.

PATIENCE_S = 0.003
"""The longest time that an answer waits for commits; most commits take a tenth of it."""
REST_S = 0.002
"""The pause after an answer while clients append."""
_RESTS = 8
"""The number of pauses until a line of constant length is worked off."""
_APPENDING_S = 0.05
"""A caller that got a commit within this time is expected to append again."""

ResultDone = Callable[[Result | SearchUnavailableError], None]


class AnswerTurns:
    """`is_committing` returns whether a commit with waiters is in flight, `is_asked` whether more answers are
    expected."""

    def __init__(self, is_committing: Callable[[], bool], is_asked: Callable[[], bool]) -> None:
        self._is_committing = is_committing
        self._is_asked = is_asked
        self._line: deque[tuple[ResultDone, Result | SearchUnavailableError]] = deque()
        self._due = False
        """Whether a turn is scheduled or waits for commits."""
        self._patience: asyncio.TimerHandle | None = None
        """The timer that ends the wait for commits, if there is one."""
        self._waited = 0
        """The number of answers at the front of the line that have waited long enough."""
        self._commits = self._commits_seen = 0
        self._appending_until = 0.0
        self._left = 1
        """The number of answers to send before the next pause."""

    def add(self, answers: list[tuple[ResultDone, Result | SearchUnavailableError]]) -> None:
        """Adds answers that arrived together, each with its receiver."""
        for done, result in answers:
            if _shows(result):
                self._line.append((done, result))
            else:
                asyncio.get_running_loop().call_soon(done, result)
        if self._line and not self._due:
            self._due = True
            self._begin()

    def committed(self) -> None:
        """Called when the waiters of a commit were answered."""
        self._commits += 1
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            # Runs after the clients of that commit.
            asyncio.get_running_loop().call_soon(self._take)

    def _begin(self) -> None:
        if not self._waited and self._is_committing():
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._no_longer)
        else:
            self._take()

    def _no_longer(self) -> None:
        self._patience = None
        self._waited = len(self._line)
        self._take()

    def _take(self) -> None:
        done, result = self._line.popleft()
        self._waited = max(self._waited - 1, 0)
        self._left -= _takes_a_while(result)
        loop = asyncio.get_running_loop()
        if self._left <= 0 and (self._line or self._is_asked()) and self._is_appending(loop.time()):
            self._due = True
            loop.call_later(REST_S, self._rested)
        elif self._line:
            self._due = True
            loop.call_soon(self._begin)
        else:
            self._due = False
        done(result)

    def _is_appending(self, now: float) -> bool:
        """Returns whether appends wait for the disk."""
        if self._commits != self._commits_seen:
            self._commits_seen = self._commits
            self._appending_until = now + _APPENDING_S
        return now < self._appending_until

    def _rested(self) -> None:
        self._left = 1 + len(self._line) // _RESTS
        self._due = bool(self._line)
        if self._due:
            self._begin()


def _takes_a_while(result: Result | SearchUnavailableError) -> bool:
    """Returns whether hits or aggregates have to be rendered."""
    return isinstance(result, Result) and (bool(result.hits) or result.buckets != b"[]")


def _shows(result: Result | SearchUnavailableError) -> bool:
    if isinstance(result, SearchUnavailableError):
        return False
    return bool(result.is_final or result.hits or result.keys or result.seqs) or result.buckets != b"[]"


# `-P` keeps modules of the working directory, which is not under our control, off the path.
COMMAND = (sys.executable, "-P", "-m", "topics.search.worker")
BUFFERED_BYTES = 64 * 1024
"""Bytes in the send buffer above which senders wait. It is small, because a query is queued behind them."""
_KILL_AFTER_S = 5.0
_log = logging.getLogger(__name__)


class SearchProcess(asyncio.Protocol):
    def __init__(self, command: Sequence[str] = COMMAND, is_committing: Callable[[], bool] = lambda: False) -> None:
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._messages = Messages()
        self._asked: dict[int, ResultDone] = {}
        self.turns = AnswerTurns(is_committing, lambda: self.is_asked)
        self._requests = 0
        self._paused = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False
        self.generation = 0
        """The number of processes that ended; requests sent to them are lost."""

    # Asking

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None:
        self._begin()
        frame = encode_message(head, body)
        if self._transport is None:
            self._unsent.append(frame)
        else:
            self._transport.write(frame)

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()) -> None:
        """Sends the message that `make` builds for a request number; `done` is called once with its answer."""
        self._requests += 1
        try:
            self.send(make(self._requests), body)
        except SearchUnavailableError as error:
            done(error)
            return
        self._asked[self._requests] = done

    @property
    def is_asked(self) -> bool:
        """Returns whether any request waits for an answer."""
        return bool(self._asked)

    @property
    def is_writable(self) -> bool:
        return not self._paused

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls back when the send buffer has room, or when the process has ended."""
        self._waiting.append(callback)

    # Process

    @property
    def child_pid(self) -> int | None:
        """The process id of the search process; None if none is running."""
        return None if self._child is None else self._child.pid

    def _begin(self) -> None:
        if self._closed:
            raise SearchUnavailableError("the server is stopping")
        if self._child is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            # In its own process group, so that a Ctrl-C in the terminal does not end it before the server does. But in
            # the server's session: Linux may distribute processor time equally between sessions, whatever their
            # priorities.
            self._child = subprocess.Popen(
                (*self._command, str(theirs.fileno())), pass_fds=(theirs.fileno(),), process_group=0
            )
        except OSError as error:
            ours.close()
            raise SearchUnavailableError(f"the searching process cannot be started: {error}") from error
        finally:
            theirs.close()
        self._messages = Messages()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(ours))

    async def _connect(self, ours: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio.Transport.
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(BUFFERED_BYTES)
        self._transport = transport
        unsent, self._unsent = self._unsent, []
        transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        answers = []
        for message in self._messages.feed(data):
            answer = message.head
            assert isinstance(answer, Answer)
            done = self._asked.pop(answer.request, None)
            if done is not None:
                result = answer.result or SearchUnavailableError(f"the search failed: {answer.problem}")
                answers.append((done, result))
        self.turns.add(answers)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, deque()
        for callback in waiting:
            callback()

    def connection_lost(self, error: Exception | None) -> None:
        child, self._child, self._transport = self._child, None, None
        self.generation += 1
        self._unsent = []
        if child is not None and not self._closed:
            _log.warning("search process ended", extra={"exit_status": child.poll()})
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done(SearchUnavailableError("the search process ended. Retry: the next search starts a new one"))
        self.resume_writing()
        if child is not None:
            # The child is ending or dead, and must be waited for.
            asyncio.get_running_loop().run_in_executor(None, _reap, child)

    async def close(self) -> None:
        """Ends the process."""
        self._closed = True
        child, connecting = self._child, self._connecting
        if connecting is not None:
            with contextlib.suppress(OSError):
                await connecting
        if self._transport is not None:
            self._transport.abort()
        if child is not None:
            await asyncio.get_running_loop().run_in_executor(None, _reap, child)


def _reap(child: "subprocess.Popen[bytes]") -> None:
    try:
        child.wait(_KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        # No request needs the rest of its work.
        child.kill()
        child.wait()


Later = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls a function after a number of seconds. Returns a function that cancels it."""


def at_once(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    """Runs a function at once if the delay is 0, and never otherwise: without a server no operation takes long."""
    if not seconds:
        function()
    return lambda: None


class Searcher(Protocol):
    generation: int

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None: ...

    def ask(
        self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()
    ) -> None: ...

    @property
    def is_writable(self) -> bool: ...

    def when_writable(self, callback: Callable[[], None]) -> None: ...


class InlineSearcher:
    """Answers immediately, in the call."""

    is_writable = True
    generation = 0

    def __init__(self, now: Callable[[], float], map_file: MapFile = map_file) -> None:
        self._now = now
        self._map_file = map_file
        self._worker: object = None
        self._messages = Messages()
        self._requests = 0

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None:
        self._take(head, body)

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()) -> None:
        self._requests += 1
        raw = self._take(make(self._requests), body)
        assert raw is not None
        (message,) = Messages().feed(raw)
        assert isinstance(message.head, Answer)
        done(message.head.result or SearchUnavailableError(message.head.problem))

    def when_writable(self, callback: Callable[[], None]) -> None:
        callback()

    def _take(self, head: Head, body: Sequence[bytes | memoryview]) -> bytes | None:
        # Imported here because it imports numpy, which the server's own process does not need.
        from topics.search.worker.search_worker import Worker  # noqa: PLC0415

        if self._worker is None:
            self._worker = Worker(self._now, self._map_file)
        assert isinstance(self._worker, Worker)
        (message,) = self._messages.feed(encode_message(head, body))
        return self._worker.take(message)


# Packs: stored entries in the form sent to the search process, rows and text, extracted without parsing.

PACK_BYTES = 1 << 19
PACK_RECORDS = 4096
"""The maximum number of records extracted in one step of the loop."""


class Pack(NamedTuple):
    pieces: tuple[Piece, ...]
    body: tuple[bytes | memoryview, ...]
    """For each piece, its rows and then its text."""
    through: int
    """The last seq that the pack covers, with an entry or without."""
    text_bytes: int
    tombstone: Tombstone | None
    """The lost range before the records."""


def pack(plan: ReadPlan, reader: RunReader) -> Pack:
    """Reads the records of a plan until the pack is full. It changes no shared state, so any thread may call it."""
    packed = _PackBuilder(plan, reader)
    through = min(plan.start - 1, plan.end)
    for run in plan.runs:
        lo, hi = max(plan.start - run.first_seq, 0), min(plan.end + 1 - run.first_seq, run.count)
        try:
            stop = packed.take(run, lo, hi)
        except SegmentDamaged as damage:
            raise corrupt_error(plan, run, damage) from damage
        through = run.first_seq + stop - 1
        if stop < hi:
            break
    else:
        through = max(through, plan.end)
    return Pack(tuple(packed.pieces), tuple(packed.body), min(through, plan.head), packed.size, plan.tombstone)


class _PackBuilder:
    def __init__(self, plan: ReadPlan, reader: RunReader) -> None:
        self._topic_id = plan.topic_id
        self._reader = reader
        self._room = plan.request.max_bytes
        self._remaining = plan.request.limit
        self.pieces: list[Piece] = []
        self.body: list[bytes | memoryview] = []
        self.size = 0

    def take(self, run: Run, lo: int, hi: int) -> int:
        """Takes entries from a run until the pack is full. Returns the index after the last one."""
        for begin, end in live_ranges(self._reader.flags(self._topic_id, run), lo, hi):
            if self._remaining <= 0:
                return begin
            most = min(end, begin + self._remaining)
            room = self._room - self.size
            for view, view_lo, view_hi, offset in self._reader.views(
                self._topic_id, run, begin, most, window_bytes=room
            ):
                stop = end_that_fits(view, view_lo, view_hi, self._room - self.size)
                if stop == view_lo and not self.pieces:
                    stop += 1
                if stop > view_lo:
                    self._add(run.first_seq + offset + view_lo, view, view_lo, stop)
                if stop < view_hi:
                    return offset + stop
            if most < end:
                return most
        return hi

    def _add(self, first_seq: int, view: View, lo: int, hi: int) -> None:
        rows = view.rows[3 * lo : 3 * hi].cast("B")
        text = view.whole(lo, hi)
        self.pieces.append(Piece(first_seq, hi - lo, view.rows[3 * lo], len(rows), len(text)))
        self.body += (bytes(rows), bytes(text))
        self.size += len(text)
        self._remaining -= hi - lo


def has_removed(topic: Topic) -> bool:
    """Returns whether any entry between the first and the last may have been removed."""
    return topic.origin is not None or topic.live_count != topic.head - topic.earliest + 1


def removed_between(topic: Topic, reader: RunReader, first: int, last: int) -> tuple[SeqRange, ...]:
    """Returns the removed ranges between two seqs: entries flagged as deleted, and ranges without a run, because a run
    is dropped when its last entry is removed."""
    if not has_removed(topic):
        # Usually every entry is live. A tail of single entries has as many runs as entries.
        return ()
    found: Ranges = []
    for part, begin, end in chain_of(topic, first, last):
        low, high = max(begin, first), min(end, last)
        for run in part.runs_from(low) if low <= high else ():
            if run.first_seq > high:
                break
            if low < run.first_seq:
                found.append((low, run.first_seq - 1))
            flags = reader.flags(part.id, run)
            if flags is not None:
                found += _dead(flags, run.first_seq, run.count)
            low = run.last_seq + 1
        if low <= high:
            found.append((low, high))
    return tuple(found)


def _dead(flags: bytes | bytearray, first_seq: int, count: int) -> Ranges:
    at, found = 0, []
    for begin, end in [*live_ranges(flags, 0, count), (count, count)]:
        if at < begin:
            found.append((first_seq + at, first_seq + begin - 1))
        at = end
    return found


class SeqSpan(NamedTuple):
    """A range of seqs that is examined in one step."""

    first: int
    last: int


def seq_spans(topic: Topic, first: int, last: int, max_bytes: int) -> list[SeqSpan]:
    """Divides a range of seqs into spans of about `max_bytes`, newest first. The real size is known only after reading.
    Ranges without a run are omitted."""
    found: list[SeqSpan] = []
    room, requested = 0, 0
    for part, begin, end in chain_of(topic, first, last):
        low, high = max(begin, first), min(end, last)
        runs = [run for run in part.runs_from(low) if run.first_seq <= high] if low <= high else []
        for run in reversed(runs):
            size = max(run.payload_bytes // run.count, 1)
            bottom, top = max(run.first_seq, low), min(run.last_seq, high)
            while top >= bottom:
                if not found or found[-1].first != top + 1 or min(room // size, requested) < 1:
                    found.append(SeqSpan(top + 1, top))
                    room, requested = max(max_bytes, size), PACK_RECORDS
                taken = min(top - bottom + 1, room // size, requested)
                found[-1] = SeqSpan(top - taken + 1, found[-1].last)
                room, requested, top = room - taken * size, requested - taken, top - taken
    return found


def window_start(topic: Topic, max_bytes: int) -> int:
    """Returns the seq behind which about `max_bytes` are stored; 0 if the whole topic is smaller."""
    room = max_bytes
    for part, begin, end in chain_of(topic):
        runs: list[Run] = [*part.segments, *part.tail]
        for run in reversed(runs):
            if run.first_seq > end or run.last_seq < begin:
                continue
            if run.payload_bytes > room:
                # The number of its last entries that fit, if all entries have the same size.
                fitting_count = room * run.count // run.payload_bytes
                return min(max(run.last_seq - fitting_count, run.first_seq), end)
            room -= run.payload_bytes
    return 0


# Search counters.


class SearchStats(msgspec.Struct, kw_only=True):
    """Counters since the start of the server. A query is a search, an aggregation or a list of routing keys."""

    queries: int = 0
    failures: int = 0
    """Queries that got no answer."""
    seconds: float = 0.0
    entries: int = 0
    """The number of entries examined by queries."""
    out_of_time: int = 0
    out_of_memory: int = 0
    out_of_bytes: int = 0
    scanned_bytes: int = 0
    """Bytes scanned by filtered reads, and by queries outside their indexes."""
    processes_lost: int = 0
    memory_bytes: int = 0
    """The reported memory of the indexes."""
    fetches: dict[str, int] = {}
    """Index files fetched from an object store, by outcome (`search.service.index_file_cache`)."""
    cache_bytes: int = 0
    """Bytes of local copies of index files from an object store."""


# Step generators: operations with waits in between, written as one function (`engine.background_jobs` does the same for
# jobs).

T = TypeVar("T")
Steps = Generator[Until, Any, T]
"""A generator that yields an operation to wait for and is resumed with its outcome. An error is raised inside it."""


def run_steps(steps: Steps[T], done: Callable[[T | TopicsError], None]) -> None:
    """Runs a generator on the loop until it ends. `done` is called once, with the returned value or the raised
    TopicsError. Unlike jobs of a runner, any number of generators run at the same time."""
    _StepRun(steps, done).advance(None)


class _StepRun(Generic[T]):
    __slots__ = ("_done", "_steps")

    def __init__(self, steps: Steps[T], done: Callable[[T | TopicsError], None]) -> None:
        self._steps = steps
        self._done = done

    def advance(self, outcome: object) -> None:
        """Runs the generator until it waits for an outcome that is not available yet. Available outcomes are handled in
        a loop, without recursion."""
        result: T | TopicsError
        while True:
            try:
                wait = self._steps.throw(outcome) if isinstance(outcome, Exception) else self._steps.send(outcome)
            except StopIteration as end:
                result = end.value
                break
            except TopicsError as error:
                # A traceback would refer to this frame, which refers to the error: a reference cycle.
                result = error.with_traceback(None)
                break
            reply = _Reply()
            try:
                wait.register(reply)
            except TopicsError as error:
                reply(error.with_traceback(None))
            if not reply.is_given:
                reply.run = self
                return
            outcome = reply.outcome
        self._done(result)


class _Reply:
    """Resumes a generator with the outcome of one wait. Only the first outcome counts, because a timer may deliver
    another one."""

    __slots__ = ("is_given", "outcome", "run")

    def __init__(self) -> None:
        self.is_given = False
        self.outcome: object = None
        self.run: _StepRun[Any] | None = None
        """None while the wait is being registered; an outcome is then only stored."""

    def __call__(self, outcome: object) -> None:
        if self.is_given:
            return
        self.is_given = True
        if self.run is None:
            self.outcome = outcome
        else:
            run, self.run = self.run, None
            run.advance(outcome)


def next_turn(later: Later) -> Until:
    """Waits for the next turn of the loop."""

    def register(resume: Callable[[object], None]) -> None:
        later(0, partial(resume, None))

    return Until(register)
