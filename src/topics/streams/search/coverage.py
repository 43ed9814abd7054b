"""How far indexes on the disk cover a stream, as inspection tells it: the one place to ask.

A server without indexes on the disk answers with `NothingIndexed`. Whoever builds some implements `IndexCoverage`, sets
it as `Streams.coverage`, and calls `core.wake(topic)` when what it would answer for a topic has changed, so that those
who wait for news of its status are told.
"""

from typing import Literal, Protocol

import msgspec

from topics.engine.topic import Topic
from topics.streams.contracts import contract_of

Family = Literal["routing", "lexicon", "exact", "companions", "col", "fts", "agg", "mblk"]
"""`companions` are the objects that hold col, fts, agg and mblk together."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one family of indexes covers of a stream's sealed segments, by the description that holds now."""

    segments: int = 0
    contiguous: int = 0
    """How many from the first one on, without a gap."""
    stale: int = 0
    """Segments that it covers by an earlier description only."""
    through_ms: int | None = None
    """When the last entry that it covers was appended; None where it covers none."""
    bytes: int = 0
    cold_bytes: int = 0
    """What of these is in the cold tier."""
    objects: int = 0
    runs: int = 0
    retired_runs: int = 0
    updated_ms: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The list of a stream's indexes that was published last."""

    generation: int = 0
    published_ms: int | None = None
    etag: str | None = None
    bytes: int | None = None


class HeldUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why nothing more is indexed of a stream."""

    reason: str
    install: str | None = None
    """What to run, if something has to be installed."""
    since_ms: int | None = None
    attempts: int = 0
    retry_at_ms: int | None = None
    """When it is tried again."""


class IndexCoverage(Protocol):
    def generation(self, topic: Topic) -> int:
        """Counts what was to be indexed so far, from 1 on; 0 where nothing is."""
        ...

    def manifest(self, topic: Topic) -> Manifest: ...

    def of(self, topic: Topic, family: Family, field: str = "") -> Coverage:
        """What a family covers; `exact` has one for each field."""
        ...

    def held_up(self, topic: Topic) -> HeldUp | None:
        """Why indexing does not go on; None where it does, or where there is nothing to index."""
        ...


class NothingIndexed:
    """There are no indexes on the disk: every query is answered from the entries themselves."""

    def generation(self, topic: Topic) -> int:
        return int(contract_of(topic).registry.search_config is not None)

    def manifest(self, topic: Topic) -> Manifest:
        return _NO_MANIFEST

    def of(self, topic: Topic, family: Family, field: str = "") -> Coverage:
        return _NOTHING

    def held_up(self, topic: Topic) -> HeldUp | None:
        return None


_NOTHING = Coverage()
_NO_MANIFEST = Manifest()
