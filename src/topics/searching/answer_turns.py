"""When answers of the searching process are handed on: one in each turn of the loop, and behind who waits for a commit.

To show what was found takes a while, and whoever wants something else must not wait for all that was found at the same
time. Nor must a commit. The thread that writes it needs the interpreter a few times, each for a moment, and a loop that
is busy showing answers lets it have that late: appends would take several times as long for as long as people search.
So while something is on its way to the disk an answer waits, until that was answered, and for a few milliseconds at
most: when they are over, those that came meanwhile have waited as well. A step of a query that has nothing to show yet
takes no time to speak of, and waits for nobody: a long query has hundreds of them.

Nor is it enough that an append goes first. Where clients search as fast as they are answered, server, searching process
and clients have every core busy, and whoever is woken up for an append waits for one. So as long as somebody appends,
and several search, the loop rests behind an answer, and with it those who ask. When many are in line several are handed
on between two rests: the longer the line is, the less of the time is rest.
Who reads by key or through a filter is told places and no more, which takes little, and is no reason to rest.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from topics.core.errors import SearchUnavailableError
from topics.searching.messages import Result

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
