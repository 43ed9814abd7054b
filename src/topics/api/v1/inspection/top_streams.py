"""Which streams hold most: the first few of each kind, of those that a key may see.

There may be a million streams, and to look at all of them takes a second. So they are looked at some at a time, with
other requests in between; one look after the other, and those who ask for the same meanwhile share one.
"""

import asyncio
from collections.abc import Callable
from heapq import heappushpop
from itertools import islice
from typing import Any

from topics.api.v1.inspection.stream_details import tail_text_bytes
from topics.engine.topic import Topic
from topics.streams.service import Streams
from topics.streams.touch.stream import StreamTouch

TOP = 5
_STREAMS_A_TURN = 500
_KEY_BYTES = 100
"""What a key costs that a journal remembers, about."""

Told = Callable[[dict[str, Any]], None]


class TopStreams:
    """Those who asked, in line."""

    def __init__(self) -> None:
        self._line: dict[tuple[str, ...], tuple[Streams, list[Told]]] = {}

    def find(self, streams: Streams, prefixes: tuple[str, ...], told: Told) -> None:
        """Calls back with the streams that hold most, within prefixes; none means all."""
        if prefixes in self._line:
            self._line[prefixes][1].append(told)
            return
        self._line[prefixes] = (streams, [told])
        if len(self._line) == 1:
            self._begin()

    def _begin(self) -> None:
        prefixes, (streams, _) = next(iter(self._line.items()))
        self._go_on(prefixes, "", _Best(), streams)

    def _go_on(self, prefixes: tuple[str, ...], after: str, best: "_Best", streams: Streams) -> None:
        # From a name on and not from a place: streams come and go between two turns.
        some = list(islice(streams.topics("", after, 0, prefixes), _STREAMS_A_TURN))
        for topic in some:
            best.see(topic)
        if len(some) == _STREAMS_A_TURN:
            asyncio.get_running_loop().call_soon(self._go_on, prefixes, some[-1].name, best, streams)
            return
        _, waiting = self._line.pop(prefixes)
        found = {**best.found(), "touch_journal_filter_bytes": _journals(streams, prefixes)}
        for told in waiting:
            told(found)
        if self._line:
            asyncio.get_running_loop().call_soon(self._begin)


class _Best:
    """The streams with the highest numbers so far, as small heaps."""

    def __init__(self) -> None:
        self._stored: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP
        self._pending: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP
        self._waited: list[tuple[int, str, Topic]] = [(0, "", _NONE)] * TOP

    def see(self, topic: Topic) -> None:
        # Most streams are quiet, and none of the numbers of such a one is above 0.
        if topic.live_bytes > self._stored[0][0]:
            heappushpop(self._stored, (topic.live_bytes, topic.name, topic))
        if topic.tail_bytes > self._pending[0][0]:
            heappushpop(self._pending, (topic.tail_bytes, topic.name, topic))
        if topic.waiters and len(topic.waiters) > self._waited[0][0]:
            heappushpop(self._waited, (len(topic.waiters), topic.name, topic))

    def found(self) -> dict[str, Any]:
        return {
            "local_storage_bytes": [_stored(size, topic) for size, _, topic in _first(self._stored)],
            "pending_wal_bytes": [_pending(topic) for _, _, topic in _first(self._pending)],
            "notifier_waiters": [{"stream": name, "waiters": count} for count, name, _ in _first(self._waited)],
        }


_NONE: Any = None


def _first(heap: list[tuple[int, str, Topic]]) -> list[tuple[int, str, Topic]]:
    return sorted([entry for entry in heap if entry[0]], key=lambda entry: (-entry[0], entry[1]))


def _stored(size: int, topic: Topic) -> dict[str, Any]:
    pending = sum([block.live_bytes for block in topic.tail])
    return {
        "stream": topic.name, "bytes": size, "wal_retained_bytes": pending,
        "segment_cache_bytes": max(size - pending, 0), "index_cache_bytes": 0,
    }  # fmt: skip


def _pending(topic: Topic) -> dict[str, Any]:
    return {"stream": topic.name, "pending_wal_bytes": tail_text_bytes(topic), "pending_rows": topic.tail_count}


def _journals(streams: Streams, prefixes: tuple[str, ...]) -> list[dict[str, Any]]:
    seen = [one for one in streams.touched() if not prefixes or one.topic.name.startswith(prefixes)]
    return [_journal(one) for one in sorted(seen, key=lambda one: (-one.journal.size, one.topic.name))[:TOP]]


def _journal(touch: StreamTouch) -> dict[str, Any]:
    return {
        "stream": touch.topic.name, "journal_filter_bytes": touch.journal.size * _KEY_BYTES,
        "dirty": touch.journal.has_pending, "touch_mode": touch.budget.mode,
    }  # fmt: skip
