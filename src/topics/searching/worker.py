"""What the searching process does: keeps indexes and answers queries, one message after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from topics.core.ranges import SeqRange
from topics.indexing.companions.files import CompanionDamagedError
from topics.indexing.companions.findings import Findings
from topics.indexing.companions.mapped import Companion
from topics.indexing.parts import Budget
from topics.indexing.predicates import bind_filter, fields_of
from topics.schema.registry import decode_registry
from topics.searching.free_filters import filter_records
from topics.searching.held import Held
from topics.searching.library import Library, MapFile, UnreadableError
from topics.searching.messages import (
    NO_INDEX,
    Add,
    Answer,
    Ask,
    Close,
    Drop,
    Filter,
    Finish,
    Mapped,
    Message,
    More,
    Open,
    Question,
    Result,
    Seek,
    Trim,
    encode_message,
)
from topics.searching.queries import Asked
from topics.searching.seeking import seek

_SEEK_S: Final = 1.0
"""Who has not found where to read on by then reads on where it was."""
_NO_LIMIT: Final = 1 << 62
_SLICE_S: Final = 0.005
"""How long companions are asked for one query while others wait for theirs."""


class Worker:
    def __init__(self, now: Callable[[], float], map_file: MapFile) -> None:
        self._now = now
        self._library = Library(map_file)
        self._findings = Findings()
        self._held: dict[int, Held] = {}
        self._asked: dict[int, Asked] = {}

    def take(self, message: Message) -> bytes | None:
        """Does what a message asks for; the answer, if it wants one."""
        head = message.head
        if isinstance(head, Ask | More | Finish | Filter | Seek):
            return encode_message(self._answer(head, message.body))
        if isinstance(head, Open):
            self._held[head.index] = Held(decode_registry(head.registry))
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

    def _add(self, head: Add, body: memoryview) -> None:
        held = self._held.get(head.index)
        if held is None:
            return
        try:
            held.add(head.pieces, body, head.new)
        except Exception:
            # Columns of different lengths must not be asked; who asks is told that there is no such index.
            del self._held[head.index]

    def _answer(self, head: Question, body: memoryview) -> Answer:
        try:
            if isinstance(head, Ask):
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
            # A query that fails must fail alone. What is wrong with a request was told before it came here.
            if isinstance(head, More):
                # Whoever asked gives up, and nobody finishes it.
                self._asked.pop(head.asked, None)
            return Answer(head.request, None, f"{type(error).__name__}: {error}")

    def _ask_more(self, head: More, body: memoryview) -> Result:
        asked = self._asked[head.asked]
        asked.take_entries(head.pieces, body)
        looked_up, unreadable = self._ask_companions(asked, head.mapped, head.removed, self._now() + _SLICE_S)
        asked.take_fresh(head.first, head.last, head.removed)
        if not unreadable and (asked.enough or (head.is_last and looked_up == len(head.mapped))):
            del self._asked[head.asked]
            return asked.finish(looked_up)
        return asked.progress(looked_up, unreadable)

    def _ask_companions(
        self, asked: Asked, mapped: tuple[Mapped, ...], removed: tuple[SeqRange, ...], end: float
    ) -> tuple[int, str]:
        """Asks one after the other, and stops behind the first where others have waited long enough: how many, and why
        the next one cannot be asked. The query knows nothing of that one then."""
        for number, one in enumerate(mapped):
            if asked.enough or (number and self._now() >= end):
                return number, ""
            try:
                with self._opened(one.path) as companion:
                    asked.take_companion(companion, one.first, one.last, removed)
            except UnreadableError as error:
                return number, _reason(error)
        return len(mapped), ""

    def _seek(self, head: Seek) -> Result:
        """Raises UnreadableError."""
        held = None if head.index == NO_INDEX else self._index(head.index)
        with self._opened(head.mapped.path) as companion:
            return seek(companion, held, head, Budget(self._now, _SEEK_S, _NO_LIMIT))

    @contextmanager
    def _opened(self, path: str) -> Iterator[Companion]:
        """A companion; what turns out to be damaged is closed, and not readable."""
        try:
            yield self._library.open(path)
        except CompanionDamagedError as error:
            self._library.close(path)
            raise UnreadableError(f"{path}: {error}") from error

    def _index(self, index: int) -> Held:
        held = self._held.get(index)
        if held is None:
            raise LookupError("there is no such index")
        return held

    def _ask(self, head: Ask) -> Result:
        end = self._now() + _SLICE_S
        asked = Asked(self._index(head.index), head.query, self._now, head.deadline, self._findings)
        asked.take_fresh(head.first, head.last, head.removed)
        looked_up, unreadable = self._ask_companions(asked, head.mapped, head.removed, end)
        is_last = not head.stays or (head.is_last and looked_up == len(head.mapped))
        if not unreadable and (asked.enough or is_last):
            return asked.finish(looked_up)
        self._asked[head.request] = asked
        return asked.progress(looked_up, unreadable)


def _reason(error: UnreadableError) -> str:
    return str(error) or type(error).__name__


def _filter(held: Held, head: Filter, body: memoryview) -> Result:
    assert held.config is not None
    predicate = bind_filter(head.filter, held.config)
    index, size = held.columns(tuple(fields_of(predicate)), head.pieces, body)
    return Result(seqs=tuple(index.matching(predicate)), scanned_bytes=size)
