"""Large schemas, taken a bit at a time.

The validator compiles a schema in one go, and one of thousands of members takes it tens of milliseconds. Whether a
schema can be compiled at all is found out in pieces: it can exactly when each of them can.
"""

from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that yields wherever others may have their turn."""

MAPS: Final = frozenset(
    ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies", "dependentRequired")
)
"""Keywords whose members have names of the writer's choice."""
_PIECE_NODES: Final = 1_000
"""About how many values a piece has: it is compiled in a millisecond."""
_DEPTH_MAX: Final = 3
"""How deep a schema is taken apart. Each level is counted once more, and large ones are wide."""


def in_one_go(steps: Steps[T]) -> T:
    """Does all of it, for whoever keeps nobody waiting."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: T = end.value
            return done


def pieces_of(schema: dict[str, Any], depth: int = _DEPTH_MAX) -> Iterator[dict[str, Any]]:
    """Schemas that are all right exactly where this one is. What is wrong with one has the place that it has here."""
    rest = dict(schema)
    for keyword, members in schema.items():
        if keyword in MAPS and isinstance(members, dict):
            kept: dict[str, Any] = {}
            size = 0
            for name, below in members.items():
                nodes = _nodes_in(below)
                if nodes > _PIECE_NODES and depth and isinstance(below, dict):
                    yield from ({keyword: {name: piece}} for piece in pieces_of(below, depth - 1))
                    continue
                kept[name] = below
                size += nodes
                if size >= _PIECE_NODES:
                    yield {keyword: kept}
                    kept, size = {}, 0
            rest[keyword] = kept
    yield rest


def _nodes_in(value: object) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum([_nodes_in(below) for below in value.values() if isinstance(below, dict | list)])
    if isinstance(value, list):
        return 1 + len(value) + sum([_nodes_in(below) for below in value if isinstance(below, dict | list)])
    return 1
