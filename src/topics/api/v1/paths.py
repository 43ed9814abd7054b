"""Which resource a path below /v1/stream names.

/v1/stream/__ds/...            subscriptions
/v1/stream/{name}/pk/{key}     the entries of one key
/v1/stream/{name}/touch/...    what a stream of the profile state-protocol touches
/v1/stream/{name}/_...         another part of a stream; `RESOURCES` are those there are
/v1/stream/{name}              the stream itself

A name may hold slashes, and so may a key. Written as they are or as %2F they mean the same: a path is decoded first and
taken apart then, so that no spelling leads past a word that is reserved. The first `pk` or `touch` behind the first
segment ends the name.
"""

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from topics.api.errors import NotFoundError
from topics.core.errors import InvalidRequestError, quoted
from topics.core.names import PART_WORDS

ROOT = "/v1/stream/"
SUBSCRIPTIONS = "__ds"
RESOURCES = frozenset(("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details"))


class StreamPath(NamedTuple):
    name: str
    resource: str = ""
    """Empty for the stream itself, `pk` for one key of it, else a word that begins with `_` or with `touch/`."""
    key: str = ""


def split_path(path: str) -> StreamPath:
    """The parts of a path below `ROOT`. Raises NotFoundError when it names nothing."""
    rest = decode(path[len(ROOT) :].rstrip("/"))
    found = _split(rest) if "/" in rest else StreamPath(rest)
    if not found.name or found.name == SUBSCRIPTIONS or found.name.startswith(f"{SUBSCRIPTIONS}/"):
        raise NotFoundError(f"there is nothing at {quoted(path)}")
    return found


def _split(rest: str) -> StreamPath:
    segments = rest.split("/")
    for place, word in enumerate(segments[1:-1], start=1):
        name, behind = "/".join(segments[:place]), "/".join(segments[place + 1 :])
        if word in PART_WORDS and behind:
            return StreamPath(name, "pk", behind) if word == "pk" else StreamPath(name, f"{word}/{behind.rstrip('/')}")
    name = rest.rstrip("/")
    before, slash, last = name.rpartition("/")
    return StreamPath(before, last) if slash and last.startswith("_") else StreamPath(name)


def decode(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    try:
        return str(unquote_to_bytes(text.encode("latin-1")), "utf-8")
    except UnicodeDecodeError as error:
        raise NotFoundError(f"there is nothing at {quoted(text)}") from error


def read_name(path: str) -> str:
    """The stream that a header such as Stream-Forked-From names, by its path or its whole address."""
    if "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    if not path.startswith(ROOT):
        raise InvalidRequestError(f"{quoted(path)} is not the path of a stream", field="Stream-Forked-From")
    found = split_path(path.partition("?")[0])
    if found.resource:
        raise InvalidRequestError(f"{quoted(path)} is a part of a stream", field="Stream-Forked-From")
    return found.name
