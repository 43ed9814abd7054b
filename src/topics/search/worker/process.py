"""Supervision of the search process: started with the first question, restarted after it died.

A new process knows nothing. `generation` tells whoever sent something to an earlier one that it is gone.
"""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from topics.model.errors import SearchUnavailableError
from topics.search.worker.messages import Answer, Head, Messages, Question, Result, encode_message

# When answers of the search process are handed on: one in each turn of the loop, and behind who waits for a commit.
#
# To show what was found takes a while, and whoever wants something else must not wait for all that was found at the
# same time. Nor must a commit. The thread that writes it needs the interpreter a few times, each for a moment, and a
# loop that is busy showing answers lets it have that late: appends would take several times as long for as long as
# people search. So while something is on its way to the disk an answer waits, until that was answered, and for a few
# milliseconds at most: when they are over, those that came meanwhile have waited as well. A step of a query that has
# nothing to show yet takes no time to speak of, and waits for nobody: a long query has hundreds of them.
#
# Nor is it enough that an append goes first. Where clients search as fast as they are answered, server, searching
# process and clients have every core busy, and whoever is woken up for an append waits for one. So as long as somebody
# appends, and several search, the loop rests behind an answer, and with it those who ask. When many are in line several
# are handed on between two rests: the longer the line is, the less of the time is rest. Who reads by key or through a
# filter is told places and no more, which takes little, and is no reason to rest.

PATIENCE_S = 0.003
"""How long the next answer waits for commits; most of them take a tenth of it."""
REST_S = 0.002
"""How long the next answer waits behind one, as long as others append."""
_RESTS = 8
"""For so many an answer waits in a line that stays as long as it is."""
_APPENDING_S = 0.05
"""Who was told of a commit is taken to append again within so long."""

ResultDone = Callable[[Result | SearchUnavailableError], None]


class AnswerTurns:
    """`is_committing` tells whether something is on its way to the disk that somebody waits for, `is_asked` whether
    answers are to come besides those that did."""

    def __init__(self, is_committing: Callable[[], bool], is_asked: Callable[[], bool]) -> None:
        self._is_committing = is_committing
        self._is_asked = is_asked
        self._line: deque[tuple[ResultDone, Result | SearchUnavailableError]] = deque()
        self._due = False
        """Whether a turn is on its way, or waits for commits."""
        self._patience: asyncio.TimerHandle | None = None
        """Ends the waiting for commits; None while there is none."""
        self._waited = 0
        """How many of those that are first in line have waited long enough."""
        self._commits = self._commits_seen = 0
        self._appending_until = 0.0
        self._left = 1
        """How many more are handed on before the next rest."""

    def add(self, answers: list[tuple[ResultDone, Result | SearchUnavailableError]]) -> None:
        """Answers that came together, and who gets each."""
        for done, result in answers:
            if _shows(result):
                self._line.append((done, result))
            else:
                asyncio.get_running_loop().call_soon(done, result)
        if self._line and not self._due:
            self._due = True
            self._begin()

    def committed(self) -> None:
        """A commit was answered."""
        self._commits += 1
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            # Behind those who go on with what was committed.
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
        """Whether somebody appends who waits for the disk."""
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
    """Whether there are entries or sums to be shown."""
    return isinstance(result, Result) and (bool(result.hits) or result.buckets != b"[]")


def _shows(result: Result | SearchUnavailableError) -> bool:
    if isinstance(result, SearchUnavailableError):
        return False
    return bool(result.is_final or result.hits or result.keys or result.seqs) or result.buckets != b"[]"


# Not with what lies in the working folder: that is not ours.
COMMAND = (sys.executable, "-P", "-m", "topics.search.worker")
BUFFERED_BYTES = 64 * 1024
"""What may wait to be sent; those who have more wait themselves. It is little, because a query comes behind it."""
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
        """How many processes ended: whatever was sent to them is gone."""

    # Asking

    def send(self, head: Head, body: Sequence[bytes | memoryview] = ()) -> None:
        self._begin()
        frame = encode_message(head, body)
        if self._transport is None:
            self._unsent.append(frame)
        else:
            self._transport.write(frame)

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Sequence[bytes | memoryview] = ()) -> None:
        """Sends what `make` makes of a number; `done` is called once with the answer to it."""
        self._requests += 1
        try:
            self.send(make(self._requests), body)
        except SearchUnavailableError as error:
            done(error)
            return
        self._asked[self._requests] = done

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._asked)

    @property
    def is_writable(self) -> bool:
        return not self._paused

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls back when there is room again, or when the process is gone."""
        self._waiting.append(callback)

    # The process

    @property
    def child_pid(self) -> int | None:
        """The process that is asked; None while there is none."""
        return None if self._child is None else self._child.pid

    def _begin(self) -> None:
        if self._closed:
            raise SearchUnavailableError("the server is stopping")
        if self._child is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            # In a process group of its own: the server decides when it is over, and not a terminal's Ctrl-C. But in the
            # server's session: between sessions Linux may share the processor out evenly, whatever the priorities.
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
        # That of uvloop is no asyncio.Transport by type.
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
            _log.warning("the searching process ended", extra={"exit_status": child.poll()})
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done(SearchUnavailableError("the searching process ended; the next search begins another one"))
        self.resume_writing()
        if child is not None:
            # It is ending or dead; somebody has to take note of that.
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
        # Whatever it still computes nobody waits for.
        child.kill()
        child.wait()
