"""`_schema` and `_profile`: what a stream promises about its entries."""

from collections.abc import Callable
from functools import partial

import msgspec

from topics.api.call import Call
from topics.api.chunked_response import run_task
from topics.api.error_responses import RequestTimeoutError
from topics.api.v1.protocol import NO_STORE, answer, read_integer, refuse
from topics.api.v1.writes import Deadlines, Pending
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import KIB
from topics.schema.contract import Contract, profile_json
from topics.schema.registry import parse_update_incrementally, registry_json
from topics.streams.contracts import ContractDone
from topics.streams.lifecycle import ListedInfo
from topics.streams.streams import Streams
from topics.system.fair_scheduler import Task
from topics_protocol.rfc3339 import write_time

Show = Callable[[Contract, str], bytes]
Update = Callable[[ContractDone], None]
_SHORT_BYTES = 16 * KIB
"""A schema up to here is looked at in a few milliseconds."""


class ContractRoutes:
    """The handlers; each is given the streams of the call's engine."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def show_schema(self, call: Call, streams: Streams) -> None:
        _tell(call, streams.contract(call.topic), _show_schema)

    def show_profile(self, call: Call, streams: Streams) -> None:
        _tell(call, streams.contract(call.topic), _show_profile)

    def update_schema(self, call: Call, streams: Streams) -> None:
        if len(call.exchange.body) <= _SHORT_BYTES:
            self._update(call, partial(streams.update_schema, call.topic, call.exchange.body), _show_schema)
        else:
            run_task(call, self._update_incrementally(call, streams), partial(refuse, call))

    def _update_incrementally(self, call: Call, streams: Streams) -> Task:
        update = yield from parse_update_incrementally(call.exchange.body)
        self._update(call, partial(streams.update_schema, call.topic, update), _show_schema)

    def update_profile(self, call: Call, streams: Streams) -> None:
        self._update(call, partial(streams.update_profile, call.topic, call.exchange.body), _show_profile)

    def _update(self, call: Call, update: Update, show: Show) -> None:
        pending = Pending()

        def done(outcome: Contract | TopicsError) -> None:
            if not pending.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                _tell(call, outcome, show)

        update(done)
        if pending.open:
            self._deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)


def _show_schema(contract: Contract, stream: str) -> bytes:
    return registry_json(contract.registry, stream)


def _show_profile(contract: Contract, stream: str) -> bytes:
    return profile_json(contract.profile)


def _tell(call: Call, contract: Contract, show: Show) -> None:
    answer(call, 200, (NO_STORE,), show(contract, call.topic), "application/json")


# GET /v1/streams: a page of streams by name. The cost is that of the page, however many there are.

_LIMIT = 100
_LIMIT_MAX = 1000
_encode = msgspec.json.Encoder().encode


class ListedStream(msgspec.Struct, gc=False):
    """One stream of a list. Counters are strings, as JavaScript would not count them exactly."""

    name: str
    created_at: str
    expires_at: str | None
    epoch: int
    next_offset: str
    sealed_through: str
    uploaded_through: str
    profile: str


def list_streams(call: Call, streams: Streams) -> None:
    query = call.query
    limit = _number(query.get("limit"), "limit", _LIMIT)
    offset = _number(query.get("offset"), "offset", 0)
    if not limit:
        raise InvalidRequestError("query limit: must be at least 1", field="limit")
    limit = min(limit, _LIMIT_MAX)
    found = streams.listed(query.get("prefix", ""), query.get("after", ""), offset, call.key.prefixes, limit)
    page = [_listed(info) for info in found]
    answer(call, 200, (NO_STORE,), _encode(page), "application/json")


def _number(text: str | None, field: str, default: int) -> int:
    return default if text is None else read_integer(f"query {field}", text)


def _listed(info: ListedInfo) -> ListedStream:
    sealed = str(info.sealed_through)
    expires_at = None if info.deadline_ms is None else write_time(info.deadline_ms)
    # By their places: there are a hundred of them on a page, and names cost as much as everything else here.
    return ListedStream(
        info.name, write_time(info.created_ms), expires_at, info.epoch, str(info.head), sealed, sealed, info.profile
    )
