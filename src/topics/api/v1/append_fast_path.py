"""The fast path of appends to streams: one JSON value, and no header that says more.

As for topics (`api.v0.append_fast_path`): those of one tick share a block in the log, and one pass answers all of them.
What brings a key, a producer, a time or a wish to close, and every stream that promises anything about its entries,
goes the way of `writes`, which knows all of it.
"""

from collections.abc import Callable
from typing import Literal

from topics.api.app import Match, match_of
from topics.api.gathering import APART, Gatherers
from topics.api.v1.answers import EVERY, refuse_exchange
from topics.api.v1.deadlines import ExchangeDeadlines
from topics.api.v1.writes import APPEND_TIMEOUT_S
from topics.core.errors import AppendTimeoutError, TopicsError
from topics.core.records import Record, Values
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.engine.write.coalescing import Singles
from topics.http.application import Gather
from topics.http.exchange import Exchange, respond_bodiless
from topics.http.messages import RequestHead
from topics.http.render import header_lines
from topics.streams.contents import decode_value, is_json
from topics.streams.offsets import Position, encode_offset, epoch_at, offset_of

_WORDS = (
    b"stream-key", b"stream-timestamp", b"stream-seq", b"stream-closed", b"producer-id", b"producer-epoch",
    b"producer-seq",
)  # fmt: skip
"""Headers that say more of an append than its content type."""
_BODY_BYTES_MAX = 8_000
"""Longer ones are looked at more closely (`contents.with_content`)."""
_NO_VALUE = frozenset(b"[ \t\n\r")
"""An array is as many values, and one may stand behind blanks."""
_EVERY_LINES = header_lines(EVERY)
_NO_CONTENT = 204


class StreamAppendFastPath:
    """`inflight_max` bounds the requests of one key at the same time; 0 where they are not counted. `handle` takes a
    request in the usual way."""

    def __init__(self, seconds: Callable[[], float], inflight_max: int, handle: Callable[[Exchange], None]) -> None:
        self._inflight_max = inflight_max
        self._engine: Engine | None = None
        self._gatherers = Gatherers(_BODY_BYTES_MAX + 1, True, inflight_max, handle, _refuse)
        # One object for all: the engine tells by it who is answered together.
        self._answer_all = self.answer
        self._deadlines = ExchangeDeadlines(APPEND_TIMEOUT_S, seconds, self._miss)

    def fits(self, head: RequestHead) -> bool:
        first = head.headers.first
        says_more = head.query or any(word in first for word in _WORDS)
        return not says_more and is_json(head.headers.get("content-type", ""))

    def gatherer(self, engine: Engine, match: Match) -> Gather:
        self._engine = engine
        return self._gatherers.of(self, engine, match)

    def read(self, exchanges: list[Exchange]) -> Singles | None:
        bodies = [exchange.body for exchange in exchanges]
        if not _NO_VALUE.isdisjoint([body[0] for body in bodies]):
            return None
        try:
            for body in bodies:
                if not body.isascii():
                    # A Raw value is not looked at by the decoder, so bad UTF-8 in it must be found here.
                    body.decode()
            values = Values(list(map(decode_value, bodies)))
        except (ValueError, RecursionError):
            return None
        for exchange in exchanges:
            self._deadlines.begin(exchange)
        return Singles(values, None)

    def take_each(self, exchanges: list[Exchange]) -> None:
        self._deadlines.forget(exchanges)
        self._gatherers.handle_each(exchanges)

    def take(self, exchange: Exchange, engine: Engine, match: Match) -> Literal[True] | None:
        counted, body = self._inflight_max, exchange.body
        if body and body[0] in _NO_VALUE:
            match.habit.apart = APART
        if (counted and match.key.inflight >= counted) or not 0 < len(body) <= _BODY_BYTES_MAX or body[0] in _NO_VALUE:
            return None
        try:
            if not body.isascii():
                body.decode()
            record = Record(decode_value(body))
        except (ValueError, RecursionError):
            return None
        if not engine.append_lone(match.topic, record, exchange, self._answer_all, None, True):
            return None
        if counted:
            match.key.inflight += 1
        self._engine = engine
        self._deadlines.begin(exchange)
        return True

    def answer(self, exchanges: list[Exchange], outcome: AppendResult | TopicsError) -> None:
        self._gatherers.count_out(exchanges)
        if isinstance(outcome, TopicsError):
            for exchange in exchanges:
                if not exchange.answered:
                    _refuse(exchange, outcome)
            return
        assert self._engine is not None
        topic, first = self._engine.core.by_name[outcome.topic], outcome.first_seq
        epoch = epoch_at(topic, first)
        lines = [
            b"%bstream-next-offset: %b\r\n\r\n" % (_EVERY_LINES, encode_offset(epoch, seq).encode())
            for seq in range(first, first + len(exchanges))
        ]

        def otherwise(exchange: Exchange, number: int) -> None:
            if not exchange.answered:
                offset = offset_of(topic, Position(first + number))
                exchange.respond(_NO_CONTENT, b"", "", (*EVERY, ("stream-next-offset", offset)))

        respond_bodiless(exchanges, _NO_CONTENT, lines, otherwise)

    def _miss(self, exchange: Exchange) -> None:
        _refuse(exchange, AppendTimeoutError())


def _refuse(exchange: Exchange, error: TopicsError) -> None:
    refuse_exchange(exchange, match_of(exchange.head).key, error)
