"""Lenses: documents that say how an entry of one version becomes one of the next.

    rename   from, to                                         moves a member
    copy     from, to
    add      path, schema, default?                           sets a member
    remove   path, schema, default?
    hoist    host, name, to, removeFromHost?                  host.name goes out to `to`
    plunge   from, host, name, createHost?, removeFromSource? `from` goes into host.name
    wrap     path, mode, reverseMode?                         x becomes [x]
    head     path, reverseMode?                               [x, ...] becomes x
    convert  path, fromType, toType, forward, backward        a scalar by a table, or by a function with a name
    in       path, ops                                        the ops, within an object
    map      path, ops                                        the ops, for each element of an array

What describes the way back (`backward`, `reverseMode`, `default` of remove) is kept and never used: entries are only
ever promoted. `topics.schema.proofs` says which lenses are sound, `topics.schema.promotion` runs them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.core.errors import InvalidRequestError, StreamConflictError
from topics.schema.documents import check_api_version, convert, refuse_others
from topics.schema.limits import MAX_LENS_OPS
from topics.schema.pointers import parse_pointer

LENS_API_VERSION = "durable.lens/v1"

Scalar = str | int | float | bool | None
TypeName = Literal["string", "number", "integer", "boolean", "null", "object", "array"]
Builtin = Literal[
    "lowercase",
    "uppercase",
    "string_to_int",
    "int_to_string",
    "rfc3339_to_unix_millis",
    "unix_millis_to_rfc3339",
]
_Name = Annotated[str, Meta(min_length=1)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a lens, with no other fields than it declares."""


class Transform(_Strict, frozen=True, kw_only=True):
    """A table, perhaps with a default; or a function."""

    map: dict[str, Scalar] | UnsetType = UNSET
    default: Scalar | UnsetType = UNSET
    builtin: Builtin | UnsetType = UNSET


class Op(_Strict, frozen=True, kw_only=True, tag_field="op"):
    """One step of a lens."""


class Rename(Op, frozen=True, kw_only=True, tag="rename"):
    source: str = msgspec.field(name="from")
    to: str


class Copy(Op, frozen=True, kw_only=True, tag="copy"):
    source: str = msgspec.field(name="from")
    to: str


class Add(Op, frozen=True, kw_only=True, tag="add"):
    path: str
    schema: dict[str, Any] | bool
    default: Any = UNSET


class Remove(Op, frozen=True, kw_only=True, tag="remove"):
    path: str
    schema: dict[str, Any] | bool
    default: Any = UNSET


class Hoist(Op, frozen=True, kw_only=True, tag="hoist"):
    host: str
    name: _Name
    to: str
    remove_from_host: bool = True


class Plunge(Op, frozen=True, kw_only=True, tag="plunge"):
    source: str = msgspec.field(name="from")
    host: str
    name: _Name
    create_host: bool = True
    remove_from_source: bool = True


class Wrap(Op, frozen=True, kw_only=True, tag="wrap"):
    path: str
    mode: Literal["singleton"]
    reverse_mode: Literal["first"] = "first"


class Head(Op, frozen=True, kw_only=True, tag="head"):
    path: str
    reverse_mode: Literal["singleton"] = "singleton"


class Convert(Op, frozen=True, kw_only=True, tag="convert"):
    path: str
    from_type: TypeName
    to_type: TypeName
    forward: Transform
    backward: Transform


class In(Op, frozen=True, kw_only=True, tag="in"):
    path: str
    ops: tuple[Op, ...]


class Map(Op, frozen=True, kw_only=True, tag="map"):
    path: str
    ops: tuple[Op, ...]


OP_BY_NAME: dict[str, type[Op]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Rename, Copy, Add, Remove, Hoist, Plunge, Wrap, Head, Convert, In, Map)
}
_POINTERS = ("from", "to", "path", "host")


class Lens(msgspec.Struct, frozen=True):
    """A lens that is well formed. Whether it is sound is another question."""

    schema: str
    source: int
    to: int
    ops: tuple[Op, ...]


def parse_lens(document: object, what: str = "lens") -> Lens:
    if not isinstance(document, dict):
        raise InvalidRequestError(f"{what} must be a JSON object", field=what)
    refuse_others(what, document, frozenset(("apiVersion", "schema", "from", "to", "description", "ops")))
    if "apiVersion" not in document:
        raise InvalidRequestError(f"{what}.apiVersion is missing", field=f"{what}.apiVersion")
    check_api_version(what, document, LENS_API_VERSION)
    head = convert(what, {name: value for name, value in document.items() if name != "ops"}, _Head)
    ops = _parse_ops(document.get("ops"), f"{what}.ops")
    if count_ops(ops) > MAX_LENS_OPS:
        raise InvalidRequestError(f"{what} has more than {MAX_LENS_OPS} ops", field=f"{what}.ops", max=MAX_LENS_OPS)
    return Lens(head.schema, head.source, head.to, ops)


def check_lens_place(lens: Lens, stream: str, current: int) -> None:
    """Refuses a lens of another stream, or between other versions than the last one and the next."""
    if lens.schema != stream:
        raise InvalidRequestError("lens.schema must be the name of the stream", field="lens.schema")
    if (lens.source, lens.to) != (current, current + 1):
        raise StreamConflictError(
            f"the lens leads from version {lens.source} to {lens.to}; the next one is from {current} to {current + 1}",
            setting="lens",
            current_version=current,
        )


def count_ops(ops: Sequence[Op]) -> int:
    return sum(1 + (count_ops(op.ops) if isinstance(op, In | Map) else 0) for op in ops)


class _Head(_Strict, frozen=True, kw_only=True):
    api_version: str
    schema: _Name
    source: Annotated[int, Meta(ge=0)] = msgspec.field(name="from")
    to: Annotated[int, Meta(ge=0)]
    description: str = ""


def _parse_ops(documents: object, what: str) -> tuple[Op, ...]:
    if not isinstance(documents, list) or not documents:
        raise InvalidRequestError(f"{what} must be an array of at least one op", field=what)
    return tuple(_parse_op(document, f"{what}[{index}]") for index, document in enumerate(documents))


def _parse_op(document: object, what: str) -> Op:
    name = document.get("op") if isinstance(document, dict) else None
    kind = OP_BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(document, dict):
        raise InvalidRequestError(f"{what}.op must be one of {'|'.join(OP_BY_NAME)}", field=f"{what}.op")
    for pointer in _POINTERS:
        if isinstance(document.get(pointer), str):
            parse_pointer(document[pointer], f"{what}.{pointer}")
    if kind is In or kind is Map:
        ops = _parse_ops(document.get("ops"), f"{what}.ops")
        outer = convert(what, {**document, "ops": []}, kind)
        return msgspec.structs.replace(outer, ops=ops)
    op = convert(what, document, kind)
    if isinstance(op, Convert):
        for way, transform in (("forward", op.forward), ("backward", op.backward)):
            parts = [name for name in ("map", "default", "builtin") if getattr(transform, name) is not UNSET]
            if parts not in (["map"], ["map", "default"], ["builtin"]):
                field = f"{what}.{way}"
                raise InvalidRequestError(f"{field} must be {{map, default?}} or {{builtin}}", field=field)
    return op
