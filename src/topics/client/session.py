"""What both clients have in common: everything but the waiting."""

import math
import ssl
from collections.abc import Mapping
from typing import Self, TypedDict

import httpx
import msgspec

from topics.client.attempts import Attempts, standing_headers
from topics.client.options import DEFAULT_URL, Address, ClientOptions, RetryPolicy
from topics.client.requests import A, Request
from topics.system.clock import Clock, SystemClock
from topics.system.dice import Dice, SystemDice


class HttpSettings(TypedDict):
    """How the HTTP library is set up."""

    base_url: str
    headers: dict[str, str]
    limits: httpx.Limits
    trust_env: bool
    verify: ssl.SSLContext | bool


class Session:
    """A server's address, the key to it, and how to behave towards it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        options: ClientOptions | None = None,
        clock: Clock | None = None,
        dice: Dice | None = None,
    ) -> None:
        self._address = Address(url, api_key)
        self.options = options or ClientOptions()
        self._clock = clock or SystemClock()
        self._dice = dice or SystemDice()

    @classmethod
    def from_env(cls, env: Mapping[str, str], *, options: ClientOptions | None = None) -> Self:
        """A client for `TOPICS_URL` with the key `TOPICS_API_KEY`, both from `env`, such as `os.environ`.

        A variable that is blank or missing means the default: the server on this machine, and no key.
        """
        address = Address.from_env(env)
        return cls(address.url, api_key=address.api_key, options=options)

    def __repr__(self) -> str:
        # Without the key: a repr ends up in logs.
        return f"{type(self).__name__}({self._address.url!r})"

    def _attempts(self, request: Request[A], retry: RetryPolicy | None) -> Attempts[A]:
        return Attempts(request, self.options, retry or self.options.retry, self._clock, self._dice)

    def _follower_retry(self, deadline_s: float) -> RetryPolicy:
        return msgspec.structs.replace(self.options.retry, deadline_s=deadline_s)

    @property
    def _answer_timeout_s(self) -> float | None:
        """How long a command on a WebSocket is waited for, over all connections that it takes."""
        longest_s = max(self.options.retry.deadline_s, self.options.timeout_s)
        return None if math.isinf(longest_s) else longest_s

    def _http_settings(self) -> HttpSettings:
        pool = self.options.max_connections
        return HttpSettings(
            base_url=self._address.url,
            headers=standing_headers(self._address.api_key, self.options),
            limits=httpx.Limits(max_connections=pool, max_keepalive_connections=pool),
            # The environment is read where the caller hands it over and nowhere else: a proxy variable must not
            # redirect, nor a .netrc replace the key of, a server that was named in code.
            trust_env=False,
            # Loading the certificates of the world takes longer than most programs with a plain server run. A context
            # without any trusts nobody, so this stays safe should it ever be used.
            verify=self._address.is_tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
