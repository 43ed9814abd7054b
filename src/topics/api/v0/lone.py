"""Appends of a lone record, the shorter way.

Most appends bring one record and no wishes for the request as a whole, many clients at a time. Those of one tick share
a block in the log (`engine.gathering`), and here they share the rest: none has an object or a callback besides its
exchange, and one pass answers all of them. Whatever is not as plain as that is left to `records.append`, which knows
all of it.
"""

from collections.abc import Callable

import msgspec

from topics.api.app import Match, match_of
from topics.api.calls import refuse
from topics.api.v0.appends import LONE_APPENDED, log_times
from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.engine import AppendResult, Engine
from topics.http.exchange import Exchange, respond_each
from topics.http.messages import RequestHead

_SKIPS_MAX = 63
"""Trying in vain costs a microsecond or two: of those whose bodies are never plain, one in so many."""


class _LoneAppend(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The body of such an append; anything else is none."""

    records: tuple[Record]


_decode = msgspec.json.Decoder(_LoneAppend).decode
_encode = msgspec.json.Encoder().encode


class LoneAppends:
    """`inflight_max` bounds the requests of one key at the same time; 0 where they are not counted."""

    def __init__(self, seconds: Callable[[], float], inflight_max: int) -> None:
        self._seconds = seconds
        self._inflight_max = inflight_max
        # One object for all: the engine tells by it who is answered together.
        self._answer_all = self._answer

    def fits(self, head: RequestHead) -> bool:
        return not head.query and b"idempotency-key" not in head.headers.first

    def take(self, exchange: Exchange, engine: Engine, match: Match) -> bool:
        body, counted = exchange.body, self._inflight_max
        if match.skips:
            match.skips -= 1
            return False
        if counted and match.key.inflight >= counted:
            return False
        try:
            # A Raw payload is not looked at by the decoder, so bad UTF-8 in it must be found here.
            if not body.isascii():
                body.decode()
            record = _decode(body).records[0]
        except (ValueError, RecursionError):
            # Whoever sends the same head again mostly sends the same kind of body.
            match.skips = match.misses = min(2 * match.misses + 1, _SKIPS_MAX)
            return False
        if match.misses:
            match.misses = 0
        taken = engine.gather(match.topic, record, exchange, self._answer_all)
        if taken and counted:
            match.key.inflight += 1
        return taken

    def _answer(self, exchanges: list[Exchange], outcome: AppendResult | TopicsError) -> None:
        if self._inflight_max:
            for exchange in exchanges:
                match_of(exchange.head).key.inflight -= 1
        if isinstance(outcome, TopicsError):
            for exchange in exchanges:
                if not exchange.answered:
                    refuse(exchange, outcome)
            return
        topic, times = _encode(outcome.topic), log_times(outcome.wal_append_ms, outcome.fsync_ms)
        now = self._seconds()
        respond_each(
            exchanges,
            [
                LONE_APPENDED % (b"", topic, seq, seq, seq, seq, (now - exchange.started) * 1000.0, times)
                for seq, exchange in enumerate(exchanges, outcome.first_seq)
            ],
        )
