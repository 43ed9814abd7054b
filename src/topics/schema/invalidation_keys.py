"""Invalidation keys (also known as: touch keys) of a state-protocol stream: the keys that a row change invalidates.

A *template* is a query with open arguments: an entity and up to three fields. For every active template, a change
invalidates the keys of all queries whose results may have changed, by the row's old and new values.
"""

from collections.abc import Generator, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from topics.model.errors import InvalidRequestError
from topics.schema.documents import convert, parse_request
from topics_protocol.touch_keys import (
    Encoding,
    encode_argument,
    key_id,
    membership_key,
    projection_key,
    table_key,
    template_id,
    template_key,
    watch_key,
)


class Template(msgspec.Struct, frozen=True):
    """A query with open arguments. Its fields are sorted by name, and its arguments follow that order."""

    id: str
    entity: str
    fields: tuple[tuple[str, Encoding], ...]

    @classmethod
    def of(cls, entity: str, fields: dict[str, Encoding]) -> "Template":
        return cls(template_id(entity, fields), entity, tuple(sorted(fields.items())))

    @property
    def key(self) -> int:
        """The key that is touched instead of all other keys of the template, if those are not computed."""
        return key_id(template_key(self.id))


class Touched(NamedTuple):
    """The ids of keys. `coarse` are templates whose keys for this change are not included."""

    table: int
    fine: list[int]
    coarse: list[Template]
    dropped: int
    """The number of fine keys that were not included because there were too many."""


def change_entity(change: Any) -> str | None:
    """Returns the entity that an entry changes; None for a control entry, which touches nothing."""
    entity = change.get("type") if isinstance(change, dict) else None
    return entity if isinstance(entity, str) else None


_KEYS_AT_ONCE = 256
"""The number of keys computed between two yields, two microseconds each."""
_TEMPLATES_AT_ONCE = 64


def touched_by(
    change: dict[str, Any], templates: list[Template], skip_before: bool, most: int
) -> Generator[None, None, Touched]:
    """Returns the keys that a change touches, if there are at most `most`.

    `skip_before` accepts changes without the row before the change. Keys are counted before they are computed, because
    a row may touch a million.
    """
    table = key_id(table_key(change["type"]))
    operation = change["headers"].get("operation")
    after = _row(change.get("value")) if operation != "delete" else None
    before = _row(change.get("old_value")) if operation != "insert" else None
    if operation != "insert" and before is None and not skip_before:
        return Touched(table, [], templates, 0)
    changed = _changed(before or {}, after or {})
    found: list[tuple[Template, list[tuple[str, ...]], bool]] = []
    count = 0
    for number, template in enumerate(templates, 1):
        was, now = _arguments(template, before), _arguments(template, after)
        places = [arguments for arguments in dict.fromkeys((was, now)) if arguments is not None]
        if places:
            found.append((template, places, was != now))
            count += len(places) * (1 + (was != now) + len(changed))
        if count > most:
            return Touched(table, [], templates, count)
        if not number % _TEMPLATES_AT_ONCE:
            yield
    fine: list[int] = []
    told = 0
    for template, places, moved in found:
        for key in _keys(template, places, moved, changed):
            fine.append(key_id(key))
            if len(fine) - told >= _KEYS_AT_ONCE:
                told = len(fine)
                yield
    return Touched(table, fine, [], 0)


def _keys(template: Template, places: list[tuple[str, ...]], moved: bool, changed: list[str]) -> Iterator[str]:
    for arguments in places:
        yield watch_key(template.id, arguments)
        if moved:
            yield membership_key(template.id, arguments)
        for name in changed:
            yield projection_key(template.id, name, arguments)


def _row(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _arguments(template: Template, row: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Returns the arguments of the query that finds the row; None if no query of this template finds it."""
    if row is None:
        return None
    arguments = [encode_argument(row.get(name), encoding) for name, encoding in template.fields]
    found = [argument for argument in arguments if argument is not None]
    return tuple(found) if len(found) == len(arguments) else None


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = {**before, **after}
    missing = object()
    return [name for name in names if before.get(name, missing) != after.get(name, missing)]


# Requests of the touch routes.

MAX_WAIT_KEYS = 1024
MAX_TIMEOUT_MS = 120_000
_DEFAULT_TIMEOUT_MS = 30_000
_Id = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request that rejects unknown fields."""


class _Field(_Strict, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    encoding: Encoding


class _Template(_Strict, frozen=True, kw_only=True):
    entity: Annotated[str, Meta(min_length=1, max_length=256)]
    fields: Annotated[list[_Field], Meta(min_length=1, max_length=3)]


_Templates = Annotated[list[_Template], Meta(min_length=1, max_length=256)]
_Lifetime = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Activation(_Strict, frozen=True, kw_only=True):
    templates: _Templates
    inactivity_ttl_ms: _Lifetime | None = None


class _Wait(_Strict, frozen=True, kw_only=True):
    cursor: Annotated[str, Meta(min_length=1, max_length=64)]
    keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_WAIT_KEYS)] = []
    key_ids: Annotated[list[Annotated[int, Meta(ge=0, lt=2**32)]], Meta(max_length=MAX_WAIT_KEYS)] = []
    timeout_ms: Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS)] = _DEFAULT_TIMEOUT_MS
    interest_mode: Literal["fine", "coarse"] = "fine"
    exact: bool = False
    template_ids_used: Annotated[list[_Id], Meta(max_length=MAX_WAIT_KEYS)] = []
    declare_templates: Annotated[list[_Template], Meta(max_length=256)] = []
    inactivity_ttl_ms: _Lifetime | None = None


class Activation(msgspec.Struct, frozen=True):
    templates: list[Template]
    inactivity_ttl_ms: int | None


class WaitRequest(msgspec.Struct, frozen=True):
    cursor: str
    """`now`, or a cursor of an answer."""
    keys: frozenset[int]
    timeout_ms: int
    coarse: bool
    """Whether any change of the tables matches."""
    templates: list[str]
    """The ids of the keys' templates."""
    declared: list[Template]
    inactivity_ttl_ms: int | None


def parse_activation(body: bytes) -> Activation:
    given = convert("activation", parse_request("activation", body), _Activation)
    return Activation([_template(template) for template in given.templates], given.inactivity_ttl_ms)


def parse_wait(body: bytes) -> WaitRequest:
    given = convert("wait", parse_request("wait", body), _Wait)
    keys = frozenset((*map(key_id, given.keys), *given.key_ids))
    if not keys:
        raise InvalidRequestError("wait must have keys or keyIds", field="wait.keys")
    if len(given.keys) + len(given.key_ids) > MAX_WAIT_KEYS:
        raise InvalidRequestError(f"wait has more than {MAX_WAIT_KEYS} keys", field="wait.keys", max=MAX_WAIT_KEYS)
    declared = [_template(template) for template in given.declare_templates]
    used = list(dict.fromkeys((*given.template_ids_used, *(template.id for template in declared))))
    return WaitRequest(
        given.cursor, keys, given.timeout_ms, given.interest_mode == "coarse", used, declared, given.inactivity_ttl_ms
    )


def _template(given: _Template) -> Template:
    fields: dict[str, Any] = {field.name: field.encoding for field in given.fields}
    if len(fields) < len(given.fields):
        raise InvalidRequestError("a template asks by each of its fields once", field="fields")
    return Template.of(given.entity, fields)
