"""JSON documents from clients: limits, parsing, JSON pointers and routing keys. Unknown fields are rejected by name."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from topics.model.errors import InvalidRequestError, quoted
from topics.model.limits import KIB, MIB

# Limits, so that no document of a client can cause unbounded work.

MAX_UPDATE_BYTES: Final = 256 * KIB
"""One request to change a schema or a profile."""
MAX_REGISTRY_BYTES: Final = 4 * MIB
"""All versions of one stream together; every snapshot contains them."""
MAX_DOCUMENT_DEPTH: Final = 64
"""The maximum nesting of a schema, because functions on schemas and the validator recurse."""

MAX_PATTERNS: Final = 100
MAX_PATTERN_BYTES: Final = MIB
"""One compiled pattern. A short text like `a{1000}{1000}` makes a large automaton."""
MAX_SCHEMA_WEIGHT: Final = 2048
"""Steps that a schema may take for each element of an array: see `topics.schema.validation`."""
MAX_UNEVALUATED: Final = 4
"""`unevaluatedProperties` and `unevaluatedItems` in one schema.

Each repeats the work of those below it, so the cost doubles with every level.
"""

MAX_MESSAGES: Final = 8
"""The maximum number of messages in a refusal of one entry; more would repeat the same."""
MAX_ERRORS: Final = 10_000
"""The number of errors of an entry up to which all are collected.

The validator creates an object for each, including those of every tried branch: an entry of a MiB has exceeded five GiB
that way.
"""
MAX_VALIDATION_COST: Final = 32 * MIB
"""The bytes validated at once, multiplied by the weight of the schema; at most about 10 ns each."""
MAX_ENTRY_COST: Final = 4 * MIB
"""The same for a single entry, which cannot be interrupted."""
MAX_ERROR_VALUES: Final = 50_000
"""Values of enums that are copied into the report of an invalid entry; 0.3 microseconds each."""
MAX_PORTION: Final = 256
PORTION_BYTES: Final = 256 * KIB
PORTION_COST: Final = MIB
"""The number of entries, their bytes and their cost as above that are processed in one slice.

This takes a few milliseconds; a single entry may take longer.
"""

MAX_LENS_OPS: Final = 256
MAX_PROOF_STEPS: Final = 100_000
"""The maximum number of comparisons of one proof. Nested unions would take too long."""
MAX_PROMOTED_BYTES: Final = 8 * MIB
"""The maximum size of an entry after its lenses, which may copy, and add to every element of an array."""
MAX_PROMOTION_STEPS: Final = 1_000_000
"""The maximum number of ops on one entry, including those on elements of its arrays; about 0.15 microseconds each.

An entry that needs more is returned unchanged.
"""
PORTION_STEPS: Final = 20_000
"""Ops of one answer on the event loop. The next read continues; an entry that needs more is promoted by a thread."""
MAX_BUILT_OPS: Final = 2_000
"""Ops that the event loop compiles for one answer."""
INLINE_PROOF_STEPS: Final = 500
"""Comparisons of a proof on the event loop, 20 microseconds each; a longer one is made by a thread."""

MAX_UNPACKED_BYTES: Final = 64 * MIB
"""The bytes of the resources and scopes of the spans of one export: each span gets a copy."""

MAX_KEY_BYTES: Final = KIB
"""A routing key."""

MAX_SEARCH_FIELDS: Final = 256
MAX_ROLLUPS: Final = 32
MAX_ROLLUP_PARTS: Final = 32
"""Dimensions, intervals and measures of one rollup, each."""
MAX_QUERY_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 64
MAX_REDACT_KEYS: Final = 64


_T = TypeVar("_T")

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_AT = re.compile(r"(?P<problem>.*?) - at `(?:key in )?\$\.?(?P<path>.*)`", re.DOTALL)

encode = msgspec.json.Encoder().encode

# Decoding of numbers near the limits of floats.
#
# The decoder reads a float in 15 ns, but one with an exponent like 308 in 10 microseconds, so 300 kB of them took half
# a second. Texts with many such exponents are decoded with a hook for floats, which takes 0.4 microseconds each. The
# search for exponents takes 1.7 microseconds per kB, so short texts are not searched.

MAX_EXTREME_NUMBERS: Final = 40_000
"""The maximum number of such numbers in one entry, which cannot be interrupted."""
_UNSEARCHED_BYTES: Final = 2 * KIB
_EXTREME_MAX: Final = 64
_EXTREME_MIN: Final = 1e-99
_EXTREME_LEAST: Final = 1e100
_SIGNS: Final = b"+-"
_SHAPES: Final = bytes(
    [
        ord("0") if chr(byte).isdecimal() else ord("e") if byte in b"eE" else byte if byte in b"." else 32
        for byte in range(128)
    ]
    + [32] * 128
)
"""Translates a text so that each exponent of three digits becomes `e000`."""


def finite(text: str) -> float:
    """Returns the number; a hook of a decoder. Raises ValueError if it is too large."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return number


class _Counted:
    """A hook that raises after a maximum number of extreme exponents."""

    def __init__(self) -> None:
        self._left = MAX_EXTREME_NUMBERS

    def __call__(self, text: str) -> float:
        number = finite(text)
        if not _EXTREME_MIN < abs(number) < _EXTREME_LEAST and number:
            self._left -= 1
            if self._left < 0:
                raise ValueError(
                    f"an entry of a stream with a schema or a profile has at most {MAX_EXTREME_NUMBERS} numbers with "
                    "an exponent of three digits"
                )
        return number


def _decode_counted(text: bytes | memoryview | msgspec.Raw) -> Any:
    return msgspec.json.Decoder(float_hook=_Counted()).decode(text)


_decode = msgspec.json.Decoder().decode
_decode_extreme = msgspec.json.Decoder(float_hook=finite).decode


def has_extreme_numbers(text: bytes | memoryview | msgspec.Raw) -> bool:
    """Returns whether a text may have so many numbers with exponents of three digits that it needs the decoder with a
    hook."""
    return len(text) > _UNSEARCHED_BYTES and _count_exponents(text) > _EXTREME_MAX


def _count_exponents(text: bytes | memoryview | msgspec.Raw) -> int:
    return shape_of(text).count(b"e000")


def shape_of(text: bytes | memoryview | msgspec.Raw) -> bytes:
    """Returns a text with 0 for every digit, e for the letter of exponents, and without signs.

    Counting in it is ten times as fast as with a regular expression.
    """
    return bytes(text).translate(_SHAPES, _SIGNS)


def decode(text: bytes | memoryview | msgspec.Raw) -> Any:
    """Decodes a JSON text, in time bounded by its size. Raises ValueError and RecursionError."""
    return _decode_extreme(text) if has_extreme_numbers(text) else _decode(text)


def decoder_for(texts: Sequence[bytes | memoryview | msgspec.Raw], bounded: bool = False) -> Callable[[Any], Any]:
    """Returns a decoder for many texts, in time bounded by their size.

    With `bounded` it refuses a text with more than `MAX_EXTREME_NUMBERS` numbers of extreme exponents.
    """
    extreme = sum(map(len, texts)) > _UNSEARCHED_BYTES and has_extreme_numbers(b" ".join(map(bytes, texts)))
    if bounded and extreme:
        return _decode_counted
    return _decode_extreme if extreme else _decode


def parse(what: str, body: bytes | memoryview | msgspec.Raw) -> Any:
    """The only parser of documents and entries, so that all modules agree on the value of a text."""
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode(what, error, bytes(body)) from None


def parse_request(what: str, body: bytes) -> dict[str, Any]:
    """Parses a request's body: an object of bounded size and depth."""
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
    """Refuses a document of another version; without a version it is the current one."""
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
    """Converts `document` to the type `shape`, or refuses it with the name of the field, such as
    `profile.touch.enabled`."""
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
    """Returns whether two documents are equal. In Python `true` equals 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def fresh(value: Any) -> Any:
    """Returns a deep copy."""
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


# JSON pointers (RFC 6901).

_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX = re.compile(r"0|[1-9][0-9]*")

MISSING: Final = object()
"""The result of a pointer without a match, because None is a value."""


def parse_pointer(text: str, what: str) -> tuple[str, ...]:
    """Returns the tokens of a pointer; empty for the whole document."""
    if _POINTER.fullmatch(text) is None:
        raise InvalidRequestError(f"{what} {quoted(text)} is not a JSON pointer", field=what)
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])


def show_pointer(tokens: tuple[str, ...]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def finder(tokens: tuple[str, ...]) -> Callable[[object], object]:
    """Returns a function that finds the value in a document, or `MISSING`.

    It is called for every entry, so the common case of a top-level member has no loop.
    """
    if len(tokens) == 1:
        name = tokens[0]

        def find_member(document: object) -> object:
            return document.get(name, MISSING) if type(document) is dict else _element(document, name)

        return find_member

    def find(document: object) -> object:
        for token in tokens:
            document = document.get(token, MISSING) if type(document) is dict else _element(document, token)
            if document is MISSING:
                break
        return document

    return find


def _element(document: object, token: str) -> object:
    if type(document) is not list or _INDEX.fullmatch(token) is None or len(token) > 9:
        return MISSING
    index = int(token)
    return document[index] if index < len(document) else MISSING


# Routing keys: the member of an entry that is used as its key.


class RoutingKey(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    json_pointer: str
    required: bool


class KeyExtractor:
    """Extracts the keys of entries, by the pointer of a registry."""

    def __init__(self, routing_key: RoutingKey) -> None:
        self._pointer = routing_key.json_pointer
        self._required = routing_key.required
        self._find = finder(parse_pointer(routing_key.json_pointer, "routingKey.jsonPointer"))

    def keys_of(self, values: Sequence[Any]) -> list[str | None]:
        """Returns one key for each entry; None for an entry without a key, if keys are optional."""
        return [self._key_of(index, value) for index, value in enumerate(values)]

    def _key_of(self, index: int, value: Any) -> str | None:
        found = self._find(value)
        if type(found) is str:
            # A character has at most four bytes, so most keys are known to be short without encoding.
            if len(found) * 4 > MAX_KEY_BYTES and len(found.encode()) > MAX_KEY_BYTES:
                raise self._refusal(index, f"has more than {MAX_KEY_BYTES} bytes")
            return found
        if found is not MISSING:
            raise self._refusal(index, "must be a string")
        if self._required:
            raise self._refusal(index, "is missing")
        return None

    def _refusal(self, index: int, problem: str) -> InvalidRequestError:
        return InvalidRequestError(f"the routing key {problem}", index=index, field=self._pointer)
