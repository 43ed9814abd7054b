"""`_schema` and `_profile`: what a stream promises about its entries."""

from collections.abc import Callable

from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.v1.answers import NO_STORE, answer, refuse
from topics.api.v1.deadlines import Deadlines, Pending
from topics.core.errors import TopicsError
from topics.schema.contract import Contract
from topics.schema.profiles.resource import profile_json
from topics.schema.registry import registry_json
from topics.streams import Streams
from topics.streams.contracts import ContractDone

Show = Callable[[Contract, str], bytes]
Update = Callable[[str, bytes, ContractDone], None]


class ContractRoutes:
    """The handlers; each is given the streams of the call's engine."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def show_schema(self, call: Call, streams: Streams) -> None:
        _tell(call, streams.contract(call.topic), _show_schema)

    def show_profile(self, call: Call, streams: Streams) -> None:
        _tell(call, streams.contract(call.topic), _show_profile)

    def update_schema(self, call: Call, streams: Streams) -> None:
        self._update(call, streams.update_schema, _show_schema)

    def update_profile(self, call: Call, streams: Streams) -> None:
        self._update(call, streams.update_profile, _show_profile)

    def _update(self, call: Call, update: Update, show: Show) -> None:
        pending = Pending()

        def done(outcome: Contract | TopicsError) -> None:
            if not pending.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                _tell(call, outcome, show)

        update(call.topic, call.exchange.body, done)
        if pending.open:
            self._deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)


def _show_schema(contract: Contract, stream: str) -> bytes:
    return registry_json(contract.registry, stream)


def _show_profile(contract: Contract, stream: str) -> bytes:
    return profile_json(contract.profile)


def _tell(call: Call, contract: Contract, show: Show) -> None:
    answer(call, 200, (NO_STORE,), show(contract, call.topic), "application/json")
