"""State and options that both clients share: address, headers, clock, retry policy."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from topics_client.options import Address, ClientOptions, RetryPolicy
from topics_client.system import Clock, Entropy, SystemClock, SystemEntropy
from topics_client.transport.http1 import HttpRequest, header_lines
from topics_client.transport.route import Route, find_route
from topics_protocol import __version__
from topics_protocol.config import DEFAULT_URL


class Session:
    """A server's address, the key to it, and how to behave towards it."""

    def __init__(
        self, url: str | None, api_key: str | None, options: ClientOptions | None, clock: Clock | None,
        entropy: Entropy | None, env: Mapping[str, str] | None,
    ) -> None:  # fmt: skip
        env = os.environ if env is None else env
        if url is None:
            url = env.get("TOPICS_URL", "").strip() or DEFAULT_URL
            # The key of the environment belongs to the server of the environment: another one does not get it.
            api_key = api_key if api_key is not None else env.get("TOPICS_API_KEY", "").strip() or None
        self.addresses = [Address(one.strip(), api_key) for one in url.split(",")]
        """Servers of which one at a time is the primary."""
        self.place = 0
        """The host of the request."""
        self.options = options or ClientOptions()
        self.clock = clock or SystemClock()
        self.entropy = entropy or SystemEntropy()
        self._routes = [find_route(address.url, self.options.proxy, env) for address in self.addresses]
        self.reached = False
        """Whether the server ever answered."""
        self.standing = {
            "accept": "application/json",
            "accept-encoding": "gzip" if self.options.gzip else "identity",
            "user-agent": f"topics-client/{__version__}",
            # A standby would answer reads with an older state.
            **({"topics-primary": "require"} if len(self.addresses) > 1 else {}),
            **{name.lower(): value for name, value in self.options.headers.items()},
        }
        if self.address.api_key is not None:
            self.standing["authorization"] = f"Bearer {self.address.api_key}"
        self.standing_lines = header_lines(self.standing)

    @property
    def address(self) -> Address:
        """The server that is asked now."""
        return self.addresses[self.place]

    @property
    def route(self) -> Route:
        """The way to it."""
        return self._routes[self.place]

    def move_on(self, place: int, primary: object = None) -> bool:
        """The server at `place` cannot answer: asks the primary if it is known, else the next server. Whether there is
        another one."""
        if self.place == place:
            known = [at for at, address in enumerate(self.addresses) if address.url == primary]
            self.place = known[0] if known else (place + 1) % len(self.addresses)
        return len(self.addresses) > 1

    def lines_with(self, headers: Mapping[str, str]) -> bytes:
        """The default headers merged with those of one request."""
        if self.standing.keys().isdisjoint(headers):
            return self.standing_lines + header_lines(headers)
        return header_lines({**self.standing, **headers})

    def patient(self, deadline_s: float) -> RetryPolicy:
        """The policy of something that lasts longer than a call."""
        return msgspec.structs.replace(self.options.retry, deadline_s=deadline_s)

    def stream_request(self, target: str, headers: Mapping[str, str], quiet_s: float) -> HttpRequest:
        """Asks for an event stream, which is given up when nothing at all comes for so long."""
        asked = {"accept": "text/event-stream", "accept-encoding": "identity", **headers}
        return HttpRequest("GET", target, self.lines_with(asked), None, quiet_s)

    @property
    def answer_timeout_s(self) -> float | None:
        """How long a command on a WebSocket is waited for, over all connections that it takes."""
        longest_s = max(self.options.retry.patience_s(True), self.options.timeout_s)
        return None if longest_s == float("inf") else longest_s


def as_method(
    method: Callable[..., Any], build: Callable[..., Any], returns: object = None, name: str | None = None
) -> None:
    """Gives `method` the name, the docstring and the parameters of `build`, behind `self`.

    The return type is `returns`, by default the answer type of the request.
    """
    functools.update_wrapper(method, build)
    method.__name__ = name or method.__name__
    # inspect would look through the wrapper, and take the topic for `self`.
    del method.__wrapped__  # type: ignore[attr-defined]
    described = inspect.signature(build)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    returned = returns or get_args(described.return_annotation)[0]
    method.__signature__ = described.replace(  # type: ignore[attr-defined]
        parameters=[itself, *described.parameters.values()], return_annotation=returned
    )
    method.__annotations__ = {**build.__annotations__, "return": returned}
