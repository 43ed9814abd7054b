"""Lenses (schema migrations): documents that convert entries of one schema version to the next.

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

Fields for the reverse direction (`backward`, `reverseMode`, `default` of remove) are kept and never used: entries are
only ever promoted. `topics.schema.lens_proof` decides which lenses are sound, `topics.schema.registry` runs them.
"""

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.errors import InvalidRequestError, StreamConflictError
from topics.schema.documents import MAX_LENS_OPS, check_api_version, convert, fresh, parse_pointer, refuse_others
from topics_protocol.rfc3339 import rfc3339_to_unix_millis, unix_millis_to_rfc3339

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
    """A part of a lens; unknown fields are rejected."""


class Transform(_Strict, frozen=True, kw_only=True):
    """A table with an optional default, or a function."""

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
    """A well-formed lens. Its soundness is checked separately."""

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
    """Refuses a lens of another stream, or one that does not lead from the current version to the next."""
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


# Conversions: tables, and named functions whose meaning never changes.
#
# Each function is total on the values that a proof allows, so that a promotion never fails. A date outside the years of
# four digits becomes the nearest valid date: refusing the lens would block a stream with one such entry at its version.

Conversion = Callable[[Any], Scalar]

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")


def string_to_int(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("not an integer")
    return int(text)


def int_to_string(number: int | float) -> str:
    return str(int(number))


BUILTINS: Final[dict[str, Conversion]] = {
    "lowercase": str.lower,
    "uppercase": str.upper,
    "string_to_int": string_to_int,
    "int_to_string": int_to_string,
    "rfc3339_to_unix_millis": rfc3339_to_unix_millis,
    "unix_millis_to_rfc3339": unix_millis_to_rfc3339,
}

BUILTIN_TYPES: Final = {
    "lowercase": ("string", {"type": "string"}),
    "uppercase": ("string", {"type": "string"}),
    "string_to_int": ("string", {"type": "integer"}),
    "int_to_string": ("integer", {"type": "string"}),
    "rfc3339_to_unix_millis": ("string", {"type": "integer"}),
    "unix_millis_to_rfc3339": ("integer", {"type": "string", "format": "date-time"}),
}
"""The input type of each function, and the schema of its results."""

PARTIAL: Final = frozenset(("string_to_int", "rfc3339_to_unix_millis"))
"""Functions that are not defined for some texts of their type."""


def conversion(transform: Transform) -> Conversion:
    """Returns the transform as a function. It raises `LookupError` or `ValueError` for values without a result."""
    if transform.builtin is not UNSET:
        return BUILTINS[transform.builtin]
    table: dict[str, Scalar] = {} if transform.map is UNSET else transform.map
    default = transform.default
    if default is UNSET:
        return lambda value: table[table_key(value)]
    return lambda value: table.get(table_key(value), default)


def table_key(value: Scalar) -> str:
    """Returns a value as a key of a table: a text unchanged, anything else as JSON, 1.0 as 1."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


# Compilation: one function for each op, which changes the document in place and returns it.
#
# A lens is compiled once and run for every entry. Top-level ops, which are nearly all, have separate functions without
# a loop over the path.

Step = Callable[[Any], Any]
Path = tuple[str, ...]

_BUILTIN_GROWTH = 64
"""1e308 has five bytes, and 309 as the text of an integer."""


def compile_ops(ops: Sequence[Op]) -> tuple[Step, ...]:
    """Returns the steps of ops with resolved defaults (`topics.schema.lens_proof.resolve_defaults`).

    Consecutive top-level renames are one step.
    """
    steps: list[Step] = []
    for renames, group in groupby(ops, _is_plain_rename):
        found = list(group)
        if renames and len(found) > 1:
            steps.append(
                _rename_all([(_tokens(op.source)[0], _tokens(op.to)[0]) for op in found if isinstance(op, Rename)])
            )
        else:
            steps += map(_compile, found)
    return tuple(steps)


def _is_plain_rename(op: Op) -> bool:
    return isinstance(op, Rename) and len(_tokens(op.source)) == len(_tokens(op.to)) == 1


def _rename_all(pairs: Sequence[tuple[str, str]]) -> Step:
    """Returns consecutive renames as one step: the final name of each member, in the order of the last renames.

    A member that a rename overwrites is removed, even if the name is moved again.
    """
    origins: dict[str, str] = {}
    """The original name of each member, by its current name."""
    moved: set[str] = set()
    overwritten: dict[str, None] = {}
    for source, to in pairs:
        origin = origins.pop(source, None)
        if origin is None:
            if source in moved or source in overwritten:
                raise ValueError(f"nothing is called {source} any more")
            origin = source
            moved.add(origin)
        if to not in moved:
            overwritten[to] = None
        origins.pop(to, None)
        origins[to] = origin
    names = tuple(moved)
    final = tuple(origins.items())
    gone = tuple([name for name in overwritten if name not in moved])

    def rename_all(document: Any) -> Any:
        taken = {name: document.pop(name) for name in names}
        for name in gone:
            document.pop(name, None)
        for name, origin in final:
            document[name] = taken[origin]
        return document

    return rename_all


def run(steps: Sequence[Step], document: Any) -> Any:
    for step in steps:
        document = step(document)
    return document


def growth(ops: Sequence[Op]) -> tuple[int, int]:
    """Returns a bound for the size of the ops' results: a factor of the document's size, plus a number of bytes.

    An op adds to a document, or to each element of an array, at most its own text, which contains all names, defaults
    and values of tables. An element has at least two bytes with its comma.
    """
    factor, extra = 1, 0
    for op in ops:
        text = len(msgspec.json.encode(op))
        if isinstance(op, In):
            times, plus = growth(op.ops)
        elif isinstance(op, Map):
            times, plus = growth(op.ops)
            times, plus = times + -(-plus // 2), 0
        elif isinstance(op, Convert):
            times, plus = _BUILTIN_GROWTH, text
        else:
            times, plus = (2 if _is_copying(op) else 1), text
        factor, extra = factor * times, extra * times + plus
    return factor, extra


def _is_copying(op: Op) -> bool:
    return (
        isinstance(op, Copy)
        or (isinstance(op, Hoist) and not op.remove_from_host)
        or (isinstance(op, Plunge) and not op.remove_from_source)
    )


def _compile(op: Op) -> Step:
    match op:
        case Rename():
            return _move(_tokens(op.source), _tokens(op.to), True)
        case Copy():
            return _move(_tokens(op.source), _tokens(op.to), False)
        case Hoist():
            return _move((*_tokens(op.host), op.name), _tokens(op.to), op.remove_from_host)
        case Plunge():
            return _plunge(op)
        case Add():
            return _set(_tokens(op.path), op.default)
        case Remove():
            return _drop(_tokens(op.path))
        case Wrap():
            return _change(_tokens(op.path), lambda value: [value])
        case Head():
            return _change(_tokens(op.path), lambda value: value[0])
        case Convert():
            return _change(_tokens(op.path), conversion(op.forward))
        case In():
            return _inside(_tokens(op.path), compile_ops(op.ops))
        case Map():
            return _each(_tokens(op.path), compile_ops(op.ops))
    raise AssertionError(f"an unknown op: {op}")


def _tokens(pointer: str) -> Path:
    return parse_pointer(pointer, "pointer")


def _at(document: Any, path: Path) -> Any:
    for token in path:
        document = document[token]
    return document


def _move(source: Path, to: Path, remove: bool) -> Step:
    *above, name = source
    *there, new = to
    if not above and not there and remove:

        def rename(document: Any) -> Any:
            document[new] = document.pop(name)
            return document

        return rename
    parent, target = tuple(above), tuple(there)

    def move(document: Any) -> Any:
        holder = _at(document, parent)
        value = holder.pop(name) if remove else fresh(holder[name])
        _at(document, target)[new] = value
        return document

    return move


def _plunge(op: Plunge) -> Step:
    *above, name = _tokens(op.source)
    *there, host = _tokens(op.host)
    parent, target = tuple(above), tuple(there)
    inner, create, remove = op.name, op.create_host, op.remove_from_source

    def plunge(document: Any) -> Any:
        holder = _at(document, parent)
        value = holder.pop(name) if remove else fresh(holder[name])
        outer = _at(document, target)
        if create and type(outer.get(host)) is not dict:
            outer[host] = {}
        outer[host][inner] = value
        return document

    return plunge


def _set(path: Path, value: Any) -> Step:
    *above, name = path
    parent = tuple(above)
    if not parent and not isinstance(value, dict | list):

        def set_member(document: Any) -> Any:
            document[name] = value
            return document

        return set_member

    def set_below(document: Any) -> Any:
        # A mutable default is copied for each entry; otherwise a later op would change it for all of them.
        _at(document, parent)[name] = fresh(value)
        return document

    return set_below


def _drop(path: Path) -> Step:
    *above, name = path
    parent = tuple(above)

    def drop(document: Any) -> Any:
        _at(document, parent).pop(name, None)
        return document

    return drop


def _change(path: Path, change: Callable[[Any], Any]) -> Step:
    if not path:
        return change
    *above, name = path
    parent = tuple(above)

    def change_member(document: Any) -> Any:
        holder = _at(document, parent)
        holder[name] = change(holder[name])
        return document

    return change_member


def _inside(path: Path, steps: tuple[Step, ...]) -> Step:
    return _change(path, lambda value: run(steps, value))


def _each(path: Path, steps: tuple[Step, ...]) -> Step:
    if len(steps) == 1:
        only = steps[0]
        return _change(path, lambda elements: [only(element) for element in elements])
    return _change(path, lambda elements: [run(steps, element) for element in elements])
