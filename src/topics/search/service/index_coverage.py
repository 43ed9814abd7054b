"""Index coverage: how far index files cover a stream, by index type (also known as: family).

A server without indexes on the disk answers with `NothingIndexed`. A builder of indexes implements `IndexCoverage`,
which `Streams` takes as an argument, and calls `scheduler.add(topic)` when its answer for a topic has changed, so that
those who wait for news of its status are told.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from topics.engine.topic import Topic
from topics.model.seq_ranges import Ranges, covers, union
from topics.schema.contract import encode_contract
from topics.schema.search_fields import SearchConfig
from topics.search.file_index.manifest import IndexManifest
from topics.search.query.predicates import Contains, Equals, HasPhrase, HasWords, Predicate, StartsWith, Within, walk
from topics.search.service.index_file_cache import IndexFiles, plan_for
from topics.streams.contracts import contract_of

IndexType = Literal["routing", "lexicon", "exact", "companions", "col", "fts", "agg", "mblk"]
"""`companions` are the objects that hold col, fts, agg and mblk together."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one index type covers of a stream's sealed segments, by the description that holds now."""

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

    def of(self, topic: Topic, index_type: IndexType, field: str = "") -> Coverage:
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

    def of(self, topic: Topic, index_type: IndexType, field: str = "") -> Coverage:
        return _NOTHING

    def held_up(self, topic: Topic) -> HeldUp | None:
        return None


_NOTHING = Coverage()
_NO_MANIFEST = Manifest()


# How far index files cover streams, and which index types an answer made use of.


def index_types_of(predicate: Predicate, sorted_by: tuple[str, ...], config: SearchConfig) -> list[str]:
    """The families that a query looks into, by the names that they have for callers."""
    found: set[str] = {"col"} if sorted_by else set()
    for part in walk(predicate):
        if isinstance(part, HasWords | HasPhrase | StartsWith | Contains):
            found.add("fts")
        elif isinstance(part, Equals):
            found.add("exact" if config.fields[part.field].exact else "col")
        elif isinstance(part, Within):
            found.add("col")
    return sorted(found)


class IndexFileCoverage(NothingIndexed):
    """Implements `IndexCoverage`. All families are in the same index files, so they cover the same."""

    def __init__(self, index_files: IndexFiles, held_up: Callable[[Topic], HeldUp | None] = lambda topic: None) -> None:
        """`held_up` asks the pipeline why indexing of a stream does not go on."""
        self._index_files = index_files
        self._held_up = held_up

    def held_up(self, topic: Topic) -> HeldUp | None:
        return self._held_up(topic)

    def generation(self, topic: Topic) -> int:
        manifest = self._index_files.manifest(topic)
        return super().generation(topic) if manifest is None else manifest.generations

    def manifest(self, topic: Topic) -> Manifest:
        manifest = self._index_files.manifest(topic)
        if manifest is None:
            return super().manifest(topic)
        etag = f"{manifest.generation[:8]}-{manifest.number}"
        return Manifest(generation=manifest.number, published_ms=manifest.updated_ms, etag=etag)

    def of(self, topic: Topic, index_type: IndexType, field: str = "") -> Coverage:
        manifest = self._index_files.manifest(topic)
        if manifest is None:
            return super().of(topic, index_type, field)
        return _covered(topic, manifest)


def _covered(topic: Topic, manifest: IndexManifest) -> Coverage:
    current = plan_for(encode_contract(contract_of(topic))).generation
    files = manifest.of(current)
    here, anywhere = manifest.covered(current), _all_ranges(manifest)
    spans = [(max(segment.first_seq, topic.earliest), segment.last_seq) for segment in topic.segments]
    indexed = [covers(here, first, last) for first, last in spans]
    contiguous = indexed.index(False) if False in indexed else len(indexed)
    stale = [covers(anywhere, *span) and not is_indexed for span, is_indexed in zip(spans, indexed, strict=True)]
    return Coverage(
        segments=sum(indexed),
        contiguous=contiguous,
        stale=sum(stale),
        through_ms=max((file.last_ts for file in files), default=None),
        bytes=sum(file.bytes for file in files),
        cold_bytes=sum(file.bytes for file in files if file.cold),
        objects=len(files),
        runs=len(files),
        retired_runs=len(manifest.retired),
        updated_ms=manifest.updated_ms,
    )


def _all_ranges(manifest: IndexManifest) -> Ranges:
    return union([(file.first, file.last) for file in manifest.files])
