"""The fast path of appends: one record, perhaps with an idempotency key, and nothing else that matters.

Most appends bring one record and no wishes for the request as a whole, many clients at a time. Those of one tick share
a block in the log (`engine.write.coalescing`), and here they share the rest: they are read together and answered in one
pass (`api.gathering`), or at least answered so. Whatever is not as plain as that is left to `records.append`, which
knows all of it and gets the body as it was decoded here.
"""

from collections.abc import Callable
from typing import Literal

from topics.api.app import Match
from topics.api.calls import refuse
from topics.api.gathering import APART, Gatherers
from topics.api.v0.appends import decode_ascii, decode_lone, decode_many, lone_appended
from topics.core.batch import Batch, lone_record
from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.engine.write.coalescing import Singles
from topics.http.application import Gather
from topics.http.exchange import Exchange, respond_each
from topics.http.messages import RequestHead

_MANY_BYTES = 2_000
"""A body of so many usually has several records."""


class AppendFastPath:
    """`inflight_max` bounds the requests of one key at the same time; 0 where they are not counted. `handle` takes a
    request in the usual way."""

    def __init__(self, seconds: Callable[[], float], inflight_max: int, handle: Callable[[Exchange], None]) -> None:
        self._seconds = seconds
        self._inflight_max = inflight_max
        self._gatherers = Gatherers(_MANY_BYTES, False, inflight_max, handle, self._refuse)
        # One object for all: the engine tells by it who is answered together.
        self._answer_all = self.answer

    def fits(self, head: RequestHead) -> bool:
        return not head.query and b"idempotency-key" not in head.headers.first

    def gatherer(self, engine: Engine, match: Match) -> Gather:
        return self._gatherers.of(self, engine, match)

    def read(self, exchanges: list[Exchange]) -> Singles | None:
        bodies = [exchange.body for exchange in exchanges]
        try:
            for body in bodies:
                if not body.isascii():
                    # A Raw payload is not looked at by the decoder, so bad UTF-8 in it must be found here.
                    body.decode()
            lone = list(map(decode_lone, bodies))
        except (ValueError, RecursionError):
            return None
        keys = [each.idempotency_key for each in lone]
        return Singles([each.records[0] for each in lone], None if keys.count(None) == len(keys) else keys)

    def take_each(self, exchanges: list[Exchange]) -> None:
        self._gatherers.handle_each(exchanges)

    def take(self, exchange: Exchange, engine: Engine, match: Match) -> Batch | Literal[True] | None:
        """Takes a request by itself."""
        counted, body = self._inflight_max, exchange.body
        if (counted and match.key.inflight >= counted) or not body:
            return None
        try:
            if not body.isascii():
                body.decode()
            batch = decode_ascii(body) if len(body) < _MANY_BYTES else decode_many(body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError.from_decode("append", error, body) from error
        record, append_lone = lone_record(batch), engine.append_lone
        if len(batch.records) > 1:
            match.habit.apart = APART
        if record is None or not append_lone(match.topic, record, exchange, self._answer_all, batch.idempotency_key):
            return batch
        if counted:
            match.key.inflight += 1
        return True

    def answer(self, exchanges: list[Exchange], outcome: AppendResult | TopicsError) -> None:
        self._gatherers.count_out(exchanges)
        now = self._seconds()
        if isinstance(outcome, TopicsError):
            for exchange in exchanges:
                if not exchange.answered:
                    refuse(exchange, outcome, now)
            return
        spent_s = [now - exchange.started for exchange in exchanges]
        bodies = lone_appended(outcome, [b""] * len(exchanges), spent_s)
        if len(exchanges) == 1:
            exchanges[0].respond(200, bodies[0])
        else:
            respond_each(exchanges, bodies)

    def _refuse(self, exchange: Exchange, error: TopicsError) -> None:
        refuse(exchange, error, self._seconds())
