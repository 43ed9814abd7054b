"""How a server keeps its searching process: begun with the first question, begun again after it died.

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

from topics.core.errors import SearchUnavailableError
from topics.searching.answer_turns import AnswerTurns, ResultDone
from topics.searching.messages import Answer, Head, Messages, Question, encode_message

# Not with what lies in the working folder: that is not ours.
COMMAND = (sys.executable, "-P", "-m", "topics.searching")
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
