"""How far companions cover streams, and which families of indexes an answer made use of."""

from collections.abc import Callable

from topics.core.ranges import Ranges, covers, union
from topics.engine.topic import Topic
from topics.indexing.predicates import Contains, Equals, HasPhrase, HasWords, Predicate, StartsWith, Within, walk
from topics.schema.contract import encode_contract
from topics.schema.search import SearchConfig
from topics.storage.companions import FamilyManifest
from topics.streams.contracts import contract_of
from topics.streams.search.companions import Companions, plan_for
from topics.streams.search.coverage import Coverage, Family, HeldUp, Manifest, NothingIndexed


def families_of(predicate: Predicate, sorted_by: tuple[str, ...], config: SearchConfig) -> list[str]:
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


class FamilyCoverage(NothingIndexed):
    """Implements `IndexCoverage`. All families are in the same companions, so they cover the same."""

    def __init__(self, companions: Companions) -> None:
        self._companions = companions
        self.ask_held_up: Callable[[Topic], HeldUp | None] = lambda topic: None
        """Told by whoever knows how the pipeline stands."""

    def held_up(self, topic: Topic) -> HeldUp | None:
        return self.ask_held_up(topic)

    def generation(self, topic: Topic) -> int:
        manifest = self._companions.manifest(topic)
        return super().generation(topic) if manifest is None else manifest.generations

    def manifest(self, topic: Topic) -> Manifest:
        manifest = self._companions.manifest(topic)
        if manifest is None:
            return super().manifest(topic)
        etag = f"{manifest.generation[:8]}-{manifest.number}"
        return Manifest(generation=manifest.number, published_ms=manifest.updated_ms, etag=etag)

    def of(self, topic: Topic, family: Family, field: str = "") -> Coverage:
        manifest = self._companions.manifest(topic)
        if manifest is None:
            return super().of(topic, family, field)
        return _covered(topic, manifest)


def _covered(topic: Topic, manifest: FamilyManifest) -> Coverage:
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


def _all_ranges(manifest: FamilyManifest) -> Ranges:
    return union([(file.first, file.last) for file in manifest.files])
