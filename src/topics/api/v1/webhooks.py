"""Calling webhooks. A call goes to an address that was checked, follows nothing, and reads little."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from topics.core.errors import TopicsError
from topics.streams.subscriptions.targets import Target, check_address, check_url

_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 * 1024
_log = logging.getLogger(__name__)


class WebhookCaller:
    def __init__(self, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback
        self._client: httpx.AsyncClient | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def deliver(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        """Calls, and tells what came back: its JSON (an empty object when there was none), or None for a failure."""
        call = asyncio.get_running_loop().create_task(self._call(url, body, signature, done))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _call(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None:
        answer: Any = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._post(check_url(url, self._allow_loopback), body, signature)
        except (httpx.HTTPError, OSError, TopicsError, TimeoutError, ValueError) as error:
            _log.warning("a webhook was not taken", extra={"url": url, "error": str(error) or type(error).__name__})
        done(answer)

    async def _post(self, target: Target, body: bytes, signature: str) -> Any:
        address = await self._resolve(target)
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False)
        shown = f"[{address}]" if ":" in address else address
        default = target.port == (443 if target.scheme == "https" else 80)
        host = f"[{target.host}]" if ":" in target.host else target.host
        headers = {
            "host": host if default else f"{host}:{target.port}",
            "content-type": "application/json",
            "webhook-signature": signature,
            "user-agent": "topics",
        }
        request = self._client.build_request(
            "POST", f"{target.scheme}://{shown}:{target.port}{target.path}", content=body, headers=headers,
            extensions={"sni_hostname": target.host},
        )  # fmt: skip
        response = await self._client.send(request, stream=True)
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
