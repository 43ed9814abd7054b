"""The matrix of isolation: for every route, every command and every field, where a name can stand in it.

`ROWS` has an entry for each method and path of the route table. An entry lists requests; each puts a name that the
key's prefixes do not cover into one place. Words in double braces stand for names of the other tenant, and are filled
in twice: once with names that exist, once with names that do not. Words in single braces are alike both times.

| word | stands for |
|---|---|
| `{{topic}}` `{{queue}}` `{{stream}}` | a topic, queue and stream of the other tenant |
| `{{router}}` | a router of the other tenant, between its topics |
| `{{schedule}}` | a schedule of the other tenant |
| `{{sub}}` | the id of a subscription of the other tenant |
| `{{transaction}}` | a transaction of the other tenant |
| `{{wid}}` | a watch session of the other tenant |
| `{{cursor}}` | the cursor of a list that ends with the other tenant's topic |
| `{{event}}` | the id of an event of the other tenant's topic |
| `{own}` | begins a name that the key may touch |
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class Ask(NamedTuple):
    """One request of the tenant that must not get through."""

    path: str
    body: object = None
    headers: Mapping[str, str] = MappingProxyType({})
    answers: Sequence[int] = ()
    """The statuses that it may have: 403 alone unless told. Answers other than 403 must be the same, word for word,
    whether the name is there or not."""
    tells: str = ""
    """The reason why the answer may reveal the existence of a resource, if it may."""


_SECRET = "nobody can guess a session's name"
_ONE: dict[str, Any] = {"records": [{"data": 1}]}
_WORK = {"accept": "text/event-stream"}
_TEXT = {"content-type": "text/plain"}
_SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"
_HELD = {"node": "w", "seqs": [1]}
_STAGE: dict[str, Any] = {"sequence": 1, "part": "p", **_ONE}
_SAID = {"wake_id": "wake_x", "generation": 0, "acks": [{"stream": "{{stream}}", "offset": "-1"}]}


def _pull(**more: object) -> dict[str, object]:
    return {"type": "pull-wake", "streams": ["{own}s"], "wake_stream": "{own}s", **more}


def _config(**more: object) -> dict[str, object]:
    return {"type": "queue", "max_deliveries": 1, "dead_letter": "{{topic}}", **more}


ROWS: dict[str, tuple[Ask, ...]] = {
    # Without a name anywhere. Their answers must not name resources of other tenants either.
    "GET /v0/health": (Ask("/v0/health", answers=[200]),),
    "GET /v0/ready": (Ask("/v0/ready", answers=[200]),),
    "GET /health": (Ask("/health", answers=[200]),),
    "GET /healthz": (Ask("/healthz", answers=[200]),),
    "GET /readyz": (Ask("/readyz", answers=[200]),),
    "GET /v0/openapi.json": (Ask("/v0/openapi.json", answers=[200]),),
    "GET /docs": (Ask("/docs", answers=[200]),),
    "GET /docs/plain": (Ask("/docs/plain", answers=[200]),),
    "GET /docs/{file}": (Ask("/docs/start.js", answers=[200, 404]), Ask("/docs/{{topic}}", answers=[404])),
    "GET /": (Ask("/", headers={"accept": "text/html"}, answers=[303]), Ask("/", answers=[404])),
    "GET /console": (Ask("/console", answers=[200]),),
    "GET /console/{file}": (Ask("/console/main.js", answers=[200]), Ask("/console/{{topic}}", answers=[404])),
    "GET /v0/self": (Ask("/v0/self", answers=[200]),),
    "GET /v0/metrics": (
        Ask("/v0/metrics", answers=[200]),
        Ask("/v0/metrics", headers={"accept": "application/json"}, answers=[200]),
    ),
    "GET /v0/metrics/history": (
        Ask("/v0/metrics/history?step=1m&points=0", answers=[200], tells="it says when it was asked"),
    ),
    "GET /v0/backups": (Ask("/v0/backups"),),
    "POST /v0/backups": (Ask("/v0/backups"),),
    "GET /v0/pipeline/files": (Ask("/v0/pipeline/files?path=meta/catalog"),),
    "GET /v0/pipeline": (Ask("/v0/pipeline", answers=[200]),),
    "GET /v1/server/_details": (Ask("/v1/server/_details", answers=[200], tells="it says how much is stored in all"),),
    "GET /v1/server/_mem": (Ask("/v1/server/_mem", answers=[200], tells="it says how much is held in all"),),
    "POST /v0/tokens": (Ask("/v0/tokens", {}, answers=[200], tells="each token is another"),),
    "GET /v1/stream/__ds/jwks.json": (Ask("/v1/stream/__ds/jwks.json", answers=[200]),),
    "OPTIONS /v1/stream/{stream}": (Ask("/v1/stream/{{stream}}", answers=[204]),),
    # Topics and their records.
    "GET /v0/topics": (
        Ask("/v0/topics", answers=[200]),
        Ask("/v0/topics?prefix={{topic}}", answers=[200]),
        Ask("/v0/topics?prefix=a", answers=[200]),
        Ask("/v0/topics?streams=true", answers=[200]),
        Ask("/v0/topics?cursor={{cursor}}", answers=[200]),
        Ask("/v0/topics?contains={{topic}}&total=true", answers=[200]),
        Ask("/v0/topics?streams=true&system=true&sort=count:desc&total=true", answers=[200]),
    ),
    "GET /v0/topics/{topic}": (Ask("/v0/topics/{{topic}}"), Ask("/v0/topics/{{queue}}?touch=false")),
    "PUT /v0/topics/{topic}": (Ask("/v0/topics/{{topic}}", {}), Ask("/v0/topics/{own}q", _config())),
    "DELETE /v0/topics/{topic}": (Ask("/v0/topics/{{topic}}"), Ask("/v0/topics/{{topic}}?if_empty=true")),
    "POST /v0/topics/{topic}": (
        Ask("/v0/topics/{{topic}}", _ONE),
        Ask("/v0/topics/{{topic}}", {**_ONE, "idempotency_key": "k"}),
        Ask("/v0/topics/{{topic}}", {**_ONE, "expected_head_seq": 99, "fence": "w"}),
        Ask("/v0/topics/{own}new", {**_ONE, "config": _config()}),
        Ask("/v0/topics/{own}t", {**_ONE, "config": _config()}),
    ),
    "GET /v0/topics/{topic}/fence": (Ask("/v0/topics/{{topic}}/fence"),),
    "PUT /v0/topics/{topic}/fence": (
        Ask("/v0/topics/{{topic}}/fence", {"new_fence": "w"}),
        Ask("/v0/topics/{{topic}}/fence", {"new_fence": "", "fence": "w"}),
    ),
    "POST /v0/topics/{topic}/diff": (
        Ask("/v0/topics/{{topic}}/diff", {}),
        Ask("/v0/topics/{{topic}}/diff", {"wait_ms": 1, "from_seq": 99}),
        Ask("/v0/topics/{{topic}}/diff", {"filter": "tag:x", "wait_ms": 1}),
        Ask("/v0/topics/{{topic}}/diff", {"last": 3}),
        Ask("/v0/topics/{{stream}}/diff?streams=true", {"since_ts": 0, "filter": "/x:1"}),
    ),
    "POST /v0/topics/{topic}/search": (
        Ask("/v0/topics/{{topic}}/search", {"q": ""}),
        Ask("/v0/topics/{{stream}}/search?streams=true", {"q": "x:1"}),
    ),
    "POST /v0/topics/{topic}/delete": (
        Ask("/v0/topics/{{topic}}/delete", {"before_seq": 99}),
        Ask("/v0/topics/{{topic}}/delete", {"match": ["tag", "Eq", "x"]}),
    ),
    # Queues.
    "POST /v0/topics/{topic}/claim": (Ask("/v0/topics/{{queue}}/claim", {"node": "w"}),),
    "POST /v0/topics/{topic}/ack": (Ask("/v0/topics/{{queue}}/ack", _HELD),),
    "POST /v0/topics/{topic}/nack": (
        Ask("/v0/topics/{{queue}}/nack", _HELD),
        Ask("/v0/topics/{{queue}}/nack", {**_HELD, "reason": "no", "fatal": True}),
    ),
    "POST /v0/topics/{topic}/extend": (Ask("/v0/topics/{{queue}}/extend", {**_HELD, "lease_ms": 1000}),),
    "GET /v0/topics/{topic}/jobs": (
        Ask("/v0/topics/{{queue}}/jobs"),
        Ask("/v0/topics/{{queue}}/jobs?state=dead&tag=x"),
    ),
    "GET /v0/topics/{topic}/jobs/{seq}/result": (
        Ask("/v0/topics/{{queue}}/jobs/1/result"),
        Ask("/v0/topics/{{queue}}/jobs/1/result?wait_ms=1"),
    ),
    "POST /v0/topics/{topic}/jobs/{seq}/retry": (Ask("/v0/topics/{{queue}}/jobs/1/retry", {}),),
    "POST /v0/topics/{topic}/jobs/{seq}/cancel": (
        Ask("/v0/topics/{{queue}}/jobs/1/cancel", {}),
        Ask("/v0/topics/{{queue}}/jobs/1/cancel", {"dead": True}),
    ),
    "POST /v0/topics/{topic}/jobs/{seq}/promote": (Ask("/v0/topics/{{queue}}/jobs/1/promote", {}),),
    "POST /v0/topics/{topic}/jobs/{seq}/release": (Ask("/v0/topics/{{queue}}/jobs/1/release", {}),),
    "PUT /v0/topics/{topic}/queue": (Ask("/v0/topics/{{queue}}/queue", {"paused": True}),),
    "POST /v0/topics/{topic}/redrive": (
        Ask("/v0/topics/{{queue}}/redrive", {}),
        Ask("/v0/topics/{own}q/redrive", {"source": "{{topic}}"}),
    ),
    "GET /v0/topics/{topic}/work": (
        Ask("/v0/topics/{{queue}}/work?node=w", headers=_WORK),
        Ask("/v0/topics/{{queue}}/work?node=w&token=zeta", headers={**_WORK, "authorization": ""}),
    ),
    "GET /v0/topics/{topic}/leases": (Ask("/v0/topics/{{queue}}/leases"), Ask("/v0/topics/{{queue}}/leases?node=w")),
    # Consumers.
    "GET /v0/consumers": (
        Ask("/v0/consumers", answers=[200]),
        Ask("/v0/consumers?prefix={{topic}}", answers=[200]),
        Ask("/v0/consumers?cursor={{cursor}}", answers=[200]),
    ),
    "GET /v0/topics/{topic}/consumers": (
        Ask("/v0/topics/{{topic}}/consumers"),
        Ask("/v0/topics/{{stream}}/consumers?streams=true"),
    ),
    "PUT /v0/topics/{topic}/consumers/{consumer}": (
        Ask("/v0/topics/{{topic}}/consumers/c", {}),
        Ask("/v0/topics/{{topic}}/consumers/new", {"last": 1}),
        Ask("/v0/topics/{{stream}}/consumers/c?streams=true", {"since_ts": 0}),
    ),
    "GET /v0/topics/{topic}/consumers/{consumer}": (Ask("/v0/topics/{{topic}}/consumers/c"),),
    "DELETE /v0/topics/{topic}/consumers/{consumer}": (Ask("/v0/topics/{{topic}}/consumers/c"),),
    "POST /v0/topics/{topic}/consumers/{consumer}/commit": (
        Ask("/v0/topics/{{topic}}/consumers/c/commit", {"seq": 0, "force": True}),
        Ask("/v0/topics/{{topic}}/consumers/c/commit", {"last": 1}),
    ),
    "POST /v0/topics/{topic}/consumers/{consumer}/read": (
        Ask("/v0/topics/{{topic}}/consumers/c/read", {}),
        Ask("/v0/topics/{{topic}}/consumers/c/read", {"wait_ms": 1, "filter": "tag:x"}),
    ),
    # Routers.
    # Schedules.
    "GET /v0/schedules": (
        Ask("/v0/schedules", answers=[200]),
        Ask("/v0/schedules?prefix={{schedule}}", answers=[200]),
        Ask("/v0/schedules?topic={{topic}}", answers=[200]),
        Ask("/v0/schedules?cursor={{cursor}}", answers=[200]),
    ),
    "GET /v0/schedules/{schedule}": (Ask("/v0/schedules/{{schedule}}"),),
    "PUT /v0/schedules/{schedule}": (
        Ask("/v0/schedules/{{schedule}}", {"topic": "{own}t", "every_ms": 1000}),
        Ask("/v0/schedules/{{schedule}}", {"paused": True}),
        Ask("/v0/schedules/{own}s", {"topic": "{{topic}}", "every_ms": 1000}),
    ),
    "DELETE /v0/schedules/{schedule}": (Ask("/v0/schedules/{{schedule}}"),),
    "GET /v0/routers": (
        Ask("/v0/routers", answers=[200]),
        Ask("/v0/routers?prefix={{router}}", answers=[200]),
        Ask("/v0/routers?source={{topic}}", answers=[200]),
        Ask("/v0/routers?dest={{topic}}", answers=[200]),
        Ask("/v0/routers?cursor={{cursor}}", answers=[200]),
    ),
    "GET /v0/routers/{router}": (Ask("/v0/routers/{{router}}"),),
    "PUT /v0/routers/{router}": (
        Ask("/v0/routers/{{router}}", {"source": "{own}t", "dest": "{own}d"}),
        Ask("/v0/routers/{own}r", {"source": "{{topic}}", "dest": "{own}d"}),
        Ask("/v0/routers/{own}r", {"source": "{own}t", "dest": "{{topic}}"}),
        Ask("/v0/routers/{own}r", {"source": "{own}t", "dest": "{{topic}}", "create_dest": False}),
    ),
    "DELETE /v0/routers/{router}": (Ask("/v0/routers/{{router}}"),),
    # Transactions. Each tenant has separate ids: another tenant's ids do not exist for it.
    "POST /v0/transactions": (Ask("/v0/transactions", {"id": "{{transaction}}", "sequence": -1}, answers=[400]),),
    "GET /v0/transactions/{transaction}": (Ask("/v0/transactions/{{transaction}}", answers=[404]),),
    "POST /v0/transactions/{transaction}/stage": (
        Ask("/v0/transactions/{own}x/stage", {**_STAGE, "topic": "{{topic}}"}),
        Ask("/v0/transactions/{own}x/stage", {**_STAGE, "topic": "{own}new", "config": _config()}),
        Ask("/v0/transactions/{own}x/stage", {**_STAGE, "topic": "{own}t", "config": _config()}),
        Ask("/v0/transactions/{{transaction}}/stage", {**_STAGE, "topic": "{own}t"}, answers=[404]),
    ),
    "POST /v0/transactions/{transaction}/commit": (
        Ask("/v0/transactions/{{transaction}}/commit", {"sequence": 1}, answers=[404]),
        Ask(
            "/v0/transactions/{{transaction}}/commit",
            {"sequence": 1, "conditions": {"{{topic}}": {"expected_head_seq": 0, "fence": "w"}}},
            answers=[404],
        ),
    ),
    "POST /v0/transactions/{transaction}/abort": (
        Ask("/v0/transactions/{{transaction}}/abort", {"sequence": 1}, answers=[404]),
    ),
    # Following.
    "POST /v0/watch": (
        Ask("/v0/watch", {"topics": {"{{topic}}": {}}}),
        Ask("/v0/watch?lenient=true", {"topics": {"{own}t": {}, "{{topic}}": {}}}),
        Ask("/v0/watch", {"topics": {"{{topic}}": {}}, "cursor": "{{event}}"}),
        Ask("/v0/watch", {"topics": {"{own}none": {}}, "cursor": "{{event}}"}, answers=[404]),
    ),
    "GET /v0/watch/{wid}": (
        Ask("/v0/watch/{{wid}}", headers=_WORK, answers=[401, 404], tells=_SECRET),
        Ask("/v0/watch/{{wid}}?token=zeta", headers={**_WORK, "authorization": ""}, answers=[401, 404], tells=_SECRET),
    ),
    "GET /v0/ws": (Ask("/v0/ws", answers=[426]),),  # The commands are in COMMANDS.
    # Streams.
    "POST /v1/_search": (
        Ask("/v1/_search", {"streams": "{{stream}}"}, answers=[404]),
        Ask("/v1/_search", {"streams": ["{{stream}}", "{{stream}}*"]}, answers=[404]),
    ),
    "GET /v1/streams": (
        Ask("/v1/streams", answers=[200]),
        Ask("/v1/streams?prefix={{stream}}", answers=[200]),
        Ask("/v1/streams?after={{stream}}", answers=[200]),
        Ask("/v1/streams?offset=0&limit=1000", answers=[200]),
    ),
    "GET /v1/stream/{stream}": (
        Ask("/v1/stream/{{stream}}"),
        Ask("/v1/stream/{{stream}}?offset=-1&live=sse"),
        Ask("/v1/stream/{{stream}}?offset=-1&live=long-poll"),
        Ask("/v1/stream/{{stream}}/"),
    ),
    "HEAD /v1/stream/{stream}": (Ask("/v1/stream/{{stream}}"),),
    "PUT /v1/stream/{stream}": (
        Ask("/v1/stream/{{stream}}", headers=_TEXT),
        Ask("/v1/stream/{own}fork", headers={"stream-forked-from": "/v1/stream/{{stream}}"}),
        Ask("/v1/stream/{own}fork", headers={"stream-forked-from": "http://127.0.0.1/v1/stream/{{stream}}?x=y"}),
    ),
    "POST /v1/stream/{stream}": (
        Ask("/v1/stream/{{stream}}", "text", _TEXT),
        Ask("/v1/stream/{{stream}}", headers={"stream-closed": "true"}),
    ),
    "DELETE /v1/stream/{stream}": (Ask("/v1/stream/{{stream}}"),),
    "GET /v1/stream/{stream}/pk/{key}": (Ask("/v1/stream/{{stream}}/pk/k"),),
    **{
        f"{method} /v1/stream/{{stream}}/{part}": (
            Ask(f"/v1/stream/{{{{stream}}}}/{part}", None if method == "GET" else {}, answers=[403, 404, 405]),
        )
        for part in ("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details")
        for method in ("GET", "POST")
    },
    "POST /v1/stream/{stream}/_schema/infer": (Ask("/v1/stream/{{stream}}/_schema/infer", {}),),
    "GET /v1/stream/{stream}/touch/meta": (Ask("/v1/stream/{{stream}}/touch/meta"),),
    "POST /v1/stream/{stream}/touch/templates/activate": (
        Ask("/v1/stream/{{stream}}/touch/templates/activate", {"templates": []}),
    ),
    "POST /v1/stream/{stream}/touch/wait": (Ask("/v1/stream/{{stream}}/touch/wait", {"keys": ["0" * 16]}),),
    # Subscriptions.
    "PUT /v1/stream/__ds/subscriptions/{id}": (
        Ask(f"{_SUBSCRIPTIONS}/new", _pull(streams=["{{stream}}"])),
        Ask(f"{_SUBSCRIPTIONS}/new", _pull(wake_stream="{{stream}}")),
        Ask(f"{_SUBSCRIPTIONS}/new", _pull(pattern="{{stream}}*")),
        Ask(f"{_SUBSCRIPTIONS}/new", _pull(pattern="**")),
        Ask(f"{_SUBSCRIPTIONS}/new", _pull(pattern="*{{stream}}")),
        Ask(
            f"{_SUBSCRIPTIONS}/new",
            {"type": "webhook", "pattern": "{own}*", "webhook": {"url": "https://127.0.0.1/v1/stream/{{stream}}"}},
            answers=[400],
        ),
        Ask(f"{_SUBSCRIPTIONS}/real-sub", _pull(), tells="ids are shared by all, so one that is free would be taken"),
    ),
    "GET /v1/stream/__ds/subscriptions/{id}": (Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}", answers=[404]),),
    "DELETE /v1/stream/__ds/subscriptions/{id}": (Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}", answers=[404]),),
    "POST /v1/stream/__ds/subscriptions/{id}/streams": (
        Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/streams", {"streams": ["{own}s"]}, answers=[404]),
        Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/streams", {"streams": ["{{stream}}"]}),
        Ask(f"{_SUBSCRIPTIONS}/{{own}}sub/streams", {"streams": ["{{stream}}"]}),
    ),
    "DELETE /v1/stream/__ds/subscriptions/{id}/streams/{name}": (
        Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/streams/{{own}}s", answers=[404]),
        Ask(f"{_SUBSCRIPTIONS}/{{own}}sub/streams/{{{{stream}}}}"),
    ),
    "POST /v1/stream/__ds/subscriptions/{id}/claim": (
        Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/claim", {"worker": "w"}, answers=[404]),
    ),
    **{
        f"POST /v1/stream/__ds/subscriptions/{{id}}/{word}": (
            Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/{word}", _SAID, answers=[401]),
            Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/{word}", {**_SAID, "generation": 1}, answers=[401]),
            Ask(f"{_SUBSCRIPTIONS}/{{{{sub}}}}/{word}", _SAID, {"authorization": ""}, answers=[401]),
        )
        for word in ("ack", "callback", "release")
    },
}

COMMANDS: dict[str, tuple[dict[str, object], ...]] = {
    "subscribe": ({"topics": {"{{topic}}": {}}}, {"topic": "{{topic}}"}, {"topics": {"{own}t": {}, "{{topic}}": {}}}),
    "unsubscribe": ({"topics": ["{{topic}}"]}, {"topic": "{{topic}}"}),
    "publish": (
        {"topic": "{{topic}}", **_ONE},
        {"topic": "{own}new", **_ONE, "config": _config()},
        {"topic": "{own}t", **_ONE, "config": _config()},
    ),
    "ping": ({"request_id": "{own}"},),
}
"""The same for the commands of a WebSocket."""

NAMED_FIELDS: dict[str, frozenset[str]] = {
    "TopicConfigPatch": frozenset({"dead_letter"}),
    "AppendBody": frozenset({"config"}),
    "Publish": frozenset({"config", "topic"}),
    "Subscribe": frozenset({"topic", "topics"}),
    "Unsubscribe": frozenset({"topic", "topics"}),
    "RouterBody": frozenset({"source", "dest"}),
    "RedriveBody": frozenset({"source"}),
    "TransactionBody": frozenset({"id"}),
    "StageBody": frozenset({"topic", "config"}),
    "CommitBody": frozenset({"conditions"}),
    "WatchBody": frozenset({"topics", "cursor"}),
    "SubscriptionRequest": frozenset({"pattern", "streams", "webhook", "wake_stream"}),
    "ScheduleBody": frozenset({"topic"}),
    "query": frozenset({"prefix", "contains", "cursor", "source", "dest", "token", "topic"}),
}
"""The fields of a body, by its type, in which a name can stand. Each is in a row above."""

PLAIN_FIELDS: dict[str, frozenset[str]] = {
    "TopicConfigPatch": frozenset({
        "type", "ttl_ms", "cap_records", "cap_bytes", "discard", "durable", "durability", "priority", "auto_priority",
        "auto_create", "idempotency_window_ms", "dedupe_node", "lease_ms", "claim_jitter_ms", "max_deliveries",
        "leases_durable", "retain_for_consumers", "max_per_second", "max_leased", "fair_tags",
        "result_retention_ms",
    }),
    "AppendBody": frozenset({
        "records", "node", "idempotency_key", "idempotency_check", "create", "delay_ms", "run_at", "priority",
        "unique_key", "disable_backpressure", "expected_head_seq", "fence", "new_fence",
    }),
    "FenceBody": frozenset({"fence", "new_fence"}),
    "DiffBody": frozenset({
        "from_seq", "limit", "node", "include_tags", "include_meta", "wait_ms", "max_batch_bytes", "epoch",
        "filter", "since_ts", "last",
    }),
    "ConsumerBody": frozenset({"from_seq", "since_ts", "last"}),
    "CommitConsumerBody": frozenset({"seq", "since_ts", "last", "force", "epoch"}),
    "ReadConsumerBody": frozenset({
        "limit", "node", "include_tags", "include_meta", "wait_ms", "max_batch_bytes", "filter",
    }),
    "TopicSearchBody": frozenset({
        "q", "size", "sort", "search_after", "timeout_ms", "track_total", "explain", "_source", "fields", "highlight",
        "rank",
    }),
    "DeleteBody": frozenset({"before_seq", "match"}),
    "RouterBody": frozenset({
        "preserve_node", "preserve_tag", "create_dest", "filter", "allow_cycle", "guarantee", "from_seq",
    }),
    "ScheduleBody": frozenset({"cron", "every_ms", "timezone", "data", "tag", "catch_up", "paused"}),
    "ClaimBody": frozenset({"node", "max", "lease_ms"}),
    "AckBody": frozenset({"node", "seqs", "lease_ids", "result"}),
    "NackBody": frozenset({"node", "seqs", "lease_ids", "delay_ms", "reason", "fatal"}),
    "CancelBody": frozenset({"dead"}),
    "QueueBody": frozenset({"paused"}),
    "ExtendBody": frozenset({"node", "seqs", "lease_ids", "lease_ms"}),
    "RedriveBody": frozenset({"max"}),
    "TransactionBody": frozenset({"sequence", "attempt", "timeout_ms"}),
    "StageBody": frozenset({
        "sequence", "attempt", "part", "records", "node", "create", "delay_ms", "run_at", "priority",
    }),
    "CommitBody": frozenset({"sequence", "attempt", "parts"}),
    "AbortBody": frozenset({"sequence", "attempt"}),
    "WatchBody": frozenset({
        "node", "limit", "max_batch_bytes", "heartbeat_ms", "include_meta", "include_tags", "include_data",
        "consistency",
    }),
    "Publish": frozenset({
        "records", "node", "idempotency_key", "idempotency_check", "create", "delay_ms", "run_at", "priority",
        "unique_key", "disable_backpressure", "request_id", "return_seqs", "expected_head_seq", "fence", "new_fence",
    }),
    "Subscribe": frozenset({
        "request_id", "from_seq", "tail", "epoch", "limit", "max_batch_bytes", "include_data", "include_meta",
        "include_tags", "node",
    }),
    "Unsubscribe": frozenset({"request_id"}),
    "Ping": frozenset({"request_id"}),
    "SubscriptionRequest": frozenset({"type", "lease_ttl_ms", "description"}),
    "TokenBody": frozenset({"ttl_ms"}),
    "query": frozenset({
        "page_size", "sort", "total", "system", "step", "points", "state", "limit", "tag",
        "touch", "if_empty", "return_seqs", "node", "max", "lease_ms", "heartbeat_ms", "after", "lenient",
        "streams", "strict", "topics", "path", "offset", "length", "wait_ms", "role",
    }),
}  # fmt: skip
"""The fields in which none can stand."""
