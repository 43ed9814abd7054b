"""Topic names: which are valid, and which are reserved for the server."""

import re

from topics.model.errors import InvalidRequestError, quoted

# `fullmatch` below and no `$` here, because `$` also matches before a trailing newline. The classes are spelled out
# instead of `\w`, which would let in letters of every script: names are compared byte by byte, never normalised.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

_STREAM_NAME_BYTES_MAX = 1024

TOPIC_NAME_PATTERN = f"^{_TOPIC_NAME.pattern}$"
"""The pattern of topic names, for OpenAPI documents."""


def check_topic_name(name: str) -> str:
    """`name` itself when it is a legal topic name, otherwise `InvalidRequestError`."""
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : - beginning with a letter or digit"
        )
    return name


def is_topic_name(name: str) -> bool:
    """Whether /v0 can speak of a topic of that name; streams may be called more."""
    return _TOPIC_NAME.fullmatch(name) is not None


_OWN = "__ds/"
REGISTRY_STREAM = "__registry__"
METRICS_STREAM = "__stream_metrics__"
SYSTEM_STREAMS = (REGISTRY_STREAM, METRICS_STREAM)
"""The streams that the server writes for others to read."""
_SYSTEM = frozenset(("__ds", "__stream_stats__", *SYSTEM_STREAMS))
PART_WORDS = frozenset(("pk", "touch"))
"""Segments of a path of /v1 with which a part of the stream in front of them begins."""


SUBSCRIPTIONS_TOPIC = f"{_OWN}subscriptions"
TRANSACTIONS_TOPIC = f"{_OWN}transactions"
INTERNAL_TOPICS = (SUBSCRIPTIONS_TOPIC, TRANSACTIONS_TOPIC)
"""Topics in which the server stores its own state."""
SERVER_TOPICS = (*INTERNAL_TOPICS, *SYSTEM_STREAMS)
"""All topics that come to be without anybody asking for them."""


def is_own_name(name: str) -> bool:
    """Whether a topic is the server's own: neither protocol can name it, and nothing outside shall see it."""
    return name.startswith(_OWN)


def is_server_name(name: str) -> bool:
    """Whether a topic is there because the server writes it, for itself or for others: nobody archives it, moves it to
    the cold tier, counts it against a limit, or means it by a pattern."""
    return is_own_name(name) or name in SYSTEM_STREAMS


def check_stream_name(name: str) -> None:
    """A stream may be called anything that is text, has no control characters and fits into a path."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= _STREAM_NAME_BYTES_MAX or not name.isprintable() or is_own_name(name):
        raise InvalidRequestError(
            f"{quoted(name)} is not a stream name: 1 to {_STREAM_NAME_BYTES_MAX} bytes of printable text", field="name"
        )


def is_reserved_name(name: str) -> bool:
    """Whether no stream can be created under this name: it is one of the server's own, or the path of /v1 that would
    name it names a part of another stream.

    Only creation asks. Whoever has such a stream from before keeps it.
    """
    if name in _SYSTEM or is_own_name(name):
        return True
    _, *behind = name.split("/")
    return bool(behind) and (behind[-1].startswith("_") or not PART_WORDS.isdisjoint(behind))
