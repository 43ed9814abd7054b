"""Which companions a query is asked of: those that the manifest of its stream names and that have all it needs.

The manifest is looked at again when it may have changed. A companion that turns out not to be readable is left alone
from then on, and what it would have answered for is scanned.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from topics.core.ranges import Ranges, covers, difference, union
from topics.engine.streams.description import Description
from topics.engine.topic import Topic
from topics.indexing.aggregation import parse_aggregation
from topics.indexing.companions.identity import Needs, Plan, needs_of_aggregation, needs_of_search, plan_of
from topics.indexing.predicates import bind_search
from topics.indexing.ranking import terms_of
from topics.indexing.sorting import parse_sort
from topics.schema.contract import decode_contract
from topics.searching.messages import AggregateQuery, CountQuery, KeysQuery, Query
from topics.storage.companions import FamilyManifest, FamilyStore
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.streams.search.packing import chain_of

LOOK_AGAIN_S = 1.0
"""How old what is known of a manifest may be."""
_KNOWN_MAX = 10_000

_log = logging.getLogger(__name__)


class IndexedStretch(NamedTuple):
    """Seqs that a companion answers for."""

    first: int
    last: int
    path: str


class _Known(NamedTuple):
    looked: float
    manifest: FamilyManifest | None


class Companions:
    def __init__(self, fs: FileSystem, layout: Layout, now: Callable[[], float]) -> None:
        self._store = FamilyStore(fs, layout)
        self._now = now
        self._known: dict[int, _Known] = {}
        self._distrusted: set[str] = set()
        self.unreadable = 0
        """How often a companion could not be read."""

    def manifest(self, topic: Topic) -> FamilyManifest | None:
        """The manifest of a stream, as it was a moment ago; None where there is none."""
        known = self._known.get(topic.id)
        if known is None or self._now() - known.looked >= LOOK_AGAIN_S:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[topic.id] = _Known(self._now(), self._load(topic))
        return known.manifest

    def _load(self, topic: Topic) -> FamilyManifest | None:
        try:
            manifest = self._store.load(topic.id)
        except OSError as error:
            _log.warning("a manifest cannot be read", extra={"topic": topic.name, "error": str(error)})
            return None
        return manifest if manifest is not None and manifest.epoch == topic.epoch else None

    def forget(self) -> None:
        """Looks at every manifest again."""
        self._known.clear()

    def distrust(self, topic: Topic, path: str, problem: str) -> None:
        """Notes that a companion cannot be read; it is not asked again."""
        self.unreadable += 1
        if path not in self._distrusted:
            _log.error("a companion cannot be read; it is not asked", extra={"topic": topic.name, "error": problem})
        self._distrusted.add(path)

    def covered_through(self, topic: Topic, description: Description) -> int:
        """Up to which seq all that is sealed has companions for any query that there is."""
        manifest = self.manifest(topic)
        generation = plan_for(description.raw).generation if manifest is not None else ""
        if manifest is None or generation not in manifest.plans:
            return 0
        covered = union(
            [
                (file.first, file.last)
                for file in manifest.of(generation)
                if self._store.path(topic.id, file.name) not in self._distrusted
            ]
        )
        through = 0
        for segment in topic.segments:
            if not covers(covered, max(segment.first_seq, topic.earliest), segment.last_seq):
                break
            through = segment.last_seq
        return through

    def choose(
        self, topic: Topic, description: Description, query: Query, first: int, last: int
    ) -> list[IndexedStretch]:
        """The companions that answer a query about a range, in the order of their seqs; they have no seq in common."""
        if not self._has_any(topic):
            return []
        plan = plan_for(description.raw)
        return self.fitting(topic, plan, needs_of(plan, description, query), first, last)

    def _has_any(self, topic: Topic) -> bool:
        manifests = [self.manifest(part) for part, _, _ in chain_of(topic)]
        return any(manifest is not None and manifest.files for manifest in manifests)

    def fitting(self, topic: Topic, plan: Plan, needs: Needs, first: int, last: int) -> list[IndexedStretch]:
        """The companions that have what is needed of a range. What a fork inherits, those of its source answer for:
        the digests say whether it is read alike in both."""
        found: list[IndexedStretch] = []
        for part, begin, end in chain_of(topic):
            found += self._of_one(part, plan.generation, needs, max(begin, first), min(end, last))
        return sorted(found)

    def _of_one(self, topic: Topic, current: str, needs: Needs, first: int, last: int) -> list[IndexedStretch]:
        manifest = self.manifest(topic) if first <= last else None
        if manifest is None or not manifest.files:
            return []
        # Those of the plan that holds now first: others only fill what these do not have.
        fitting = [name for name, other in manifest.plans.items() if needs.are_met(other)]
        covered: Ranges = []
        found: list[IndexedStretch] = []
        for generation in sorted(fitting, key=lambda name: name != current):
            for file in manifest.of(generation):
                path = self._store.path(topic.id, file.name)
                part = (max(file.first, first), min(file.last, last))
                if part[0] > part[1] or path in self._distrusted:
                    continue
                left = difference([part], covered)
                found += [IndexedStretch(begin, end, path) for begin, end in left]
                covered = union(covered, left)
        return found


@lru_cache(maxsize=1024)
def plan_for(contract: bytes) -> Plan:
    return plan_of(decode_contract(contract).registry)


def needs_of(plan: Plan, description: Description, query: Query) -> Needs:
    if isinstance(query, KeysQuery):
        return Needs()
    registry = description.contract.registry
    config = registry.search_config
    assert config is not None
    if isinstance(query, AggregateQuery):
        return needs_of_aggregation(plan, parse_aggregation(query.body, config, registry.current_version))
    bound = bind_search(query.q, config)
    if isinstance(query, CountQuery):
        return Needs({term.field: plan.fields[term.field] for term in terms_of(bound.predicate)})
    return needs_of_search(plan, bound.predicate, parse_sort(query.sort, config, bound.has_text).fields)
