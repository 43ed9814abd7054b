"""Reading what clients send: every field that is not known is refused by its name, so that a typo changes nothing."""

import re
from typing import Any, TypeVar

import msgspec

from topics.core.errors import InvalidRequestError, quoted
from topics.schema.limits import MAX_DOCUMENT_DEPTH, MAX_UPDATE_BYTES

_T = TypeVar("_T")

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_AT = re.compile(r"(?P<problem>.*?) - at `(?:key in )?\$\.?(?P<path>.*)`", re.DOTALL)

_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def parse(what: str, body: bytes | memoryview | msgspec.Raw) -> Any:
    """The one parser of documents and entries: what it takes for the value of a text, everything else takes, too."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode(what, error, bytes(body)) from None


def parse_request(what: str, body: bytes) -> dict[str, Any]:
    """A request's body: an object of a bounded size and depth."""
    if len(body) > MAX_UPDATE_BYTES:
        raise InvalidRequestError(
            f"{what} has more than {MAX_UPDATE_BYTES} bytes", bytes=len(body), max=MAX_UPDATE_BYTES
        )
    document = parse(what, body)
    if not isinstance(document, dict):
        raise InvalidRequestError(f"{what} must be a JSON object")
    if not _is_shallow(document, MAX_DOCUMENT_DEPTH):
        raise InvalidRequestError(f"{what} is nested more than {MAX_DOCUMENT_DEPTH} deep", max=MAX_DOCUMENT_DEPTH)
    return document


def check_api_version(what: str, document: dict[str, Any], expected: str) -> None:
    """Refuses a document of another version; one without the word is of this one."""
    given = document.get("apiVersion", expected)
    if given != expected:
        raise InvalidRequestError(f"{what}.apiVersion must be {expected}", field=f"{what}.apiVersion")


def refuse_others(what: str, document: dict[str, Any], known: frozenset[str]) -> None:
    for name in document:
        if name not in known:
            raise unsupported(what, name)


def unsupported(what: str, name: str) -> InvalidRequestError:
    shown = quoted(name)[1:-1]
    return InvalidRequestError(f"{what}.{shown} is not supported", field=f"{what}.{shown}")


def convert(what: str, document: object, shape: type[_T]) -> _T:
    """`document` as a value of the type `shape`, or a refusal that names the field, as `profile.touch.enabled`."""
    try:
        return msgspec.convert(document, shape)
    except (ValueError, RecursionError) as error:
        found = _AT.fullmatch(str(error))
        problem, path = (found["problem"], found["path"]) if found else (str(error), "")
        where = f"{what}.{path}" if path else what
        unknown = _UNKNOWN.fullmatch(problem)
        if unknown:
            raise unsupported(where, unknown["name"]) from None
        raise InvalidRequestError(f"{where}: {quoted(problem.replace('`', ''))[1:-1]}", field=where) from None


def same(one: object, other: object) -> bool:
    """Whether two documents are one and the same. Python's own equality takes `true` for 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def fresh(value: Any) -> Any:
    """A copy that shares nothing that can change."""
    if type(value) is dict:
        return {name: fresh(member) for name, member in value.items()}
    if type(value) is list:
        return [fresh(element) for element in value]
    return value


def _is_shallow(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_is_shallow(member, depth - 1) for member in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_shallow(element, depth - 1) for element in value)
    return True
