"""Requests: every call of /v0 as a value, with its body and the type of its answer. Nothing here touches the network.

The functions are also the methods of both clients, so their signatures and docstrings are written for users of the
clients.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics_client.answers import (
    Acked,
    Appended,
    BackupList,
    BackupStarted,
    Claimed,
    Deleted,
    Diff,
    Extended,
    Fence,
    Health,
    JobChanged,
    JobOutcome,
    JobPage,
    LeasePage,
    Nacked,
    QueuePaused,
    Ready,
    Redriven,
    RouterDropped,
    RouterPage,
    RouterPut,
    RouterState,
    Token,
    TopicDropped,
    TopicPage,
    TopicPut,
    TopicState,
    WhoAmI,
)
from topics_client.errors import Unsendable
from topics_client.transport.http1 import Response
from topics_protocol.config import Guarantee, TagMatch, TopicConfigPatch
from topics_protocol.records import NewRecord

A = TypeVar("A")

Config = TopicConfigPatch | Mapping[str, object]
"""A config, typed or as plain JSON."""

Match = str | TagMatch | Sequence[str]
"""A condition on tags: a tag, a `TagMatch`, or the three words of the protocol such as `["tag", "Glob", "x*"]`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NO_ZONE = "a time needs its zone, such as datetime.now(UTC)"
_encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """One call."""

    method: str
    target: str
    """Path and query."""
    answer: Any
    """The type of the answer; `Any` there, because the type checker knows it as `A`."""
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    """Besides the standing ones. A body without any is JSON."""
    read: Callable[[Response], A] | None = None
    """Makes the answer of a response where that is more than its body as JSON."""
    repeatable: bool = True
    """Whether it may be sent again after an unknown outcome."""
    needs_key: bool = False
    """An append without an idempotency key. Once the client gives it one, it is repeatable, too."""
    patient: bool = True
    """Whether the client tries again when the server cannot take it now; a probe wants to know about now."""
    wait_s: float = 0.0
    """How long the server may hold the answer back."""
    partial_status: int = 0
    """Another status that counts as an answer, such as one whose body describes a failure."""


def put_topic(topic: str, config: Config | None = None) -> Request[TopicPut]:
    """Creates a topic, or replaces its config: a `TopicConfigPatch` or JSON, where an unknown key is a `ValueError`."""
    return Request(method="PUT", target=topic_path(topic), body=_encode(as_config(config) or {}), answer=TopicPut)


def get_topic(topic: str, *, touch: bool = True, streams: bool = False) -> Request[TopicState]:
    """Returns head, floor, count, bytes and config of a topic; for a queue also its `QueueCounters`. `touch=False` does
    not count as consuming the topic; `streams` also finds streams whose names topics cannot have.
    """
    query = {"touch": None if touch else "false", "streams": "true" if streams else None}
    return Request(method="GET", target=topic_path(topic, query=query), answer=TopicState)


def list_topics(
    prefix: str = "",
    *,
    page_size: int | None = None,
    cursor: str | None = None,
    touch: bool = False,
    streams: bool = False,
    contains: str = "",
    sort: str | None = None,
    total: bool = False,
    system: bool = False,
) -> Request[TopicPage]:
    """Returns one page of topics by name; `streams` includes streams whose names topics cannot have.

    `contains` selects names by a part of them, `sort` is `count`, `bytes` or `head_seq` with `:asc` or `:desc`, `total`
    counts the topics of all pages, and `system` includes topics of the server.
    """
    query = {
        "prefix": prefix or None,
        "contains": contains or None,
        "sort": sort,
        "page_size": page_size,
        "cursor": cursor or None,
        "touch": "true" if touch else None,
        "streams": "true" if streams else None,
        "total": "true" if total else None,
        "system": "true" if system else None,
    }
    return Request(method="GET", target="/v0/topics" + query_of(query), answer=TopicPage)


def delete_topic(topic: str, *, if_empty: bool = False) -> Request[TopicDropped]:
    """Deletes a topic and its records; with `if_empty` only a topic without live records."""
    query = {"if_empty": "true" if if_empty else None}
    return Request(method="DELETE", target=topic_path(topic, query=query), answer=TopicDropped)


def append(
    topic: str,
    value: object,
    *,
    tag: str | None = None,
    node: str | None = None,
    meta: Mapping[str, object] | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: Config | None = None,
    delay_ms: int = 0,
    run_at: datetime | int | None = None,
    priority: int = 0,
    unique_key: str | None = None,
    disable_backpressure: bool = False,
    return_seqs: bool = True,
    expected_head_seq: int | None = None,
    fence: str | None = None,
    new_fence: str | None = None,
) -> Request[Appended]:
    """Appends one record.

    `value` is any JSON value; a list is one record whose payload is a list. It may also be a `NewRecord`, whose `tag`,
    `node` and `meta` the arguments of the same names replace.
    """
    record = value if isinstance(value, NewRecord) else NewRecord(value)
    parts = given_only({"tag": tag, "node": node, "meta": meta})
    return append_many(
        topic,
        [msgspec.structs.replace(record, **parts)],
        idempotency_key=idempotency_key,
        create=create,
        config=config,
        delay_ms=delay_ms,
        run_at=run_at,
        priority=priority,
        unique_key=unique_key,
        disable_backpressure=disable_backpressure,
        return_seqs=return_seqs,
        expected_head_seq=expected_head_seq,
        fence=fence,
        new_fence=new_fence,
    )


def append_many(
    topic: str,
    records: Iterable[object],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: Config | None = None,
    delay_ms: int = 0,
    run_at: datetime | int | None = None,
    priority: int = 0,
    unique_key: str | None = None,
    disable_backpressure: bool = False,
    return_seqs: bool = True,
    expected_head_seq: int | None = None,
    fence: str | None = None,
    new_fence: str | None = None,
) -> Request[Appended]:
    """Appends a batch atomically, in order; each element is a `NewRecord` or a value.

    `node` applies to records without a node. `create` and `config` apply if the topic is missing. Jobs of a queue are
    delayed by `delay_ms`, or until `run_at`, a time or milliseconds since 1970; those of a higher `priority` (-1000 to
    1000) are claimed first. While a job with its `unique_key` is in the queue, a single record is not appended, and the
    answer is that job, `deduped`. `disable_backpressure` waits in the server instead of being refused.
    `return_seqs=False` leaves out the list of seqs, which have no gaps. With `expected_head_seq` the append raises
    `HeadMismatch` if the topic has another head, and with `fence` `FenceMismatch` if it has another fence token.
    `new_fence` sets the token with these records.
    """
    given = {
        "records": [record if isinstance(record, NewRecord) else NewRecord(record) for record in several(records)],
        "node": node,
        "idempotency_key": idempotency_key,
        "idempotency_check": None if idempotency_key is None else True,
        "create": create,
        "config": as_config(config),
        **job_terms(delay_ms, run_at, priority),
        "unique_key": unique_key,
        "disable_backpressure": disable_backpressure or None,
        "expected_head_seq": expected_head_seq,
        "fence": fence,
        "new_fence": new_fence,
    }
    return Request(
        method="POST",
        target=topic_path(topic, query={} if return_seqs else {"return_seqs": "false"}),
        body=encode_values(given_only(given)),
        answer=Appended,
        repeatable=idempotency_key is not None,
        needs_key=idempotency_key is None,
    )


def get_fence(topic: str) -> Request[Fence]:
    """Returns the fence token of a topic, empty if it has none, and its head."""
    return Request(method="GET", target=topic_path(topic, "/fence"), answer=Fence)


def put_fence(topic: str, new_fence: str, *, fence: str | None = None) -> Request[Fence]:
    """Sets the fence token of a topic, durably: appends that name another one raise `FenceMismatch`.

    An empty token removes it. `fence` is the token that the topic is expected to have.
    """
    body = _encode(given_only({"new_fence": new_fence, "fence": fence}))
    return Request(method="PUT", target=topic_path(topic, "/fence"), body=body, answer=Fence)


def diff(
    topic: str,
    from_seq: int = 0,
    *,
    limit: int | None = None,
    node: str | Sequence[str] | None = None,
    include_tags: bool = False,
    include_meta: bool = True,
    wait_ms: int = 0,
    max_batch_bytes: int | None = None,
    epoch: int | None = None,
    streams: bool = False,
    filter: str | None = None,
    since: datetime | str | int | None = None,
    last: int | None = None,
) -> Request[Diff]:
    """Returns the records behind the cursor `from_seq`, and a `Gap` if records before them were lost.

    Instead of after a cursor it begins with the first record of a time, `since`, or with the `last` records. `filter`
    is a query over tag, node, ts, seq and members of the data, such as `tag:order-* /total:>=5`; records that do not
    match move the cursor. Records of the excluded nodes are omitted. With `wait_ms`, an empty answer is delayed so
    long. `epoch` is the epoch of the cursor's topic from an earlier answer: if the topic was deleted and created again
    since, the answer has a gap `recreated` and begins with the first existing record. With `streams` it may be a stream
    with a name reserved for streams.
    """
    given = {
        "from_seq": None if since is not None or last is not None else from_seq,
        "since_ts": milliseconds(since) if isinstance(since, datetime) else since,
        "last": last,
        "filter": filter,
        "limit": limit,
        "node": node,
        "include_tags": include_tags or None,
        "include_meta": None if include_meta else False,
        "wait_ms": wait_ms or None,
        "max_batch_bytes": max_batch_bytes,
        "epoch": epoch,
    }
    target = topic_path(topic, "/diff", {"streams": "true" if streams else None})
    return Request(method="POST", target=target, body=_encode(given_only(given)), answer=Diff, wait_s=wait_ms / 1000)


def delete(topic: str, *, before_seq: int | None = None, match: Match | None = None) -> Request[Deleted]:
    """Deletes records permanently: below a seq, with a matching tag, or both.

    A deletion by tag alone means the records of this moment. Repeated after a lost answer it could hit later ones, so
    it is not.
    """
    given = {"before_seq": before_seq, "match": match.to_wire() if isinstance(match, TagMatch) else match}
    return Request(
        method="POST",
        target=topic_path(topic, "/delete"),
        body=_encode(given_only(given)),
        answer=Deleted,
        repeatable=before_seq is not None,
    )


def put_router(
    source: str,
    dest: str,
    *,
    name: str | None = None,
    preserve_node: bool = True,
    preserve_tag: bool = True,
    create_dest: bool = True,
    filter: Match | None = None,
    allow_cycle: bool = False,
    guarantee: Guarantee | str = Guarantee.AT_LEAST_ONCE,
    from_seq: int | None = None,
) -> Request[RouterPut]:
    """Creates a router that copies records of one topic into another, or changes how. The default name is
    `source->dest`.

    Its default name is `source->dest`. A new router begins with records appended from now on; `from_seq=0` copies all
    existing records. `filter` is a condition on tags, as for `delete`.
    """
    given = {
        "source": source,
        "dest": dest,
        "preserve_node": preserve_node,
        "preserve_tag": preserve_tag,
        "create_dest": create_dest,
        "filter": filter.to_wire() if isinstance(filter, TagMatch) else filter,
        "allow_cycle": allow_cycle,
        "guarantee": guarantee,
        "from_seq": from_seq,
    }
    # Sent again after a lost answer it finds the router there, and changes nothing.
    target = _router(f"{source}->{dest}" if name is None else name)
    return Request(method="PUT", target=target, body=_encode(given_only(given)), answer=RouterPut)


def get_router(name: str) -> Request[RouterState]:
    """Returns the config of a router, the number of its copies, and its lag."""
    return Request(method="GET", target=_router(name), answer=RouterState)


def list_routers(
    prefix: str = "",
    *,
    source: str | None = None,
    dest: str | None = None,
    page_size: int | None = None,
    cursor: str | None = None,
) -> Request[RouterPage]:
    """Returns one page of routers, by name."""
    query = {
        "prefix": prefix or None,
        "source": source,
        "dest": dest,
        "page_size": page_size,
        "cursor": cursor or None,
    }
    return Request(method="GET", target="/v0/routers" + query_of(query), answer=RouterPage)


def delete_router(name: str) -> Request[RouterDropped]:
    """Deletes a router and keeps its copies."""
    return Request(method="DELETE", target=_router(name), answer=RouterDropped)


def health() -> Request[Health]:
    """Returns the liveness of the server."""
    return Request(method="GET", target="/v0/health", answer=Health, patient=False)


def ready() -> Request[Ready]:
    """Returns the readiness of the server; raises `NotReady` or `ShuttingDown`, and is not retried."""
    return Request(method="GET", target="/v0/ready", answer=Ready, patient=False)


def pipeline() -> Request[dict[str, Any]]:
    """Returns the state of the Spark pipeline and of each of its products."""
    return Request(method="GET", target="/v0/pipeline", answer=dict[str, Any], patient=False)


def create_backup() -> Request[BackupStarted]:
    """Begins a backup to the server's backup storage; `backups` lists it when it is complete."""
    return Request(method="POST", target="/v0/backups", answer=BackupStarted, patient=False)


def backups() -> Request[BackupList]:
    """Returns the backup storage, its state, and the backups, oldest first."""
    return Request(method="GET", target="/v0/backups", answer=BackupList, patient=False)


def whoami() -> Request[WhoAmI]:
    """Returns the scopes and prefixes of the key, and the limits of the server."""
    return Request(method="GET", target="/v0/self", answer=WhoAmI)


def create_token(*, ttl_ms: int | None = None) -> Request[Token]:
    """Creates a short-lived token that replaces the key, for event streams and WebSockets of browsers."""
    return Request(method="POST", target="/v0/tokens", body=_encode(given_only({"ttl_ms": ttl_ms})), answer=Token)


def openapi() -> Request[dict[str, Any]]:
    """Returns the server's OpenAPI document."""
    return Request(method="GET", target="/v0/openapi.json", answer=dict[str, Any])


def metrics() -> Request[dict[str, Any]]:
    """Returns the metrics by name: a number, or a list of samples with labels."""
    return Request(method="GET", target="/v0/metrics", answer=dict[str, Any], patient=False)


def metrics_history(step: str = "1s", points: int | None = None) -> Request[dict[str, Any]]:
    """Returns the most important metrics at equal steps, `1s` of the last hour or `1m` of the last day.

    `points` is the maximum of points, the newest ones.
    """
    target = "/v0/metrics/history" + query_of({"step": step, "points": points})
    return Request(method="GET", target=target, answer=dict[str, Any], patient=False)


def topic_path(name: str, verb: str = "", query: Mapping[str, object] | None = None) -> str:
    return f"/v0/topics/{named(name, 'topic')}{verb}{query_of(query or {})}"


def _router(name: str) -> str:
    return f"/v0/routers/{named(name, 'router')}"


def named(name: str, what: str) -> str:
    if name in ("", ".", ".."):
        # Everything else arrives as a name and is the server's to judge. These would make another path of it.
        raise Unsendable(f"{name!r} is not a {what} name")
    return quote(name, safe="")


def job_terms(delay_ms: int, run_at: datetime | int | None, priority: int) -> dict[str, Any]:
    """The fields of jobs of a queue, as they are sent."""
    return {
        "delay_ms": delay_ms or None,
        "run_at": milliseconds(run_at) if isinstance(run_at, datetime) else run_at,
        "priority": priority or None,
    }


def moment(value: datetime | str | None) -> str | None:
    """A time as it is sent."""
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(_NO_ZONE)
    return value.isoformat() if isinstance(value, datetime) else value


def milliseconds(value: datetime) -> int:
    """The first millisecond that is not before a time."""
    if value.tzinfo is None:
        raise ValueError(_NO_ZONE)
    return -((_EPOCH - value) // _MILLISECOND)


def query_of(fields: Mapping[str, object]) -> str:
    given = given_only(fields)
    return "?" + urlencode(given) if given else ""


def given_only(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def several(records: Iterable[object], call: str = "append_many") -> Iterable[object]:
    """Checks that records are a batch. A single text or dict is refused: each of its letters, or keys, would become a
    record.
    """
    if isinstance(records, str | bytes | bytearray | Mapping | NewRecord):
        raise TypeError(f"{call} takes several records, not a {type(records).__name__}; append takes one")
    return records


def as_config(config: Config | None) -> Config | None:
    """A config as it was given. A key that the server would silently ignore is refused."""
    known = TopicConfigPatch.__struct_fields__
    for key in config if isinstance(config, Mapping) else ():
        if key not in known:
            import difflib  # noqa: PLC0415 - for a mistake only

            near = difflib.get_close_matches(str(key), known, 1)
            raise ValueError(f"config: there is no {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return config


def encode_values(fields: object) -> bytes:
    body = _encode(fields)
    if b"null" in body or b"NaN" in body or b'Infinity"' in body:
        # Any of them may have been a number that JSON has no word for; a decimal one becomes a text.
        _check_finite(fields)
    return body


def _check_finite(value: object) -> None:
    import json  # noqa: PLC0415 - its encoder distinguishes such a number from null, and checks everything in C

    try:
        json.JSONEncoder(allow_nan=False, skipkeys=True, default=_opened).encode(value)
    except ValueError as error:
        raise ValueError("NaN and the infinities cannot be sent: JSON has no word for them") from error


def _opened(value: object) -> object:
    """The contents of a value whose type the encoder does not know; None where it has none."""
    match value:
        case msgspec.Struct():
            return msgspec.structs.asdict(value)
        case set() | frozenset():
            return list(value)
        case Decimal() if not value.is_finite():
            return math.nan
        case Mapping():
            return dict(value)
        case _ if dataclasses.is_dataclass(value):
            return [getattr(value, field.name) for field in dataclasses.fields(value)]
        case _:
            return None


# Queues


def claim(topic: str, node: str, *, max: int = 1, lease_ms: int | None = None) -> Request[Claimed]:
    """Leases up to `max` jobs to the worker `node`, for `lease_ms` or the lease of the queue's config.

    A claim is repeated after a lost answer. Jobs of the lost answer are free again when their leases end.
    """
    given = {"node": node, "max": max, "lease_ms": lease_ms}
    # A queue with a claim_jitter_ms holds the answer back for up to five seconds.
    return Request(
        method="POST", target=topic_path(topic, "/claim"), body=_encode(given_only(given)), answer=Claimed, wait_s=5.0
    )


def ack(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    lease_ids: Sequence[str] | None = None,
    result: object = msgspec.UNSET,
) -> Request[Acked]:
    """Completes jobs: deletes those that the worker `node` still holds, and returns the others as `skipped`.

    With `lease_ids`, one for each seq, a job that was lost and claimed again by the same node is not touched. The
    `result` of a single job is kept for `result_retention_ms` of the queue (`get_result`).
    """
    given = given_only({"node": node, "seqs": seqs, "lease_ids": lease_ids})
    if result is not msgspec.UNSET:
        given["result"] = result
    return Request(method="POST", target=topic_path(topic, "/ack"), body=_encode(given), answer=Acked)


def get_result(topic: str, seq: int, *, wait_ms: int = 0) -> Request[JobOutcome]:
    """The result of a job, or its state while it is in the queue; waits up to `wait_ms` until it is done.

    Raises `JobNotFound` for a job that is gone without a result, or whose result is not kept any more.
    """
    target = topic_path(topic, f"/jobs/{seq}/result", {"wait_ms": wait_ms or None})
    return Request(method="GET", target=target, answer=JobOutcome, wait_s=wait_ms / 1000)


def nack(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    delay_ms: int = 0,
    lease_ids: Sequence[str] | None = None,
    reason: str = "",
    fatal: bool = False,
) -> Request[Nacked]:
    """Returns jobs to the queue, at once or after `delay_ms`.

    With a `reason`, of up to 1024 bytes, they failed: the queue keeps the last reasons of a job. `fatal` moves them to
    the dead-letter topic at once.
    """
    given = {
        "node": node, "seqs": seqs, "delay_ms": delay_ms or None, "lease_ids": lease_ids, "reason": reason or None,
        "fatal": fatal or None,
    }  # fmt: skip
    return Request(
        method="POST",
        target=topic_path(topic, "/nack"),
        body=_encode(given_only(given)),
        answer=Nacked,
        # Without the lease ids, a retry could return jobs that the node has claimed again in between.
        repeatable=lease_ids is not None,
    )


def extend(
    topic: str, node: str, seqs: Sequence[int], lease_ms: int, *, lease_ids: Sequence[str] | None = None
) -> Request[Extended]:
    """Extends the leases of jobs to `lease_ms` from now."""
    body = _encode(given_only({"node": node, "seqs": seqs, "lease_ms": lease_ms, "lease_ids": lease_ids}))
    return Request(method="POST", target=topic_path(topic, "/extend"), body=body, answer=Extended)


def redrive(topic: str, *, max: int = 100, source: str | None = None) -> Request[Redriven]:
    """Moves up to `max` dead letters back into a queue, from `source` or the dead-letter topic of its config.

    Sent again only when it certainly was not carried out: a second one would move more.
    """
    body = _encode(given_only({"max": max, "source": source}))
    return Request(method="POST", target=topic_path(topic, "/redrive"), body=body, answer=Redriven, repeatable=False)


def list_jobs(
    topic: str, state: str = "ready", *, tag: str | None = None, limit: int = 100, cursor: str | None = None
) -> Request[JobPage]:
    """Returns one page of the jobs of a queue that are `ready`, `leased`, `delayed` or `dead`, by seq.

    A page may be short, or empty, while it has a `next_cursor`: a page examines a bounded number of jobs.
    """
    query = {"state": state, "tag": tag, "limit": limit, "cursor": cursor}
    return Request(method="GET", target=topic_path(topic, "/jobs", query), answer=JobPage)


def _job(topic: str, seq: int, verb: str, body: dict[str, object] | None = None) -> Request[JobChanged]:
    encoded = None if body is None else _encode(body)
    return Request(
        method="POST", target=topic_path(topic, f"/jobs/{seq}/{verb}"), body=encoded, answer=JobChanged,
        repeatable=verb != "retry",
    )  # fmt: skip


def retry_job(topic: str, seq: int) -> Request[JobChanged]:
    """Moves one dead letter back into its queue, where it has a new seq. `seq` is that in the dead-letter topic."""
    return _job(topic, seq, "retry")


def cancel_job(topic: str, seq: int, *, dead: bool = False) -> Request[JobChanged]:
    """Deletes a job, also a leased one; with `dead` a dead letter, by its seq in the dead-letter topic."""
    return _job(topic, seq, "cancel", {"dead": True} if dead else None)


def promote_job(topic: str, seq: int) -> Request[JobChanged]:
    """Makes a delayed job ready now."""
    return _job(topic, seq, "promote")


def release_job(topic: str, seq: int) -> Request[JobChanged]:
    """Ends the lease of a job, of any worker: it is ready again."""
    return _job(topic, seq, "release")


def pause_queue(topic: str, paused: bool = True) -> Request[QueuePaused]:
    """Stops handing out jobs, also over restarts; `False` begins again. Workers keep the jobs they have."""
    return Request(
        method="PUT", target=topic_path(topic, "/queue"), body=_encode({"paused": paused}), answer=QueuePaused
    )


def list_leases(
    topic: str, *, after: int = 0, page_size: int | None = None, node: str | None = None
) -> Request[LeasePage]:
    """Returns one page of leases behind the seq `after`, of all workers or of one."""
    query = {"after": after or None, "page_size": page_size, "node": node}
    return Request(method="GET", target=topic_path(topic, "/leases", query), answer=LeasePage)
