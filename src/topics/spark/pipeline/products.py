"""The frame that products fit into.

A product is something made of sealed segments: the archive is one, index families are others. It is two halves. The
first lives where the round runs: it compares the catalog with what it has published, hands out pieces of work, and
publishes what became of them in one step of its own. The second, `perform`, runs in Spark's tasks and turns a piece
into an outcome. Pieces and outcomes are bytes, so nothing of the first half travels.
"""

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from topics.formats.catalog import Catalog
from topics.spark.archive.tasks import Failure
from topics.spark.backlog import Backlog
from topics.storage.fs import FileSystem


class Gain(msgspec.Struct):
    """What a round brought for a product."""

    records: int = 0
    bytes: int = 0
    segments: int = 0
    failures: list[Failure] = []


class Product(Protocol):
    name: str

    def plan(self, catalog: Catalog, now_ms: int, shut_out: Collection[int]) -> list[bytes]:
        """Settles what needs no job, and hands out the pieces of work; none when everything is done."""
        ...

    def split(self, work: bytes) -> list[tuple[int, str, bytes]]:
        """A piece as pieces of one topic each, with its number and name: how a culprit is found."""
        ...

    def commit(self, outcomes: list[bytes], now_ms: int) -> Gain:
        """Publishes. Repeated after a crash, plan and commit come to the same end."""
        ...

    def backlog(self) -> Backlog:
        """How far it is behind the catalog of the last plan, now."""
        ...

    def due_ms(self) -> int | None:
        """When it has something to do, even if the catalog stays as it is; None when it has not."""
        ...

    def finish(self, catalog: Catalog) -> None:
        """The round is over and everything of it is published."""
        ...


Perform = Callable[[FileSystem, bytes], bytes]


class Piece(msgspec.Struct, frozen=True):
    """Work for one task: the name of the product that knows what it means."""

    product: str
    work: bytes
