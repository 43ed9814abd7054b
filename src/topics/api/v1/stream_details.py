"""`_details`: everything about one stream in one answer.

It contains nothing about other streams or the server, so only changes of this stream wake a waiting client.

`_schema` and `_profile`: the contract of a stream for its entries.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from topics.api.app import Call
from topics.api.auth import Key
from topics.api.chunked_response import run_task
from topics.api.error_responses import RequestTimeoutError
from topics.api.v1.protocol import NO_STORE, Deadlines, Pending, answer, read_duration_ms, read_integer, refuse
from topics.api.v1.reads import has_it
from topics.engine.topic import Segment, Topic
from topics.log.object_store.store import TopicRequests
from topics.log.segment import data_bytes
from topics.log.segment_files import SegmentKey, SegmentStore
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import KIB, MIB
from topics.schema.contract import Contract, profile_json
from topics.schema.documents import PORTION_BYTES, parse_request, refuse_others
from topics.schema.profiles.metrics import Metrics
from topics.schema.registry import REGISTRY_API_VERSION, parse_update_incrementally, registry_json
from topics.schema.search_fields import SearchConfig
from topics.search.query.field_inference import Inference
from topics.search.service.index_file_cache import Coverage, HeldUp, IndexCoverage, IndexType
from topics.streams.contracts import ContractDone
from topics.streams.entry_encoding import is_json
from topics.streams.lifecycle import ListedInfo, describe
from topics.streams.read import ContentSizes, ReadSpec, StreamSlice
from topics.streams.stream_state import Position, contract_of, stream_of
from topics.streams.streams import Streams
from topics.system.fair_scheduler import Task
from topics_protocol.rfc3339 import write_time

# Resources of a stream with conditional requests, and with requests that wait for a change.
#
# A tag is a digest of the body, so it changes exactly with the resource. A request with `live` and an ETag is answered
# when the tag changes, or with 304 at its timeout. Requests that wait for the same resource share one body for each
# change.

_encode = msgspec.json.Encoder().encode
_DIGEST_BYTES = 20
_SHARED_S = 0.02
_LIVE = {"": False, "true": True, "1": True, "long-poll": True}

Look = Callable[[Topic, Streams], dict[str, Any]]


class Shown(NamedTuple):
    """The current state of a resource."""

    etag: str
    body: bytes

    def answer(self, call: Call) -> None:
        """Answers with the body, or with 304 if the client has it."""
        headers = (NO_STORE, ("etag", self.etag))
        if self.is_known(call):
            answer(call, 304, headers)
        else:
            answer(call, 200, headers, self.body, "application/json")

    def is_known(self, call: Call) -> bool:
        return has_it(call.exchange.head.headers.get("if-none-match"), self.etag)


class Inspected:
    """A resource of every stream; `look` returns its document."""

    def __init__(self, word: str, look: Look, wait_ms: int, wait_max_ms: int) -> None:
        """`word` is the prefix of its tags. `wait_ms` is the default timeout of waiting, `wait_max_ms` the maximum."""
        self._word = word
        self._look = look
        self._wait_ms = wait_ms
        self._wait_max_ms = wait_max_ms
        self._watched: dict[Topic, _Watched] = {}

    def show(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        wait_s = self._parse_wait(call)
        streams.engine.catch_up(topic)
        shown = self.of(topic, streams)
        if wait_s is None or not shown.is_known(call):
            shown.answer(call)
            return
        watched = self._watched.get(topic)
        if watched is None:
            watched = self._watched[topic] = _Watched(self, topic, streams)
        watched.add(_Waiting(call, watched, wait_s))

    def _parse_wait(self, call: Call) -> float | None:
        """Returns the time to wait, in seconds; None for an immediate answer."""
        query = call.query
        live = _LIVE.get(query.get("live", ""))
        if live is None or query.get("live") == "":
            raise InvalidRequestError("query live: must be true or long-poll", field="live")
        wait_ms = self._wait_ms
        if "timeout_ms" in query:
            wait_ms = read_integer("query timeout_ms", query["timeout_ms"])
        if "timeout" in query:
            wait_ms = read_duration_ms("timeout", query["timeout"], bare_ms=1)
        return min(wait_ms, self._wait_max_ms) / 1000 if live else None

    def of(self, topic: Topic, streams: Streams) -> Shown:
        """Returns the current resource. Raises if the stream was deleted."""
        streams.check_there(topic)
        streams.engine.expire(topic)
        body = _encode(self._look(topic, streams))
        return Shown(f'W/"{self._word}:{blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()}"', body)

    def forget(self, topic: Topic) -> None:
        """Drops a topic without waiting requests."""
        self._watched.pop(topic, None)


class _Watched:
    """A resource of one stream with waiting requests."""

    def __init__(self, resource: Inspected, topic: Topic, streams: Streams) -> None:
        self._resource = resource
        self._topic = topic
        self._streams = streams
        self._waiting: set[_Waiting] = set()
        self._seen: tuple[float, Shown | TopicsError] | None = None
        self._unwatch = streams.watch(topic, self._changed)

    def add(self, waiting: "_Waiting") -> None:
        self._waiting.add(waiting)

    def discard(self, waiting: "_Waiting") -> None:
        self._waiting.discard(waiting)
        if not self._waiting:
            self._unwatch()
            self._resource.forget(self._topic)

    def now(self) -> Shown | TopicsError:
        """Returns the current state. Requests with the same timeout share it; it is dropped at a change."""
        at = asyncio.get_running_loop().time()
        if self._seen is None or at - self._seen[0] >= _SHARED_S:
            self._seen = (at, self._look())
        return self._seen[1]

    def _look(self) -> Shown | TopicsError:
        try:
            return self._resource.of(self._topic, self._streams)
        except TopicsError as error:
            return error

    def _changed(self) -> None:
        self._seen = None
        shown = self.now()
        try:
            self._unwatch = self._streams.watch(self._topic, self._changed)
        except TopicsError as error:
            shown = error
        for waiting in list(self._waiting):
            if isinstance(shown, TopicsError) or not shown.is_known(waiting.call):
                waiting.finish(shown)


class _Waiting:
    """A waiting request."""

    def __init__(self, call: Call, watched: _Watched, wait_s: float) -> None:
        self.call = call
        self._watched = watched
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)
        call.waits.add(self)
        call.on_disconnect(self._over)

    @property
    def key(self) -> Key:
        """The key of the request; a request whose key is revoked is aborted."""
        return self.call.key

    def end(self) -> None:
        """Answers with the current state at the timeout, or when the server stops."""
        self.finish(self._watched.now())

    def finish(self, shown: Shown | TopicsError) -> None:
        self._over()
        if isinstance(shown, TopicsError):
            refuse(self.call, shown)
        else:
            shown.answer(self.call)

    def _over(self) -> None:
        self._timer.cancel()
        self.call.waits.discard(self)
        self._watched.discard(self)


# `_index_status`: the indexes of a stream, and their progress.
#
# The families follow from the stream's search contract; `topics.search.service.index_file_cache` reports their
# progress. Everything is about this stream alone and nothing moves by itself, so that the resource changes only when it
# does.


def index_status(topic: Topic, coverage: IndexCoverage) -> dict[str, Any]:
    contract = contract_of(topic)
    registry = contract.registry
    config, keyed = registry.search_config, registry.routing_key is not None
    # Without a description nothing is indexed, so there is no lag.
    requested = len(topic.segments)
    bundle = coverage.of(topic, "companions")
    return {
        "stream": topic.name,
        "profile": contract.profile.kind,
        "desired_index_plan_generation": coverage.generation(topic),
        "segments": {"total_count": requested, "uploaded_count": requested},
        "manifest": _manifest(topic, coverage),
        "routing_key_index": {"configured": keyed, **_run(topic, coverage.of(topic, "routing"), requested * keyed)},
        "routing_key_lexicon": {"configured": keyed, **_run(topic, coverage.of(topic, "lexicon"), requested * keyed)},
        "exact_indexes": [] if config is None else _exact(topic, coverage, config),
        "bundled_companions": {
            "object_count": bundle.objects,
            "bytes_at_rest": str(bundle.bytes),
            "fully_indexed_uploaded_segments": config is None or bundle.segments >= requested,
            # Like the reason for a delay below: present only if there is one.
            **({"cold_bytes_at_rest": str(bundle.cold_bytes)} if bundle.cold_bytes else {}),
        },
        "search_families": [
            _family(topic, coverage, family, fields) for family, fields in declared_families(contract)
        ],
        **(_held_up(coverage.held_up(topic)) if config is not None or keyed else {}),
    }  # fmt: skip


def declared_families(contract: Contract) -> list[tuple[IndexType, list[str]]]:
    """Returns the index types of a stream, each with its fields or rollups."""
    config = contract.registry.search_config
    if config is None:
        return []
    fields = sorted(config.fields.items())
    declared: list[tuple[IndexType, list[str]]] = [
        ("col", [name for name, field in fields if field.column]),
        ("fts", [name for name, field in fields if field.kind == "text" or field.prefix]),
        ("agg", sorted(config.rollups)),
    ]
    found = [(family, names) for family, names in declared if names]
    if isinstance(contract.profile, Metrics):
        found.append(("mblk", []))
    return found


def _manifest(topic: Topic, coverage: IndexCoverage) -> dict[str, Any]:
    manifest = coverage.manifest(topic)
    return {
        "generation": manifest.generation,
        "uploaded_generation": manifest.generation,
        "last_uploaded_at": _time(manifest.published_ms),
        "last_uploaded_etag": manifest.etag,
        "last_uploaded_size_bytes": None if manifest.bytes is None else str(manifest.bytes),
    }


def _held_up(held: HeldUp | None) -> dict[str, Any]:
    """A field that is present only after a failure, because other servers of this protocol do not have it."""
    if held is None:
        return {}
    times = {"since": _time(held.since_ms), "retry_at": _time(held.retry_at_ms)}
    return {"held_up": {"reason": held.reason, "install": held.install, "attempts": held.attempts, **times}}


def _exact(topic: Topic, coverage: IndexCoverage, config: SearchConfig) -> list[dict[str, Any]]:
    """Returns the exact index of every field that has one."""
    requested, reported = len(topic.segments), []
    for name, field in sorted(config.fields.items()):
        if field.exact and field.kind != "text":
            one = coverage.of(topic, "exact", name)
            stale = bool(one.stale) or (one.segments < requested and not one.segments)
            run = _run(topic, one, requested)
            updated = run.pop("updated_at")
            reported.append(
                {"name": name, "kind": field.kind, **run, "stale_configuration": stale, "updated_at": updated}
            )
    return reported


def _family(topic: Topic, coverage: IndexCoverage, family: IndexType, fields: list[str]) -> dict[str, Any]:
    one, requested = coverage.of(topic, family), len(topic.segments)
    return {
        "family": family,
        "fields": fields,
        "plan_generation": coverage.generation(topic),
        "covered_segment_count": one.segments,
        "contiguous_covered_segment_count": one.contiguous,
        **_lag(topic, one, requested),
        "bytes_at_rest": str(one.bytes),
        "object_count": one.objects,
        "stale_segment_count": one.stale,
        "fully_indexed_uploaded_segments": one.segments >= requested,
        "updated_at": _time(one.updated_ms),
    }


def _run(topic: Topic, one: Coverage, requested: int) -> dict[str, Any]:
    return {
        "indexed_segment_count": one.segments,
        **_lag(topic, one, requested),
        "bytes_at_rest": str(one.bytes),
        "object_count": one.objects,
        "active_run_count": one.runs,
        "retired_run_count": one.retired_runs,
        "fully_indexed_uploaded_segments": one.segments >= requested,
        "updated_at": _time(one.updated_ms),
    }


def _lag(topic: Topic, one: Coverage, requested: int) -> dict[str, Any]:
    """Returns the lag of an index type, by the times of entries and not of the clock, so an idle stream has a constant
    lag."""
    behind = None if one.through_ms is None else str(max(topic.last_write_ts - one.through_ms, 0))
    return {"lag_segments": max(requested - one.segments, 0), "lag_ms": behind}


def _time(millis: int | None) -> str | None:
    return None if millis is None else write_time(millis)


_INDEX_FAMILIES: tuple[IndexType, ...] = ("routing", "lexicon", "companions")


def stream_details(topic: Topic, streams: Streams) -> dict[str, Any]:
    contract, coverage, store = contract_of(topic), streams.coverage, streams.engine.segments
    use = store.topic_use(topic.id)
    sizes = ContentSizes(topic, streams.engine.reader)
    return {
        "stream": _summary(topic, sizes),
        "profile": msgspec.Raw(profile_json(contract.profile)),
        "schema": msgspec.Raw(registry_json(contract.registry, topic.name)),
        "index_status": index_status(topic, coverage),
        "storage": storage_of(topic, coverage, store, sizes.pending, use.cached_bytes),
        "object_store_requests": object_store_requests(
            use.requests, coverage.manifest(topic).uploads if store.far is not None else 0
        ),
    }


_READS = ("gets", "heads", "lists")
_REQUESTS = ("puts", "reads", *_READS, "deletes")


def object_store_requests(of_artifacts: TopicRequests, uploads: int) -> dict[str, Any]:
    """Returns the requests of this server for one stream since its start, in total and by kind of object, and the
    `uploads` of index files by the pipeline, which is another process: one request each."""
    total: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    artifacts = {name: Counter(found) for name, found in of_artifacts.items()}
    if uploads:
        artifacts.setdefault("bundled_companion", Counter())["puts"] += uploads
    for artifact, found in sorted(artifacts.items()):
        counts = {**found, "reads": sum([found[name] for name in _READS])}
        total.update(counts)
        rows.append({"artifact": artifact, **{name: str(counts.get(name, 0)) for name in _REQUESTS}})
    return {**{name: str(total[name]) for name in _REQUESTS}, "by_artifact": rows}


def _summary(topic: Topic, sizes: ContentSizes) -> dict[str, Any]:
    info, state, segments = describe(topic), stream_of(topic), topic.segments
    sealed = str(segments[-1].last_seq - 1 if segments else -1)
    written = write_time(topic.last_write_ts or topic.created_ts)
    pending_rows, pending_bytes = str(topic.tail_count), str(sizes.pending)
    return {
        "name": topic.name,
        "content_type": info.content_type,
        "profile": info.profile,
        "created_at": write_time(topic.created_ts),
        "updated_at": written,
        "expires_at": None if info.deadline_ms is None else write_time(info.deadline_ms),
        "ttl_seconds": info.ttl_s,
        "stream_seq": state.last_seq if state is not None else None,
        "closed": info.closed,
        "epoch": topic.epoch,
        "next_offset": str(topic.head),
        "sealed_through": sealed,
        "uploaded_through": sealed,
        "segment_count": len(segments),
        "uploaded_segment_count": len(segments),
        "pending_rows": pending_rows,
        "pending_bytes": pending_bytes,
        "total_size_bytes": str(sizes.total),
        "wal_rows": pending_rows,
        "wal_bytes": pending_bytes,
        "last_append_at": written,
        "last_segment_cut_at": write_time(segments[-1].last_written if segments else topic.created_ts),
    }


def storage_of(topic: Topic, coverage: IndexCoverage, store: SegmentStore, pending: int, cached: int) -> dict[str, Any]:
    """Returns the bytes of a stream by location.

    Object storage is the cold tier; local storage is everything else: `pending` content bytes of entries that are not
    sealed, and `cached` bytes of copies of cold segments.
    """
    cold = [segment for segment in topic.segments if segment.cold]
    near = [segment for segment in topic.segments if not segment.cold and segment.blocks is None]
    unwritten = sum([segment.text_bytes for segment in topic.segments if segment.blocks is not None])
    segments, local = _data_bytes(topic, cold), _data_bytes(topic, near)
    # The index of a segment is a separate object or file.
    segment_indexes = store.index_bytes([SegmentKey(topic.id, one.first_seq, True) for one in cold])
    local += store.index_bytes([SegmentKey(topic.id, one.first_seq, False) for one in near])
    runs = {family: coverage.of(topic, family) for family in _INDEX_FAMILIES}
    config = contract_of(topic).registry.search_config
    exact = [
        coverage.of(topic, "exact", name) for name, field in (config.fields if config else {}).items() if field.exact
    ]
    # All index types are in the same files.
    index_files = runs["companions"]
    indexes = index_files.cold_bytes + segment_indexes
    companions = index_files.bytes - index_files.cold_bytes + index_files.cached_bytes
    # The manifest of a stream stays in the data folder.
    manifest = 0
    return {
        "object_storage": {
            "total_bytes": str(segments + indexes + manifest),
            "segments_bytes": str(segments),
            "indexes_bytes": str(indexes),
            "manifest_and_meta_bytes": str(manifest),
            "manifest_bytes": str(manifest),
            "schema_registry_bytes": "0",
            "segment_object_count": len(cold),
            "routing_index_object_count": runs["routing"].cold_objects,
            "routing_lexicon_object_count": runs["lexicon"].cold_objects,
            "exact_index_object_count": sum([one.cold_objects for one in exact]),
            "bundled_companion_object_count": index_files.cold_objects,
        },
        "local_storage": {
            "total_bytes": str(pending + unwritten + local + cached + companions),
            "wal_retained_bytes": str(pending),
            "pending_tail_bytes": str(pending),
            "pending_sealed_segment_bytes": str(unwritten),
            "segment_cache_bytes": str(local + cached),
            "companion_cache_bytes": str(companions),
            **dict.fromkeys(_NO_CACHES, "0"),
        },
        "companion_families": {
            "exact_bytes": str(sum([one.bytes for one in exact])),
            **{f"{family}_bytes": str(coverage.of(topic, family).bytes) for family in _SECTIONS},
        },
    }


def _data_bytes(topic: Topic, segments: Sequence[Segment]) -> int:
    """The bytes of the `.data` files of segments."""
    return sum([data_bytes(topic.name, one.count, one.text_bytes) for one in segments])


_SECTIONS: tuple[IndexType, ...] = ("col", "fts", "agg", "mblk")
_NO_CACHES = (
    "routing_index_cache_bytes", "exact_index_cache_bytes", "lexicon_index_cache_bytes", "sqlite_shared_total_bytes",
)  # fmt: skip
"""Parts of a local store that this server does not have."""


Show = Callable[[Contract, str], bytes]
Update = Callable[[ContractDone], None]
_SHORT_BYTES = 16 * KIB
"""A schema up to this size is processed in a few milliseconds."""


class ContractRoutes:
    """The handlers; each gets the streams of the call's engine."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def show_schema(self, call: Call, streams: Streams) -> None:
        _report(call, streams.contract(call.topic), _show_schema)

    def show_profile(self, call: Call, streams: Streams) -> None:
        _report(call, streams.contract(call.topic), _show_profile)

    def update_schema(self, call: Call, streams: Streams) -> None:
        if len(call.exchange.body) <= _SHORT_BYTES:
            self._update(call, partial(streams.update_schema, call.topic, call.exchange.body), _show_schema)
        else:
            run_task(call, self._update_incrementally(call, streams), partial(refuse, call))

    def _update_incrementally(self, call: Call, streams: Streams) -> Task:
        update = yield from parse_update_incrementally(call.exchange.body)
        self._update(call, partial(streams.update_schema, call.topic, update), _show_schema)

    def infer_fields(self, call: Call, streams: Streams) -> None:
        """Proposes search fields from the newest entries; changes nothing."""
        count, topic = _sample_count(call.exchange.body), streams.topic(call.topic)
        if not is_json(streams.content_type(topic)):
            raise InvalidRequestError("a schema registry requires application/json stream content-type")
        pending = Pending()

        def done(found: StreamSlice | TopicsError) -> None:
            if not pending.met():
                return
            if isinstance(found, TopicsError):
                refuse(call, found)
            else:
                run_task(call, _propose(call, found), partial(refuse, call))

        _read_newest(streams, topic, count, done)
        if pending.open:
            self._deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)

    def update_profile(self, call: Call, streams: Streams) -> None:
        self._update(call, partial(streams.update_profile, call.topic, call.exchange.body), _show_profile)

    def _update(self, call: Call, update: Update, show: Show) -> None:
        pending = Pending()

        def done(outcome: Contract | TopicsError) -> None:
            if not pending.met():
                return
            if isinstance(outcome, TopicsError):
                refuse(call, outcome)
            else:
                _report(call, outcome, show)

        update(done)
        if pending.open:
            self._deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)


# `_schema/infer`: a search description proposed from samples.

_SAMPLES = 200
_SAMPLES_MAX = 1000
_SAMPLE_BYTES = MIB


def _sample_count(body: bytes) -> int:
    document = parse_request("infer", body) if body else {}
    refuse_others("infer", document, frozenset(("entries",)))
    count = document.get("entries", _SAMPLES)
    if type(count) is not int or not 1 <= count <= _SAMPLES_MAX:
        raise InvalidRequestError(
            f"infer.entries must be a whole number from 1 to {_SAMPLES_MAX}", field="infer.entries", max=_SAMPLES_MAX
        )
    return count


def _read_newest(streams: Streams, topic: Topic, count: int, done: Callable[[StreamSlice | TopicsError], None]) -> None:
    """Reads the newest entries, promoted to the current version.

    If they exceed the bytes of a sample, a quarter as many are read: at most six reads of a MiB.
    """

    def read(entries: int) -> None:
        start = max(topic.head - entries, topic.earliest - 1)
        spec = ReadSpec(position=Position(start), max_records=entries, max_bytes=_SAMPLE_BYTES)
        streams.read(topic, spec, partial(found, entries))

    def found(entries: int, outcome: StreamSlice | TopicsError) -> None:
        if isinstance(outcome, TopicsError) or outcome.at_tail or entries == 1:
            done(outcome)
            return
        try:
            read(max(entries // 4, 1))
        except TopicsError as error:
            done(error)

    streams.engine.catch_up(topic)
    read(count)


def _propose(call: Call, found: StreamSlice) -> Task:
    inference, looked_at = Inference(), 0
    for raw in msgspec.json.decode(found.body, type=list[msgspec.Raw]):
        inference.add(raw)
        looked_at += len(raw)
        if looked_at > PORTION_BYTES:
            looked_at = 0
            yield None
    search, skipped = inference.propose()
    body = {
        "apiVersion": REGISTRY_API_VERSION,
        "search": search,
        "sampled": {"entries": found.count, "objects": inference.entries, "bytes": len(found.body)},
        "skipped": skipped,
    }
    answer(call, 200, (NO_STORE,), _encode(body), "application/json")


def _show_schema(contract: Contract, stream: str) -> bytes:
    return registry_json(contract.registry, stream)


def _show_profile(contract: Contract, stream: str) -> bytes:
    return profile_json(contract.profile)


def _report(call: Call, contract: Contract, show: Show) -> None:
    answer(call, 200, (NO_STORE,), show(contract, call.topic), "application/json")


# GET /v1/streams: a page of streams by name. The cost depends on the page only.

_LIMIT = 100
_LIMIT_MAX = 1000


class ListedStream(msgspec.Struct, gc=False):
    """One stream of a list. Counters are strings, because JavaScript does not represent them exactly."""

    name: str
    created_at: str
    expires_at: str | None
    epoch: int
    next_offset: str
    sealed_through: str
    uploaded_through: str
    profile: str


def list_streams(call: Call, streams: Streams) -> None:
    query = call.query
    limit = _number(query.get("limit"), "limit", _LIMIT)
    offset = _number(query.get("offset"), "offset", 0)
    if not limit:
        raise InvalidRequestError("query limit: must be at least 1", field="limit")
    limit = min(limit, _LIMIT_MAX)
    prefix = query.get("prefix", "")
    system = call.flag("system", prefix.startswith("_"))
    found = streams.listed(prefix, query.get("after", ""), offset, call.key.prefixes, limit, system)
    page = [_listed(info) for info in found]
    answer(call, 200, (NO_STORE,), _encode(page), "application/json")


def _number(text: str | None, field: str, default: int) -> int:
    return default if text is None else read_integer(f"query {field}", text)


def _listed(info: ListedInfo) -> ListedStream:
    sealed = str(info.sealed_through)
    expires_at = None if info.deadline_ms is None else write_time(info.deadline_ms)
    # By position: a page has a hundred of them, and field names would double the cost.
    return ListedStream(
        info.name, write_time(info.created_ms), expires_at, info.epoch, str(info.head), sealed, sealed, info.profile
    )
