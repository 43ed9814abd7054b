"""What a change of a state-protocol stream touches: the keys under which others wait for it.

A *template* is a query with open arguments: an entity, and up to three fields that it asks by. For every template a
change is looked at before and after: whose query it may have changed is what it touches.
"""

from typing import Any, NamedTuple

import msgspec

from topics.schema.touch_keys import (
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
    """A query with open arguments. Its fields are in the order of their names, which is that of its arguments."""

    id: str
    entity: str
    fields: tuple[tuple[str, Encoding], ...]

    @classmethod
    def of(cls, entity: str, fields: dict[str, Encoding]) -> "Template":
        return cls(template_id(entity, fields), entity, tuple(sorted(fields.items())))

    @property
    def key(self) -> int:
        """What is touched in place of all its other keys, where those are not worked out."""
        return key_id(template_key(self.id))


class Touched(NamedTuple):
    """The ids of keys. `coarse` are templates whose keys for this change could not be told."""

    table: int
    fine: list[int]
    coarse: list[Template]


def change_entity(change: Any) -> str | None:
    """The entity that an entry changes; None for a mark, which touches nothing."""
    entity = change.get("type") if isinstance(change, dict) else None
    return entity if isinstance(entity, str) else None


def touched_by(change: dict[str, Any], templates: list[Template], skip_before: bool) -> Touched:
    """What a change touches. `skip_before` goes on where a change does not say what its row was like before."""
    operation = change["headers"].get("operation")
    after = _row(change.get("value")) if operation != "delete" else None
    before = _row(change.get("old_value")) if operation != "insert" else None
    unknown = operation != "insert" and before is None
    fine: list[int] = []
    coarse: list[Template] = []
    for template in templates:
        if unknown and not skip_before:
            coarse.append(template)
        else:
            fine += _keys(template, before, after)
    return Touched(key_id(table_key(change["type"])), fine, coarse)


def _keys(template: Template, before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[int]:
    was, now = _arguments(template, before), _arguments(template, after)
    places = [arguments for arguments in dict.fromkeys((was, now)) if arguments is not None]
    keys = [watch_key(template.id, arguments) for arguments in places]
    if was != now:
        keys += [membership_key(template.id, arguments) for arguments in places]
    for name in _changed(before or {}, after or {}):
        keys += [projection_key(template.id, name, arguments) for arguments in places]
    return list(map(key_id, keys))


def _row(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _arguments(template: Template, row: dict[str, Any] | None) -> tuple[str, ...] | None:
    """What a query has to ask by to find the row; None where no query of this template finds it."""
    if row is None:
        return None
    arguments = [encode_argument(row.get(name), encoding) for name, encoding in template.fields]
    found = [argument for argument in arguments if argument is not None]
    return tuple(found) if len(found) == len(arguments) else None


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = {**before, **after}
    missing = object()
    return [name for name in names if before.get(name, missing) != after.get(name, missing)]
