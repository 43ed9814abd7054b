"""Field inference: a search description from samples of a stream's entries.

A member becomes a field when all samples that have it agree on a kind:

    bool      true and false
    integer   whole numbers of 64 bits
    float     numbers, some with a fraction
    date      texts that are ISO 8601 dates
    text      texts, some with a blank or more than 128 characters
    keyword   other texts

Nulls agree with every kind, and an array counts as its elements. Members of objects have dotted names. A field is
proposed in the short form where its name leads to it, and otherwise, as for a member `@time`, in the long form.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topics.model.errors import InvalidRequestError
from topics.schema.documents import MAX_NAME_CHARS, parse, show_pointer
from topics.schema.search_fields import Field, Kind, expand
from topics.search.query.field_values import date_of, flattened, integer_of

MAX_INFERRED: Final = 100
"""The maximum number of proposed fields."""
_MAX_POINTERS: Final = 1000
"""The maximum number of members tracked while samples are read."""
_MAX_DEPTH: Final = 8
_MAX_VALUES: Final = 5000
"""The maximum number of values read from one entry."""
_LONG_CHARS: Final = 128

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9._-]")

Pointer = tuple[str, ...]


class Skipped(msgspec.Struct, frozen=True):
    """A member that is not proposed, and the reason."""

    pointer: str
    reason: str


class _Seen:
    """The values of one member so far."""

    __slots__ = ("kinds", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.kinds: dict[str, None] = {}


class Inference:
    """Reads entries one by one, and proposes a description at the end."""

    def __init__(self) -> None:
        self.entries = 0
        """The number of JSON objects among the samples; other values have no members."""
        self._members: dict[Pointer, _Seen] = {}
        self._is_full = False

    def add(self, raw: bytes | msgspec.Raw) -> None:
        """Reads one entry, given as JSON text."""
        try:
            entry = parse("entry", raw)
        except InvalidRequestError:
            return
        if type(entry) is not dict:
            return
        self.entries += 1
        stack: list[tuple[Pointer, dict[str, Any]]] = [((), entry)]
        left = _MAX_VALUES
        while stack and left > 0:
            above, members = stack.pop()
            for name, value in members.items():
                left -= 1
                if left < 0:
                    break
                pointer = (*above, name)
                if type(value) is dict and value and len(pointer) < _MAX_DEPTH:
                    stack.append((pointer, value))
                else:
                    self._see(pointer, value)

    def _see(self, pointer: Pointer, value: object) -> None:
        seen = self._members.get(pointer)
        if seen is None:
            if len(self._members) >= _MAX_POINTERS:
                self._is_full = True
                return
            seen = self._members[pointer] = _Seen()
        seen.samples += 1
        for one in flattened(value)[:_LONG_CHARS] if type(value) is list else (value,):
            if one is not None:
                seen.kinds[_kind_of(one)] = None

    def propose(self) -> tuple[dict[str, Any], list[Skipped]]:
        """Returns the description that `POST _schema` takes as `search`, and the members that are not in it. Of too
        many members, the most frequent ones are proposed."""
        fields: dict[str, str | Field] = {}
        skipped: list[Skipped] = []
        dates: dict[str, int] = {}
        common = sorted(self._members.items(), key=lambda item: -item[1].samples)
        proposed = {pointer for pointer, seen in common if isinstance(_agreed(seen), _Agreed)}
        kept = [pointer for pointer, _ in common if pointer in proposed][:MAX_INFERRED]
        chosen = frozenset(kept)
        for pointer, seen in self._members.items():
            agreed = _agreed(seen)
            if isinstance(agreed, str):
                skipped.append(Skipped(show_pointer(pointer), agreed))
            elif pointer not in chosen:
                skipped.append(Skipped(show_pointer(pointer), f"more than {MAX_INFERRED} fields; less common"))
            else:
                name = _name_of(pointer)
                if not name or name in fields:
                    reason = f"the name {name} is taken" if name else "has no name that a field can have"
                    skipped.append(Skipped(show_pointer(pointer), reason))
                    continue
                is_short = all(map(_PLAIN.fullmatch, pointer)) and name == ".".join(pointer)
                fields[name] = agreed.kind if is_short else expand(agreed.kind, pointer)
                if agreed.kind == "date":
                    dates[name] = seen.samples
        if self._is_full:
            skipped.append(
                Skipped("", f"entries have more than {_MAX_POINTERS} members; the others were not looked at")
            )
        search: dict[str, Any] = {"fields": fields}
        if dates:
            search["primaryTimestampField"] = max(dates, key=lambda name: dates[name])
        return search, skipped


class _Agreed(msgspec.Struct, frozen=True):
    kind: Kind


def _agreed(seen: _Seen) -> _Agreed | str:
    """Returns the kind of all values of a member, or the reason why they have none in common."""
    kinds = set(seen.kinds)
    if not kinds:
        return "is null or empty in every sample"
    for kind, agreeing in _AGREEING.items():
        if kinds <= agreeing:
            return _Agreed(kind)
    return f"is {' and '.join(seen.kinds)}" if len(kinds) > 1 else f"is an {next(iter(kinds))}"


_AGREEING: Final[dict[Kind, frozenset[str]]] = {
    "bool": frozenset(("bool",)),
    "integer": frozenset(("integer",)),
    "float": frozenset(("integer", "float")),
    "date": frozenset(("date",)),
    "keyword": frozenset(("keyword", "date")),
    "text": frozenset(("text", "keyword", "date")),
}
"""For each kind, the kinds of values that it can hold. The first that fits is proposed."""


def _kind_of(value: object) -> str:
    if type(value) is bool:
        return "bool"
    if type(value) is int:
        return "integer" if integer_of(value) is not None else "float"
    if type(value) is float:
        return "float"
    if type(value) is not str:
        return "object"
    if value[4:5] == "-" and date_of(value) is not None:
        return "date"
    return "text" if len(value) > _LONG_CHARS or len(value.split(None, 1)) > 1 else "keyword"


def _name_of(pointer: Sequence[str]) -> str:
    """Returns the name of a field for a member: dotted, with `_` for invalid characters; empty if none is possible."""
    name = _OTHER.sub("_", ".".join(pointer)).lstrip("._-")
    return name if len(name) <= MAX_NAME_CHARS else ""
