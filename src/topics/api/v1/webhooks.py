"""Calling webhooks. A call goes to an address that was checked, follows nothing, and reads little.

Every call has a client, and so a connection, of its own. A client keeps connections by address and cookies by address,
and many hosts share one address: the connection that proved to be one of them would carry calls for the others, whose
certificates nobody had looked at. Receivers are called once a lease, so there is little to save.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from topics.api.tracing import Tracing
from topics.core.errors import TopicsError
from topics.streams.subscriptions.targets import Target, check_address, check_url
from topics.streams.subscriptions.wakes import NotTaken

_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 * 1024
_log = logging.getLogger(__name__)


class WebhookCaller:
    def __init__(self, allow_loopback: bool, ca_file: str | None = None) -> None:
        """`ca_file` names authorities that are trusted besides the public ones. Raises `OSError` if it holds none."""
        self._allow_loopback = allow_loopback
        # The public authorities take a moment to read, which a server without webhooks need not spend.
        self._trust = _trust(ca_file) if ca_file is not None else None
        self._calls: set[asyncio.Task[None]] = set()
        self.tracing: Tracing | None = None
        self.calls = 0
        """Calls that ended."""
        self.failures = 0
        """Those of them that were not taken."""

    def deliver(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        """Calls, and tells what came back: its JSON (an empty object when there was none), or NotTaken."""
        call = asyncio.get_running_loop().create_task(self._call(url, body, signature, done))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _call(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        headers, span = ({}, None) if self.tracing is None else self.tracing.call(url, body)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                headers["webhook-signature"] = signature
                answer = await self._post(check_url(url, self._allow_loopback), body, headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TopicsError, TimeoutError, ValueError) as error:
            answer = NotTaken(_reason(error))
            self.failures += 1
            _log.warning("a webhook was not taken", extra={"url": url, "error": answer.reason})
        if span is not None:
            span.end(None, answer.reason if isinstance(answer, NotTaken) else "")
        self.calls += 1
        done(answer)

    async def _post(self, target: Target, body: bytes, headers: dict[str, str]) -> Any:
        address = await self._resolve(target)
        if self._trust is None:
            self._trust = _trust(None)
        shown = f"[{address}]" if ":" in address else address
        default = target.port == (443 if target.scheme == "https" else 80)
        host = f"[{target.host}]" if ":" in target.host else target.host
        headers = {
            "host": host if default else f"{host}:{target.port}",
            "content-type": "application/json",
            "user-agent": "topics",
            **headers,
        }
        call = httpx.AsyncClient(verify=self._trust, timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False)
        async with call as client:
            # The certificate must be one for the host that was named, not for the address that is called.
            request = client.build_request(
                "POST", f"{target.scheme}://{shown}:{target.port}{target.path}", content=body, headers=headers,
                extensions={"sni_hostname": target.host},
            )  # fmt: skip
            response = await client.send(request, stream=True)
            try:
                if not 200 <= response.status_code < 300:
                    raise ValueError(f"it answered {response.status_code}")
                return _read_json(await _read_some(response))
            finally:
                await response.aclose()

    async def _resolve(self, target: Target) -> str:
        """One of the addresses of a host, after all of them were found harmless."""
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=1)
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            check_address(address, self._allow_loopback)
        if not addresses:
            raise ValueError("its host has no address")
        return addresses[0]


def _reason(error: Exception) -> str:
    """Why a call was not taken, for people."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return f"it did not answer within {_TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Which certificates are believed: those of the public authorities, and of the operator's own. Nothing that the
    environment says, because that would be a setting nobody finds among the others."""
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context


async def _read_some(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _ANSWER_BYTES_MAX:
            raise ValueError("its answer is too long")
    return body


def _read_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body.strip() else {}
    except ValueError:
        return {}
