"""Index file selection and the local cache of index files (also known as: companions) from an object store. A query
uses the index files in the manifest of its stream that have all fields it needs.

The manifest is read again when it may have changed. An unreadable index file is not used any more, and its range is
scanned instead. A file in an object store is used after it was fetched; after a failed fetch it is not used for some
seconds.

Index coverage: how far index files cover a stream, by index type (also known as: family).

A server without index files uses `NothingIndexed`. A builder of index files implements `IndexCoverage`, which `Streams`
takes as an argument, and calls `scheduler.add(topic)` when its answer for a topic changes, so that waiting clients get
the new status.
"""

import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache, partial
from typing import Literal, NamedTuple, Protocol

import msgspec

from topics.engine.background_jobs import Job, JobRunner, OffLoop
from topics.engine.read import chain_of
from topics.engine.topic import Topic
from topics.log.fs import FileSystem
from topics.log.layout import Layout, is_object_store
from topics.model.bounded_cache import Memo
from topics.model.seq_ranges import Ranges, covers, difference, union
from topics.schema.contract import decode_contract, encode_contract
from topics.schema.search_fields import Field, SearchConfig
from topics.search.file_index.file_format import (
    IndexFileDamagedError,
    IndexNeeds,
    IndexPlan,
    SectionFile,
    needs_of_aggregation,
    needs_of_search,
    plan_of,
)
from topics.search.file_index.manifest import (
    CopyDamagedError,
    CopyStoppedError,
    IndexFileEntry,
    IndexManifest,
    IndexStore,
    fetch,
)
from topics.search.query.plan import LONGEST_KNOWN, known_aggregation, known_search
from topics.search.query.predicates import Contains, Equals, HasPhrase, HasWords, Predicate, StartsWith, Within, walk
from topics.search.query.score import terms_of
from topics.search.query.sort import parse_sort
from topics.search.worker.messages import AggregateQuery, CountQuery, KeysQuery, Query, SearchQuery
from topics.streams.chunked_validation import Description
from topics.streams.stream_state import contract_of

# Local cache of index files of an object store: files are fetched whole, on demand, within a bound.
#
#     near/families/<16 hex digits>/<name>.companion
#
# A thread fetches one file at a time, after the least recently used files that no query uses have been evicted to make
# room. The search process maps the files that it searches, so it is notified of evictions. A start empties the folder,
# so the cache needs no crash safety and is never damaged. The same thread removes files, because removing some
# gigabytes takes time, too.

_TMP = ".tmp"

_log = logging.getLogger(__name__)


class Fetched(StrEnum):
    """The outcome of a request for an index file."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    """The store or the local disk failed; a later query may succeed."""
    DAMAGED = "damaged"
    """The file is not in the store, or differs from the stored one."""
    NO_ROOM = "no_room"
    """All cached files are in use by queries."""


class Remote(NamedTuple):
    """An index file in an object store."""

    path: str
    bytes: int
    digest: int | None


FetchDone = Callable[[Fetched], None]


class IndexFileCache:
    def __init__(
        self, fs: FileSystem, layout: Layout, bytes_max: int, runner: JobRunner, let_go: Callable[[str], None]
    ) -> None:
        """`let_go` is called with paths that are about to be removed."""
        self._fs = fs
        self._folder = layout.near_families
        self.bytes_max = bytes_max
        self._runner = runner
        self._let_go = let_go
        self._here: OrderedDict[str, int] = OrderedDict()
        """Sizes by path, least recently used first."""
        self._uses: Counter[str] = Counter()
        self._waiting: dict[str, list[FetchDone]] = {}
        """Callers that wait for index files in transfer."""
        self.bytes = 0
        """Bytes of cached files and of files in transfer."""
        self.outcomes = dict.fromkeys(Fetched, 0)
        self._is_closed = False
        runner.start(_in_the_background(self._empty))

    def path(self, topic_id: int, name: str) -> str:
        return f"{self._folder}/{topic_id:016x}/{name}"

    def __contains__(self, path: str) -> bool:
        return path in self._here

    # Fetch

    def fetch(self, path: str, remote: Remote, done: FetchDone) -> None:
        """Fetches an index file to its path, unless it is cached. `done` is called once, on the loop."""
        if path in self._here:
            done(Fetched.OK)
        elif self._is_closed:
            done(Fetched.UNAVAILABLE)
        elif path in self._waiting:
            self._waiting[path].append(done)
        elif not self._make_room(remote.bytes):
            self.outcomes[Fetched.NO_ROOM] += 1
            done(Fetched.NO_ROOM)
        else:
            # The removal of evicted files was queued before, so their space is free by then.
            self.bytes += remote.bytes
            self._waiting[path] = [done]
            self._runner.start(self._job(path, remote))

    def _job(self, path: str, remote: Remote) -> Job:
        outcome = Fetched.OK
        try:
            yield OffLoop(partial(self._copy, path, remote))
        except (FileNotFoundError, CopyDamagedError) as error:
            outcome = self._failed(Fetched.DAMAGED, remote, error)
        except (OSError, CopyStoppedError) as error:
            outcome = self._failed(Fetched.UNAVAILABLE, remote, error)
        self.outcomes[outcome] += 1
        if outcome is Fetched.OK:
            self._here[path] = remote.bytes
        else:
            self.bytes -= remote.bytes
        for done in self._waiting.pop(path):
            done(outcome)

    def _failed(self, outcome: Fetched, remote: Remote, error: Exception) -> Fetched:
        _log.warning("index file cannot be fetched", extra={"path": remote.path, "error": str(error)})
        return outcome

    def _copy(self, path: str, remote: Remote) -> None:
        """Runs on the thread."""
        self._fs.make_dirs(path.rpartition("/")[0])
        try:
            fetch(self._fs, remote.path, path + _TMP, remote.digest, lambda: not self._is_closed)
        except BaseException:
            self._remove(path + _TMP)
            raise
        self._fs.rename(path + _TMP, path)

    # Use

    def use(self, path: str) -> None:
        """Keeps a cached index file until `unused` was called as often as this."""
        if path in self._here:
            self._here.move_to_end(path)
        self._uses[path] += 1

    def unused(self, path: str) -> None:
        self._uses[path] -= 1
        if not self._uses[path]:
            del self._uses[path]

    # Removal

    def drop(self, path: str) -> bool:
        """Removes an index file, unless a query uses it or waits for it; returns whether it was removed."""
        if path in self._uses or path in self._waiting:
            return False
        if path in self._here:
            self._evict(path)
        return True

    def close(self) -> None:
        """Stops fetching."""
        self._is_closed = True
        self._runner.close()

    def _make_room(self, size: int) -> bool:
        """Evicts files until a file of this size fits; returns whether it fits. Evicts nothing if it cannot."""
        spare = [path for path in self._here if path not in self._uses]
        if self.bytes - sum(self._here[path] for path in spare) + size > self.bytes_max:
            return False
        for path in spare:
            if self.bytes + size <= self.bytes_max:
                break
            self._evict(path)
        return True

    def _evict(self, path: str) -> None:
        self.bytes -= self._here.pop(path)
        self._let_go(path)
        self._runner.start(_in_the_background(partial(self._remove, path)))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._fs.remove(path)

    def _empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for folder in self._fs.list_dir(self._folder):
                for name in self._fs.list_dir(f"{self._folder}/{folder}"):
                    self._fs.remove(f"{self._folder}/{folder}/{name}")
                self._fs.remove_dir(f"{self._folder}/{folder}")


def _in_the_background(function: Callable[[], None]) -> Job:
    yield OffLoop(function)


LOOK_AGAIN_S = 1.0
"""The maximum age of a cached manifest."""
RETRY_S = 5.0
"""The time during which a file is not used after a failed fetch."""
_KNOWN_MAX = 10_000
_CHOICES = 64
"""The number of cached selections of a stream."""
_TIDY_EVERY_S = 30.0
_TIDIED_AT_A_TIME = 20


class IndexedRange(NamedTuple):
    """A range of seqs that an index file covers."""

    first: int
    last: int
    path: str
    topic_id: int = 0
    remote: Remote | None = None
    """Where to fetch the file from, to that path; None if it is local."""
    seal: int | None = None
    """The checksum of its directory; None if the manifest has none."""


class _Known(NamedTuple):
    looked: float
    manifest: IndexManifest | None
    chosen: Memo[tuple[bytes, str, tuple[str, ...], int, int], tuple[IndexedRange, ...]]
    """Cached selections of index files, by everything that the selection depends on. Files that have to be fetched are
    selected anew each time, because their availability changes."""


class IndexFiles:
    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        now: Callable[[], float],
        cache: IndexFileCache | None = None,
        let_go: Callable[[str], None] = lambda path: None,
    ) -> None:
        """The `cache` is for files in an object store. `let_go` is called with paths that are no longer used."""
        self._store = IndexStore(fs, layout)
        self._cold_root = layout.cold_root
        self._now = now
        self.cache = cache
        self._let_go = let_go
        self._known: dict[int, _Known] = {}
        self._distrusted: set[str] = set()
        self._not_before: dict[str, float] = {}
        """The retry times of files that could not be fetched."""
        self._too_large: set[str] = set()
        self._asked: dict[int, set[str]] = {}
        """The paths that were used or fetched, by topic."""
        self._sizes: Memo[tuple[int, str], dict[str, int]] = Memo(_KNOWN_MAX)
        self._untidied: list[int] = []
        self._tidy_at = now()
        self.unreadable = 0
        """The number of index files that could not be read."""

    def manifest(self, topic: Topic) -> IndexManifest | None:
        """Returns the manifest of a stream, at most a moment old; None if it has none."""
        return self._look(topic).manifest

    def manifest_bytes(self, topic: Topic) -> int | None:
        """Returns the size of a stream's manifest; None if it has none."""
        return self._store.size(topic.id)

    def sizes(self, topic: Topic, file: IndexFileEntry) -> dict[str, int]:
        """Returns the bytes of a file by index type and field. For entries of an earlier release, which lack them, they
        are read from the file if it is in the data folder."""
        if file.sizes or file.cold:
            return file.sizes
        return self._sizes.get((topic.id, file.name), lambda: self._read_sizes(topic, file))

    def _read_sizes(self, topic: Topic, file: IndexFileEntry) -> dict[str, int]:
        try:
            return SectionFile(self._store.map(topic.id, file.name)).sizes()
        except (OSError, IndexFileDamagedError):
            return {}

    def _look(self, topic: Topic) -> _Known:
        known = self._known.get(topic.id)
        if known is None or self._now() - known.looked >= LOOK_AGAIN_S:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[topic.id] = _Known(self._now(), self._load(topic), Memo(_CHOICES))
        return known

    def _load(self, topic: Topic) -> IndexManifest | None:
        try:
            manifest = self._store.load(topic.id)
        except OSError as error:
            _log.warning("index manifest cannot be read", extra={"topic": topic.name, "error": str(error)})
            return None
        return manifest if manifest is not None and manifest.epoch == topic.epoch else None

    def forget(self) -> None:
        """Rereads every manifest."""
        self._known.clear()

    def distrust(self, topic: Topic, path: str, problem: str) -> None:
        """Notes that an index file cannot be read; it is not used again."""
        self.unreadable += 1
        if path not in self._distrusted:
            _log.error("index file cannot be read", extra={"topic": topic.name, "error": problem})
        self._distrusted.add(path)
        # Including cached selections.
        self.forget()

    # Fetch from the cold tier

    def is_near(self, part: IndexedRange) -> bool:
        """Returns whether the file is available locally."""
        return part.remote is None or (self.cache is not None and part.path in self.cache)

    def fetch(self, topic: Topic, part: IndexedRange, done: Callable[[], None]) -> None:
        """Fetches an index file. At `done` it is local, or not selected for some seconds."""
        assert self.cache is not None and part.remote is not None

        def fetched(outcome: Fetched) -> None:
            if outcome is Fetched.DAMAGED:
                self.distrust(topic, part.path, "it is not in the cold tier, or not what was put there")
            elif outcome is not Fetched.OK:
                self._not_before[part.path] = self._now() + RETRY_S
            done()

        self._note(part)
        self.cache.fetch(part.path, part.remote, fetched)

    def begin(self, part: IndexedRange) -> None:
        """Notes that a query uses a local index file until the matching `end`."""
        self._note(part)
        if self.cache is not None and part.remote is not None:
            self.cache.use(part.path)

    def end(self, part: IndexedRange) -> None:
        if self.cache is not None and part.remote is not None:
            self.cache.unused(part.path)

    def _note(self, part: IndexedRange) -> None:
        self._asked.setdefault(part.topic_id, set()).add(part.path)

    def tidy(self) -> None:
        """Releases a few files that were used and that no manifest names any more. A mapped file would keep its disk
        space, and erased entries would remain in a copy."""
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
        """Releases a path if it is unused; returns whether it was."""
        if self.cache is not None and not self.cache.drop(path):
            return False
        self._let_go(path)
        self._not_before.pop(path, None)
        return True

    def _path(self, topic_id: int, file: IndexFileEntry) -> str:
        if file.cold and self.cache is not None:
            return self.cache.path(topic_id, file.name)
        return self._store.path(topic_id, file.name, file.cold)

    def is_cached(self, topic_id: int, file: IndexFileEntry) -> bool:
        """Whether a file of an object store has a local copy."""
        return file.cold and self.cache is not None and self.cache.path(topic_id, file.name) in self.cache

    def _remote(self, topic_id: int, file: IndexFileEntry) -> Remote | None:
        if not file.cold or self.cache is None:
            return None
        return Remote(self._store.path(topic_id, file.name, cold=True), file.bytes, file.digest)

    def _can_be_asked(self, path: str, file: IndexFileEntry) -> bool:
        if path in self._distrusted:
            return False
        if not file.cold:
            return True
        if self.cache is None:
            return self._cold_root is not None and not is_object_store(self._cold_root)
        if file.bytes > self.cache.bytes_max:
            if path not in self._too_large:
                self._too_large.add(path)
                _log.warning("index file is larger than the cache", extra={"path": path})
            return False
        return self._now() >= self._not_before.get(path, 0.0)

    # Selection

    def covered_through(self, topic: Topic, description: Description) -> int:
        """Returns the seq up to which all sealed entries have index files for any query."""
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
    ) -> Sequence[IndexedRange]:
        """Returns the index files that answer a query about a range, in the order of their seqs and without overlap."""
        known = self._look(topic)
        if not isinstance(query, SearchQuery) or query.after is not None:
            # A page that continues at a position is requested only once, so it is not cached.
            return self._choose(topic, description, query, first, last)
        if len(query.q) + sum(map(len, query.sort)) > LONGEST_KNOWN:
            return self._choose(topic, description, query, first, last)
        if topic.origin is not None or known.manifest is None or any([file.cold for file in known.manifest.files]):
            return self._choose(topic, description, query, first, last)
        key = description.raw, query.q, query.sort, first, last
        return known.chosen.get(key, lambda: tuple(self._choose(topic, description, query, first, last)))

    def _choose(
        self, topic: Topic, description: Description, query: Query, first: int, last: int
    ) -> list[IndexedRange]:
        if not self._has_any(topic):
            return []
        plan = plan_for(description.raw)
        return self.fitting(topic, plan, needs_of(plan, description, query), first, last)

    def _has_any(self, topic: Topic) -> bool:
        manifests = (self.manifest(part) for part, _, _ in chain_of(topic))
        return any(manifest is not None and manifest.files for manifest in manifests)

    def fitting(self, topic: Topic, plan: IndexPlan, needs: IndexNeeds, first: int, last: int) -> list[IndexedRange]:
        """The index files that answer a query for a range.

        Inherited entries of a fork are answered by the index files of its source; the digests prove that both streams
        read them the same way.
        """
        found: list[IndexedRange] = []
        for part, begin, end in chain_of(topic, first, last):
            found += self._of_one(part, plan.generation, needs, max(begin, first), min(end, last))
        return sorted(found, key=lambda part: part.first)

    def _of_one(self, topic: Topic, current: str, needs: IndexNeeds, first: int, last: int) -> list[IndexedRange]:
        manifest = self.manifest(topic) if first <= last else None
        if manifest is None or not manifest.files:
            return []
        # Files of the current plan first; others fill the gaps only.
        fitting = [name for name, other in manifest.plans.items() if needs.are_met(other)]
        covered: Ranges = []
        found: list[IndexedRange] = []
        for generation in sorted(fitting, key=lambda name: name != current):
            for file in manifest.of(generation):
                path = self._path(topic.id, file)
                part = (max(file.first, first), min(file.last, last))
                if part[0] > part[1] or not self._can_be_asked(path, file):
                    continue
                left, remote = difference([part], covered), self._remote(topic.id, file)
                found += [IndexedRange(begin, end, path, topic.id, remote, file.seal) for begin, end in left]
                covered = union(covered, left)
        return found


@lru_cache(maxsize=1024)
def plan_for(contract: bytes) -> IndexPlan:
    return plan_of(decode_contract(contract).registry)


def needs_of(plan: IndexPlan, description: Description, query: Query) -> IndexNeeds:
    if isinstance(query, KeysQuery):
        return IndexNeeds()
    registry = description.contract.registry
    config = registry.search_config
    assert config is not None
    if isinstance(query, AggregateQuery):
        return needs_of_aggregation(plan, known_aggregation(query.body, registry))
    bound = known_search(query.q, registry)
    if isinstance(query, CountQuery):
        return IndexNeeds({term.field: plan.fields[term.field] for term in terms_of(bound.predicate)})
    return needs_of_search(plan, bound.predicate, parse_sort(query.sort, config, bound.has_text).fields)


IndexType = Literal["routing", "lexicon", "exact", "companions", "col", "fts", "agg", "mblk"]
"""`companions` are the objects that contain col, fts, agg and mblk."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The coverage of a stream's sealed segments by one index type, by the current description."""

    segments: int = 0
    contiguous: int = 0
    """The number of covered segments from the first one on, without a gap."""
    stale: int = 0
    """Segments that are covered for an earlier description only."""
    through_ms: int | None = None
    """When the last covered entry was appended; None if none is covered."""
    bytes: int = 0
    cold_bytes: int = 0
    """Bytes in the cold tier."""
    cached_bytes: int = 0
    """Bytes of local copies of files in the cold tier."""
    objects: int = 0
    cold_objects: int = 0
    runs: int = 0
    retired_runs: int = 0
    updated_ms: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The manifest of index files that was published last."""

    generation: int = 0
    published_ms: int | None = None
    etag: str | None = None
    bytes: int | None = None
    uploads: int = 0
    """How many index files the pipeline moved to the cold tier."""


class HeldUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reason why indexing of a stream does not continue."""

    reason: str
    install: str | None = None
    """The command to run, if something has to be installed."""
    since_ms: int | None = None
    attempts: int = 0
    retry_at_ms: int | None = None
    """The time of the next attempt."""


class IndexCoverage(Protocol):
    def generation(self, topic: Topic) -> int:
        """Returns the number of the description to index by, from 1 on; 0 if there is none."""
        ...

    def manifest(self, topic: Topic) -> Manifest: ...

    def of(self, topic: Topic, index_type: IndexType, field: str = "") -> Coverage:
        """Returns the coverage of an index type; `exact` has one for each field."""
        ...

    def held_up(self, topic: Topic) -> HeldUp | None:
        """Returns why indexing does not continue; None if it does, or if everything is indexed."""
        ...


class NothingIndexed:
    """The coverage of a server without index files: every query scans entries."""

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


# Index coverage of streams, and the index types that an answer used.


def index_types_of(predicate: Predicate, sorted_by: tuple[str, ...], config: SearchConfig) -> list[str]:
    """Returns the index types that a query uses, by their public names."""
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
    """Implements `IndexCoverage`. An index file contains all index types. After a change of the description, files of
    an earlier plan still cover the unchanged fields."""

    def __init__(self, index_files: IndexFiles, held_up: Callable[[Topic], HeldUp | None] = lambda topic: None) -> None:
        """`held_up` asks the pipeline why indexing of a stream does not continue."""
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
        etag, size = f"{manifest.generation[:8]}-{manifest.number}", self._index_files.manifest_bytes(topic)
        return Manifest(
            generation=manifest.number, published_ms=manifest.updated_ms, etag=etag, bytes=size,
            uploads=manifest.uploads,
        )  # fmt: skip

    def of(self, topic: Topic, index_type: IndexType, field: str = "") -> Coverage:
        manifest = self._index_files.manifest(topic)
        if manifest is None:
            return super().of(topic, index_type, field)
        contract = contract_of(topic)
        plan, config = plan_for(encode_contract(contract)), contract.registry.search_config
        serving = {name for name, other in manifest.plans.items() if _serves(other, plan, index_type, field, config)}
        files = [file for file in manifest.files if file.generation in serving]
        if index_type != "companions":
            sizes = [_size_of(self._index_files.sizes(topic, file), index_type, field, config) for file in files]
            return _covered(topic, manifest, files, sizes)
        cached = sum([file.bytes for file in files if self._index_files.is_cached(topic.id, file)])
        found = _covered(topic, manifest, files, [file.bytes for file in files])
        return msgspec.structs.replace(found, cached_bytes=cached) if cached else found


def _serves(other: IndexPlan, plan: IndexPlan, index_type: IndexType, field: str, config: SearchConfig | None) -> bool:
    """Returns whether files of another plan contain an index type as the current plan defines it."""
    if index_type in ("routing", "lexicon"):
        # Keys do not depend on the description.
        return True
    if index_type == "exact":
        return other.fields.get(field) == plan.fields.get(field)
    if index_type == "agg":
        return plan.rollups.items() <= other.rollups.items()
    if index_type == "mblk":
        return plan.sums.items() <= other.sums.items()
    if index_type == "companions" or config is None:
        return other.generation == plan.generation
    names = [name for name, one in config.fields.items() if index_type in _families_of(one)]
    return all(other.fields.get(name) == plan.fields.get(name) for name in names)


def _families_of(field: Field) -> set[str]:
    """Returns the index types of a field, besides `exact`."""
    return {family for family, is_in in (("col", field.column), ("fts", _has_text(field))) if is_in}


def _has_text(field: Field) -> bool:
    return field.kind == "text" or bool(field.prefix)


def _home_of(field: Field, part: str) -> str:
    """Returns the index type that a field's section counts for: one, even if several use it."""
    if field.kind == "text":
        return "fts"
    if part == "column" and field.column:
        return "col"
    return "exact" if field.exact else "fts" if field.prefix else "col"


def _size_of(sizes: dict[str, int], index_type: IndexType, field: str, config: SearchConfig | None) -> int:
    """Returns the bytes of an index type in a file."""
    if index_type in ("routing", "lexicon"):
        return sizes.get("key/column" if index_type == "routing" else "key/words", 0)
    if index_type in ("agg", "mblk"):
        kind = "rollup/" if index_type == "agg" else "sums/"
        return sum([nbytes for owner, nbytes in sizes.items() if owner.startswith(kind)])
    fields, total = {} if config is None else config.fields, 0
    for name, one in fields.items():
        if index_type == "exact" and name != field:
            continue
        for part in ("words", "column"):
            if _home_of(one, part) == index_type:
                total += sizes.get(f"field/{name}/{part}", 0)
    return total


def _covered(topic: Topic, manifest: IndexManifest, files: Sequence[IndexFileEntry], sizes: Sequence[int]) -> Coverage:
    """Returns the coverage by files, with the bytes of the requested index type."""
    here, anywhere = union([(file.first, file.last) for file in files]), _all_ranges(manifest)
    spans = [(max(segment.first_seq, topic.earliest), segment.last_seq) for segment in topic.segments]
    indexed = [covers(here, first, last) for first, last in spans]
    contiguous = indexed.index(False) if False in indexed else len(indexed)
    stale = [covers(anywhere, *span) and not is_indexed for span, is_indexed in zip(spans, indexed, strict=True)]
    return Coverage(
        segments=sum(indexed),
        contiguous=contiguous,
        stale=sum(stale),
        through_ms=max((file.last_ts for file in files), default=None),
        bytes=sum(sizes),
        cold_bytes=sum(size for file, size in zip(files, sizes, strict=True) if file.cold),
        objects=len(files),
        cold_objects=sum([file.cold for file in files]),
        runs=len(files),
        retired_runs=len(manifest.retired),
        updated_ms=manifest.updated_ms,
    )


def _all_ranges(manifest: IndexManifest) -> Ranges:
    return union([(file.first, file.last) for file in manifest.files])
