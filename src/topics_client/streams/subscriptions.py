"""Subscriptions: notifications about new entries of streams, and the leases on that work."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from topics_client.requests import Request, encode_values, given_only, named

_JSON = "application/json"


class WakeStream(msgspec.Struct, frozen=True, kw_only=True):
    """One of the streams that a wake is about."""

    path: str
    acked_offset: str = ""
    """Up to here it was acknowledged."""
    tail_offset: str = ""
    """Its end."""
    has_pending: bool = False


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """A lease on the new entries of a subscription's streams."""

    wake_id: str
    generation: int
    token: str
    """The token for acknowledgements; they need no key."""
    lease_ttl_ms: int
    streams: list[WakeStream]


class WakeAcked(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets were acknowledged."""

    ok: bool
    next_wake: bool
    """Whether there is something new already."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription and its state."""

    id: str
    type: str
    """`webhook` or `pull-wake`."""
    pattern: str | None = None
    streams: list[WakeStream] = []
    wake_stream: str | None = None
    webhook: dict[str, Any] | None = None
    """Its address, the key that signs, and how calls went."""
    lease_ttl_ms: int
    description: str | None = None
    created_at: str
    generation: int
    status: str
    """`idle`, or `claimed` while the lease is held."""


def put_subscription(
    id: str,
    *,
    streams: Iterable[str] = (),
    pattern: str | None = None,
    webhook: str | None = None,
    wake_stream: str | None = None,
    lease_ttl_ms: int | None = None,
    description: str | None = None,
) -> Request[Subscription]:
    """Creates a subscription to named streams and to streams that match a pattern, or confirms an existing one.

    The server calls the URL `webhook`, or appends to the stream `wake_stream`, from which workers claim.
    """
    if (webhook is None) == (wake_stream is None):
        raise TypeError("put_subscription takes a webhook or a wake_stream, one of them")
    given = {
        "type": "pull-wake" if webhook is None else "webhook",
        "streams": list(streams) or None,
        "pattern": pattern,
        "webhook": None if webhook is None else {"url": webhook},
        "wake_stream": wake_stream,
        "lease_ttl_ms": lease_ttl_ms,
        "description": description,
    }
    return Request(method="PUT", target=_path(id), body=encode_values(given_only(given)), answer=Subscription)


def get_subscription(id: str) -> Request[Subscription]:
    """Returns a subscription and its state."""
    return Request(method="GET", target=_path(id), answer=Subscription)


def delete_subscription(id: str) -> Request[None]:
    """Deletes a subscription."""
    return Request(method="DELETE", target=_path(id), answer=None, read=_nothing)


def link_streams(id: str, streams: Iterable[str]) -> Request[None]:
    """Adds streams to a subscription."""
    body = encode_values({"streams": list(streams)})
    return Request(method="POST", target=_path(id, "/streams"), body=body, answer=None, read=_nothing)


def unlink_stream(id: str, stream: str) -> Request[None]:
    """Removes a stream from a subscription."""
    target = _path(id, f"/streams/{quote(stream, safe='')}")
    return Request(method="DELETE", target=target, answer=None, read=_nothing)


def claim_wake(id: str, worker: str = "") -> Request[Wake]:
    """Leases the new entries of a subscription; a refusal has the code `ALREADY_CLAIMED` or `NO_PENDING_WORK`."""
    body = encode_values({"worker": worker})
    return Request(method="POST", target=_path(id, "/claim"), body=body, answer=Wake, repeatable=False)


def ack_wake(id: str, wake: Wake, offsets: Mapping[str, str], *, done: bool = False) -> Request[WakeAcked]:
    """Acknowledges streams up to offsets and renews the lease; `done` returns the lease."""
    acks = [{"stream": stream, "offset": offset} for stream, offset in offsets.items()]
    given = {"wake_id": wake.wake_id, "generation": wake.generation, "acks": acks, "done": done}
    return Request(
        method="POST", target=_path(id, "/ack"), body=encode_values(given), headers=_held(wake), answer=WakeAcked
    )


def release_wake(id: str, wake: Wake) -> Request[None]:
    """Returns the lease; entries that were not acknowledged are delivered again."""
    given = {"wake_id": wake.wake_id, "generation": wake.generation}
    return Request(
        method="POST", target=_path(id, "/release"), body=encode_values(given), headers=_held(wake), answer=None,
        read=_nothing,
    )  # fmt: skip


def _held(wake: Wake) -> dict[str, str]:
    # In the place of the key: a caller that holds the lease speaks with its token.
    return {"content-type": _JSON, "authorization": f"Bearer {wake.token}"}


def _path(id: str, rest: str = "") -> str:
    return f"/v1/stream/__ds/subscriptions/{named(id, 'subscription')}{rest}"


def _nothing(response: object) -> None:
    """The status is the whole answer."""
