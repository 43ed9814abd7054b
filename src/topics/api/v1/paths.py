"""Which resource a path below /v1/stream names.

/v1/stream/__ds/...            subscriptions
/v1/stream/{name}/{resource}   a part of a stream, where the last segment is one of `RESOURCES`
/v1/stream/{name}/pk/{key}     the entries of one key
/v1/stream/{name}              the stream itself; its name may hold slashes, written as they are or as %2F
"""

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from topics.api.errors import NotFoundError
from topics.core.errors import InvalidRequestError, quoted

ROOT = "/v1/stream/"
SUBSCRIPTIONS = "__ds"
RESOURCES = frozenset(("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details"))


class StreamPath(NamedTuple):
    name: str
    resource: str = ""
    """Empty for the stream itself, `pk` for one key of it, else one of `RESOURCES`."""
    key: str = ""


def split_path(path: str) -> StreamPath:
    """The parts of a path below `ROOT`. Raises NotFoundError when it names nothing."""
    rest = path[len(ROOT) :].rstrip("/")
    if not rest:
        raise NotFoundError(f"there is nothing at {quoted(path)}")
    if "/" not in rest:
        return StreamPath(decode(rest))
    before, _, last = rest.rpartition("/")
    if last in RESOURCES:
        return StreamPath(decode(before), last)
    name, _, word = before.rpartition("/")
    if word == "pk" and name:
        return StreamPath(decode(name), "pk", decode(last))
    return StreamPath(decode(rest))


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
    return split_path(path.partition("?")[0]).name
