"""Which companions a query is asked of: those that the manifest of its stream names and that have all it needs.

The manifest is looked at again when it may have changed. A companion that turns out not to be readable is left alone
from then on, and what it would have answered for is scanned. One in an object store is asked once it was fetched
(`streams.search.cached`); while it cannot be, it is left alone for a moment.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from topics.core.memo import Memo
from topics.core.ranges import Ranges, covers, difference, union
from topics.engine.streams.description import Description
from topics.engine.topic import Topic
from topics.indexing.companions.identity import Needs, Plan, needs_of_aggregation, needs_of_search, plan_of
from topics.indexing.ranking import terms_of
from topics.indexing.sorting import parse_sort
from topics.schema.contract import decode_contract
from topics.searching.known import LONGEST_KNOWN, known_aggregation, known_search
from topics.searching.messages import AggregateQuery, CountQuery, KeysQuery, Query, SearchQuery
from topics.storage.companions import CompanionFile, FamilyManifest, FamilyStore
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.places import is_object_store
from topics.streams.search.cached import CompanionCache, Fetched, Remote
from topics.streams.search.packing import chain_of

LOOK_AGAIN_S = 1.0
"""How old what is known of a manifest may be."""
RETRY_S = 5.0
"""So long a companion is left alone that could not be fetched."""
_KNOWN_MAX = 10_000
_CHOICES = 64
"""Choices that are remembered of a stream."""
_TIDY_EVERY_S = 30.0
_TIDIED_AT_A_TIME = 20

_log = logging.getLogger(__name__)


class IndexedStretch(NamedTuple):
    """Seqs that a companion answers for."""

    first: int
    last: int
    path: str
    topic_id: int = 0
    remote: Remote | None = None
    """Where it is fetched from, to that path; None where it is there already."""


class _Known(NamedTuple):
    looked: float
    manifest: FamilyManifest | None
    chosen: Memo[tuple[bytes, str, tuple[str, ...], int, int], tuple[IndexedStretch, ...]]
    """What was chosen by it, by all that a choice follows from besides. Those that have to be fetched are chosen anew
    each time, because whether they can be is a matter of time."""


class Companions:
    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        now: Callable[[], float],
        cache: CompanionCache | None = None,
        let_go: Callable[[str], None] = lambda path: None,
    ) -> None:
        """The `cache` is for those in an object store; `let_go` is told of paths that are not asked again."""
        self._store = FamilyStore(fs, layout)
        self._cold_root = layout.cold_root
        self._now = now
        self.cache = cache
        self._let_go = let_go
        self._known: dict[int, _Known] = {}
        self._distrusted: set[str] = set()
        self._not_before: dict[str, float] = {}
        """When those are tried again that could not be fetched."""
        self._too_large: set[str] = set()
        self._asked: dict[int, set[str]] = {}
        """The paths that were asked or fetched, by topic."""
        self._untidied: list[int] = []
        self._tidy_at = now()
        self.unreadable = 0
        """How often a companion could not be read."""

    def manifest(self, topic: Topic) -> FamilyManifest | None:
        """The manifest of a stream, as it was a moment ago; None where there is none."""
        return self._look(topic).manifest

    def _look(self, topic: Topic) -> _Known:
        known = self._known.get(topic.id)
        if known is None or self._now() - known.looked >= LOOK_AGAIN_S:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[topic.id] = _Known(self._now(), self._load(topic), Memo(_CHOICES))
        return known

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
        # With what was chosen.
        self.forget()

    # Those that have to be fetched

    def is_near(self, part: IndexedStretch) -> bool:
        """Whether it can be asked at once."""
        return part.remote is None or (self.cache is not None and part.path in self.cache)

    def fetch(self, topic: Topic, part: IndexedStretch, done: Callable[[], None]) -> None:
        """Has a companion fetched. It is near when that is `done`, or it is not chosen for a while."""
        assert self.cache is not None and part.remote is not None

        def fetched(outcome: Fetched) -> None:
            if outcome is Fetched.DAMAGED:
                self.distrust(topic, part.path, "it is not in the cold tier, or not what was put there")
            elif outcome is not Fetched.OK:
                self._not_before[part.path] = self._now() + RETRY_S
            done()

        self._note(part)
        self.cache.fetch(part.path, part.remote, fetched)

    def begin(self, part: IndexedStretch) -> None:
        """Somebody asks a companion that is near; it stays there until the `end` of that."""
        self._note(part)
        if self.cache is not None and part.remote is not None:
            self.cache.use(part.path)

    def end(self, part: IndexedStretch) -> None:
        if self.cache is not None and part.remote is not None:
            self.cache.unused(part.path)

    def _note(self, part: IndexedStretch) -> None:
        self._asked.setdefault(part.topic_id, set()).add(part.path)

    def tidy(self) -> None:
        """Lets go of a few that were asked and that no manifest names any more. They would keep their room on the disk
        for as long as they are mapped, and what was erased would live on in a copy."""
        if not self._untidied and self._now() >= self._tidy_at:
            self._tidy_at = self._now() + _TIDY_EVERY_S
            self._untidied = list(self._asked)
        for topic_id in self._untidied[:_TIDIED_AT_A_TIME]:
            self._tidy(topic_id)
        del self._untidied[:_TIDIED_AT_A_TIME]

    def _tidy(self, topic_id: int) -> None:
        try:
            manifest = self._store.load(topic_id)
        except OSError:
            return
        named = set() if manifest is None else {self._path(topic_id, file) for file in manifest.files}
        paths = self._asked.pop(topic_id, set())
        left = {path for path in paths if path in named or not self._forgets(path)}
        if left:
            self._asked[topic_id] = left

    def _forgets(self, path: str) -> bool:
        """Whether nobody is at a path; then it is let go of."""
        if self.cache is not None and not self.cache.drop(path):
            return False
        self._let_go(path)
        self._not_before.pop(path, None)
        return True

    def _path(self, topic_id: int, file: CompanionFile) -> str:
        if file.cold and self.cache is not None:
            return self.cache.path(topic_id, file.name)
        return self._store.path(topic_id, file.name, file.cold)

    def _remote(self, topic_id: int, file: CompanionFile) -> Remote | None:
        if not file.cold or self.cache is None:
            return None
        return Remote(self._store.path(topic_id, file.name, cold=True), file.bytes, file.digest)

    def _can_be_asked(self, path: str, file: CompanionFile) -> bool:
        if path in self._distrusted:
            return False
        if not file.cold:
            return True
        if self.cache is None:
            return self._cold_root is not None and not is_object_store(self._cold_root)
        if file.bytes > self.cache.bytes_max:
            if path not in self._too_large:
                self._too_large.add(path)
                _log.warning("a companion is larger than the cache for it; it is not asked", extra={"path": path})
            return False
        return self._now() >= self._not_before.get(path, 0.0)

    # Choosing

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
                if self._path(topic.id, file) not in self._distrusted
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
    ) -> Sequence[IndexedStretch]:
        """The companions that answer a query about a range, in the order of their seqs; they have no seq in common."""
        known = self._look(topic)
        if not isinstance(query, SearchQuery) or query.after is not None:
            # A page that goes on somewhere is asked for once.
            return self._choose(topic, description, query, first, last)
        if len(query.q) + sum(map(len, query.sort)) > LONGEST_KNOWN:
            return self._choose(topic, description, query, first, last)
        if topic.origin is not None or known.manifest is None or any([file.cold for file in known.manifest.files]):
            return self._choose(topic, description, query, first, last)
        key = description.raw, query.q, query.sort, first, last
        return known.chosen.get(key, lambda: tuple(self._choose(topic, description, query, first, last)))

    def _choose(
        self, topic: Topic, description: Description, query: Query, first: int, last: int
    ) -> list[IndexedStretch]:
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
        return sorted(found, key=lambda part: part.first)

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
                path = self._path(topic.id, file)
                part = (max(file.first, first), min(file.last, last))
                if part[0] > part[1] or not self._can_be_asked(path, file):
                    continue
                left, remote = difference([part], covered), self._remote(topic.id, file)
                found += [IndexedStretch(begin, end, path, topic.id, remote) for begin, end in left]
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
        return needs_of_aggregation(plan, known_aggregation(query.body, registry))
    bound = known_search(query.q, registry)
    if isinstance(query, CountQuery):
        return Needs({term.field: plan.fields[term.field] for term in terms_of(bound.predicate)})
    return needs_of_search(plan, bound.predicate, parse_sort(query.sort, config, bound.has_text).fields)
