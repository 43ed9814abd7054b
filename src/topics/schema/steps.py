"""Lenses as functions: one small function an op, which changes the document in place and returns it.

A lens is compiled once and run for every entry. The ops at the top of a document, nearly all there are, have functions
of their own without a loop over the path.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from topics.schema.conversions import conversion
from topics.schema.documents import fresh
from topics.schema.lenses import Add, Convert, Copy, Head, Hoist, In, Map, Op, Plunge, Remove, Rename, Wrap
from topics.schema.pointers import parse_pointer

Step = Callable[[Any], Any]
Path = tuple[str, ...]

_BUILTIN_GROWTH = 64
"""1e308 is five bytes, and 309 as the text of an integer."""


def compile_ops(ops: Sequence[Op]) -> tuple[Step, ...]:
    """The steps of ops whose defaults are all given (`topics.schema.proofs.settled`)."""
    return tuple(map(_compile, ops))


def run(steps: Sequence[Step], document: Any) -> Any:
    for step in steps:
        document = step(document)
    return document


def growth(ops: Sequence[Op]) -> tuple[int, int]:
    """A bound for the text of what the ops make of a document: that many times its own text, plus that many bytes.

    An op adds to a document, or to each element of an array, at most its own text: names, defaults and values of tables
    all stand in it. An element has at least two bytes, its comma included.
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
    raise AssertionError(f"an op that nobody knows: {op}")


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
        # A default that can change is made anew for each entry, or a later op would change it for all of them.
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
