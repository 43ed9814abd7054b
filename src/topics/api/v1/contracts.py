"""`_schema` and `_profile`: what a stream promises about its entries."""

from collections.abc import Callable
from functools import partial

from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.portions import Work, do_in_turns
from topics.api.v1.answers import NO_STORE, answer, refuse
from topics.api.v1.deadlines import Deadlines, Pending
from topics.core.errors import TopicsError
from topics.core.limits import KIB
from topics.schema.contract import Contract
from topics.schema.profiles.resource import profile_json
from topics.schema.registry import registry_json
from topics.schema.updates import parse_update_in_steps
from topics.streams.contracts import ContractDone
from topics.streams.service import Streams

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
            do_in_turns(call, self._update_in_turns(call, streams), partial(refuse, call))

    def _update_in_turns(self, call: Call, streams: Streams) -> Work:
        update = yield from parse_update_in_steps(call.exchange.body)
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
