"""The declared fields of hits, read out of stored text.

A hit shows a few members of its entry. So the fields of a description are compiled to a type of their own, and reading
an entry as one makes nothing of its other members and no dictionary. What such a type cannot say is read in the
general way (`topics.indexing.extraction.declared_fields`): a description that points into itself twice, or an entry
that has something else where a pointer goes through an object. Both show the same.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from topics.core.memo import Memo
from topics.indexing.extraction import declared_fields, pointer_of
from topics.schema.documents import parse
from topics.schema.registry import Registry
from topics.schema.search import SearchConfig

_KNOWN: Final = 256
"""Descriptions whose types are remembered."""

Tree = dict[str, Any]
"""By tokens of pointers: another tree, or the name of the attribute that stands for a member."""


class _Compiled(NamedTuple):
    read: Callable[[bytes], Any]
    """Raises ValueError where the entry is of another shape."""
    show: Callable[[Any], Any] | None
    """From what was read to what is shown; None where that is the same."""
    values: Callable[[Any], tuple[Any, ...]]
    """The values of all fields, in the order of `names`; UNSET for one that is not there."""
    names: tuple[str, ...]


class HitFields:
    """How the entries of one description are shown."""

    def __init__(self, config: SearchConfig, version: int) -> None:
        self._find = declared_fields(config, version)
        self._compiled = _compile(config, version)

    def of(self, raws: Sequence[bytes], wanted: tuple[str, ...] | None = None) -> list[Any]:
        """What is shown of entries, each as something that JSON can be made of: all their declared fields, or those
        that are wanted, in the order in which they are."""
        compiled = self._compiled
        if compiled is None:
            return [self._general(raw, wanted) for raw in raws]
        try:
            found = list(map(compiled.read, raws))
        except ValueError:
            return [self._one(compiled, raw, wanted) for raw in raws]
        if wanted is not None:
            return [_chosen(compiled, entry, wanted) for entry in found]
        return found if compiled.show is None else list(map(compiled.show, found))

    def _one(self, compiled: _Compiled, raw: bytes, wanted: tuple[str, ...] | None) -> Any:
        try:
            found = compiled.read(raw)
        except ValueError:
            return self._general(raw, wanted)
        if wanted is not None:
            return _chosen(compiled, found, wanted)
        return found if compiled.show is None else compiled.show(found)

    def _general(self, raw: bytes, wanted: tuple[str, ...] | None) -> dict[str, object]:
        fields = self._find(parse("entry", raw))
        return fields if wanted is None else {name: fields[name] for name in wanted if name in fields}


def _chosen(compiled: _Compiled, entry: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    values = dict(zip(compiled.names, compiled.values(entry), strict=True))
    return {name: value for name in wanted if (value := values.get(name, UNSET)) is not UNSET}


_memo: Memo[tuple[bytes | None, int], HitFields] = Memo(_KNOWN)


def hit_fields_of(registry: Registry) -> HitFields:
    """How the entries of a stream are shown now."""

    def make() -> HitFields:
        config = registry.search_config
        assert config is not None
        return HitFields(config, registry.current_version)

    return _memo.get((registry.search, registry.current_version), make)


def _compile(config: SearchConfig, version: int) -> _Compiled | None:
    """The type of a description; None where no type can say it."""
    tree: Tree = {}
    paths: list[str] = []
    names: list[str] = []
    for name, field in config.fields.items():
        pointer = pointer_of(field, version)
        if pointer is None:
            continue
        path = _add(tree, pointer, len(names))
        if path is None:
            return None
        names.append(name)
        paths.append(path)
    if not names:
        return None
    entry = _type_of(tree)
    read = msgspec.json.Decoder(entry).decode
    get = attrgetter(*paths)
    values = get if len(paths) > 1 else lambda found: (get(found),)
    if list(tree) == names and not any(type(below) is dict for below in tree.values()):
        return _Compiled(read, None, values, tuple(names))
    shown = _type_of({name: f"f{number}" for number, name in enumerate(names)})
    return _Compiled(read, lambda found: shown(*values(found)), values, tuple(names))


def _add(tree: Tree, pointer: tuple[str, ...], number: int) -> str | None:
    """Puts a pointer into a tree; how its value is reached, or None where there is no way: it is the whole entry, or
    another one goes to the same place or through it."""
    if not pointer:
        return None
    path = []
    for token in pointer[:-1]:
        below = tree.setdefault(token, {})
        if type(below) is not dict:
            return None
        path.append(f"n{list(tree).index(token)}")
        tree = below
    if pointer[-1] in tree:
        return None
    tree[pointer[-1]] = f"f{number}"
    return ".".join([*path, f"f{number}"])


def _type_of(tree: Tree) -> type[msgspec.Struct]:
    """A type whose members are those of a tree, in its order. Its attributes have names of our own, because those of
    members are whatever their writers wanted."""
    fields: list[Any] = []
    rename: dict[str, str] = {}
    for place, (token, below) in enumerate(tree.items()):
        attribute = f"n{place}" if type(below) is dict else below
        rename[attribute] = token
        if type(below) is dict:
            nested = _type_of(below)
            # Where the object is missing, everything in it is.
            fields.append((attribute, nested, nested()))
        else:
            fields.append((attribute, Any, UNSET))
    return msgspec.defstruct("Shown", fields, rename=rename, frozen=True, gc=False)
