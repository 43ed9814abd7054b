"""Descriptions of the fields of /v0 messages, for the OpenAPI document and the tables of the documentation site."""

from typing import Any

from topics.api.v0.schedule_help import SCHEDULE_HELP
from topics.api.v0.transaction_help import TRANSACTION_HELP

_ANY = "*"
"""Fields that mean the same in every message."""

_SAME_AS = {
    "ConsumerPutAnswer": "ConsumerOut",
    "ConsumerCommitAnswer": "ConsumerOut",
    "ScheduleSummary": "ScheduleBody",
    "ScheduleOut": "ScheduleSummary",
    "SchedulePutAnswer": "ScheduleSummary",
    "RouterPutAnswer": "RouterBody",
    "RouterAnswer": "RouterPutAnswer",
    "NackBody": "AckBody",
    "ExtendBody": "AckBody",
    "BackupStarted": "BackupsAnswer",
    "Acks": "ReleaseRequest",
}
"""Messages that also have the fields of another one."""

_HELP: dict[str, dict[str, str]] = {
    **SCHEDULE_HELP,
    _ANY: {
        "topic": "Name of the topic.",
        "head_seq": "Highest seq assigned; 0 before the first record.",
        "earliest_seq": "Seq of the first live record; `head_seq` + 1 if there is none.",
        "skipped": (
            "Seqs of jobs that the worker does not hold: never claimed, done, expired, or claimed by another worker."
        ),
        "ready": "Jobs that can be claimed.",
        "in_flight": "Leased jobs, until their acknowledgement is committed.",
        "next_cursor": "`cursor` of the next page; left out on the last page.",
        "performance": "Durations of the request; missing when the request never reached its handler.",
        "epoch": "Identifies the topic: a topic that is deleted and created again has another epoch.",
        "$seq": "Seq of the record.",
        "$ts": "Commit time. Times never decrease within a topic.",
        "$node": "Producer of the record, if it has one.",
        "$tag": "Tag of the record, if it has one.",
        "data": "Payload, as it was sent.",
        "meta": "Headers, as they were sent.",
    },
    "AppendBody": {
        "records": "1 to `max_batch_records` records.",
        "node": "Default `node` of the records.",
        "idempotency_key": "An append with a key takes effect once within `idempotency_window_ms`.",
        "idempotency_check": "Refuse a key that was used for other records.",
        "create": "Whether to create a missing topic; `false` gives 404. Default: `auto_create` of `config`.",
        "config": "Config of a topic that this append creates; needs the scope `admin`, ignored if the topic exists.",
        "delay_ms": "Queues only: delay before the jobs can be claimed, at most 86400000.",
        "run_at": "Queues only: time from which the jobs can be claimed, instead of `delay_ms`.",
        "unique_key": (
            "Queues only, with one record: while a job with this key is ready, delayed or leased, nothing is appended, "
            "and the answer has its seq and `deduped`. 1 to 256 bytes."
        ),
        "priority": "Queues only: jobs of a higher priority are claimed first, those of one priority by seq.",
        "disable_backpressure": (
            "Wait up to 30 s instead of getting 429 under pressure or with a full log; caps still apply."
        ),
        "expected_head_seq": "Append only if this is the head of the topic; otherwise 409 `head_mismatch`.",
        "fence": "Append only if this is the fence token of the topic; otherwise 409 `fence_mismatch`.",
        "new_fence": "Fence token from these records on, at most 128 bytes; empty removes it.",
    },
    "FenceBody": {
        "new_fence": "Fence token, at most 128 bytes; empty removes it.",
        "fence": "Token that the topic is expected to have; empty for none.",
    },
    "FenceAnswer": {
        "fence": "Token of the topic; empty for none.",
    },
    "Condition": {
        "expected_head_seq": "Commit only if this is the head of the topic.",
        "fence": "Commit only if this is the fence token of the topic.",
    },
    "Record": {
        "data": "Any JSON, also null; returned as sent.",
        "tag": "Word to find and delete records by.",
        "node": (
            "The producer; consumers with the same `node` do not get the record back. Default: `node` of the batch."
        ),
        "meta": "Object of small headers, returned as sent; null is none.",
    },
    "AppendAnswer": {
        "first_seq": "First seq of the batch.",
        "last_seq": "Last seq of the batch.",
        "seqs": "All seqs of the batch.",
        "count": "Number of records in the batch.",
        "created": "Whether this append created the topic.",
        "deduped": "Whether the idempotency key was known and nothing was appended.",
        "differs": "Only with `deduped`, only as `true`: the key was used for other records.",
    },
    "DeleteBody": {
        "before_seq": "Records with a lower seq.",
        "match": (
            'Records with this tag: `["tag", "Eq", "order-1"]` or `"order-1"`; a prefix: `["tag", "Glob", "order-*"]`.'
        ),
    },
    "DeleteAnswer": {
        "deleted": "Number of records deleted.",
        "count": "Live records afterwards.",
        "bytes": "Live bytes of `data` and `meta` afterwards.",
    },
    "DiffBody": {
        "from_seq": "The cursor: only records with a higher seq. For new records only, use `head_seq` of the topic.",
        "limit": "Maximum of live records examined; 0 is 256, more than `max_limit` is clamped.",
        "node": (
            "A node or a list of nodes whose records are left out if the topic has `dedupe_node`; they count in "
            "`limit`."
        ),
        "include_tags": "Whether records have their `$tag`.",
        "include_meta": "Whether records have their `meta`.",
        "wait_ms": "Long-poll: how long to wait for records; more than 30000 is clamped.",
        "max_batch_bytes": (
            "Maximum of stored bytes; 0 is 1 MiB, more than the setting `max_batch_bytes` is clamped. One record "
            "is always returned."
        ),
        "filter": "Which records to return.",
        "since_ts": (
            "Instead of `from_seq`: start at this time, in milliseconds or as a date. Evicted or expired records "
            "before it are reported by a tombstone, as their times are unknown."
        ),
        "last": (
            "Instead of `from_seq`: start at the last N live records, at most `max_limit`; also the `limit`, "
            "unless that is given."
        ),
        "epoch": (
            "Epoch of the cursor, from an earlier answer. If the topic was recreated, the read starts over with a"
            " tombstone `recreated`."
        ),
    },
    "DiffAnswer": {
        "records": "Records in seq order.",
        "next_from_seq": "The next cursor.",
        "caught_up": "Whether the cursor has reached `head_seq`.",
        "tombstone": "Null, or a tombstone for records lost before these.",
        "lag": "`head_seq` - `next_from_seq`.",
        "epoch": "Epoch of the topic; send it along with the cursor.",
    },
    "Tombstone": {
        "gap_from": "First seq of the lost range.",
        "gap_to": "Last seq of the lost range; lower than `gap_from` if a recreated topic is empty.",
        "reason": "Cause of the loss.",
        "missed_estimate": (
            "Records lost, as far as known: some may have been deleted, and after a crash seqs that were only "
            "reserved do not count."
        ),
        "earliest_seq": (
            "First live seq after the gap, `gap_to` + 1; a consumer that continues there skips the gap. With "
            "`recreated` it is the first live seq of the topic."
        ),
        "head_seq": "Head of the topic now.",
    },
    "TopicSearchBody": {
        "q": "The query; an empty query matches every record.",
        "size": "1 to 500 hits.",
        "sort": "Sort keys: `_score`, `offset` or a field, each with `:asc` or `:desc`.",
        "search_after": "`next_search_after` of the previous page.",
        "timeout_ms": "Time for the query, at most 3000.",
        "track_total": "Counts all matches in `total`.",
        "explain": "Adds the parsed query and the work of each part of the plan.",
        "_source": "`false` leaves out `data`.",
        "fields": "Declared fields to return.",
        "highlight": "`true`, or text fields whose first match is returned with positions.",
        "rank": "`bm25` scores by rarity of words.",
    },
    "TopicSearchAnswer": {
        "hits": "Records that match, in the order of the sort keys.",
        "total": "Hits of this page, or all with `track_total`.",
        "next_search_after": "`search_after` of the next page; null on the last one.",
        "head_seq": "Head of the topic when the query began.",
        "timed_out": "Whether the time ended first; the hits are those found until then.",
        "coverage": "The records that were examined.",
        "explain": "Only on request: the parsed query and the plan.",
    },
    "TopicHit": {
        "score": "Score of the record.",
        "sort": "Values of the sort keys.",
        "fields": "Declared fields, as stored.",
        "highlights": "Text around the first match of each requested field.",
        "data": "The record in the current schema version.",
    },
    "TopicTotal": {
        "value": "Number of hits.",
        "relation": "`eq`, or `gte` if there may be more.",
    },
    "TopicCoverage": {
        "complete": "Whether every record up to the head was examined.",
        "missing_at_most": "Maximum of records that were not examined.",
        "first_missing_seq": "No record before this seq is missing; null if none is.",
        "spent": "The exhausted budget: `time`, `bytes` or `memory`.",
        "entries": "Records that were examined.",
        "scanned_bytes": "Bytes that were examined without an index.",
    },
    "TopicConfig": {
        "type": "Cannot change once the topic exists (409 `topic_exists_incompatible`).",
        "ttl_ms": "Retention time; 0 is forever.",
        "cap_records": "Maximum of live records; 0 is unlimited.",
        "cap_bytes": "Maximum of live bytes of `data` and `meta` as sent; 0 is unlimited.",
        "discard": (
            "At the cap: evict the oldest records (`old`), or refuse the append with 422 `topic_full` (`reject`)."
        ),
        "durable": (
            "Older form of `durability`, used if that is left out: `true` is `fsync`, `false` is `disk`. In "
            "answers: whether the class is `fsync`."
        ),
        "durability": "Durability class: what an acknowledged append survives.",
        "priority": "Fixed scheduling priority, -2³¹ to 2³¹-1; used as -1000 to 1000, answered as given.",
        "auto_priority": "Without `priority`: 500 when just consumed, halved every 30 s, 0 after five minutes.",
        "auto_create": "In the `config` of an append: whether it may create the topic.",
        "idempotency_window_ms": "How long idempotency keys are remembered; 0 disables them.",
        "dedupe_node": "Reads leave out records of the consumer's own `node`.",
        "lease_ms": "Queue: default lease (visibility timeout), clamped to 100 to 86400000.",
        "claim_jitter_ms": "Queue: how long claims are gathered before jobs are shared out, clamped to 0 to 5000.",
        "max_deliveries": "Queue: deliveries before a job moves to `dead_letter`; 0 is no limit.",
        "dead_letter": "Queue: name of the dead-letter topic.",
        "leases_durable": "Queue: leases and delivery counts survive a restart.",
        "retain_for_consumers": (
            "Caps and `ttl_ms` keep the records behind the slowest consumer while the topic has at most so many bytes; "
            "0 for not at all."
        ),
        "max_per_second": "Queue: most jobs that are handed out within any second; 0 is no limit.",
        "max_leased": "Queue: most jobs that are leased at once; 0 is no limit.",
        "fair_tags": "Queue: the next job is of the tag with the fewest leased jobs, instead of the oldest.",
        "result_retention_ms": "Queue: how long results of jobs are kept; 0 keeps none.",
    },
    "PutAnswer": {
        "config": "Complete config.",
        "created": "Whether the topic is new.",
    },
    "TopicAnswer": {
        "type": "Type of the topic.",
        "config": "Complete config.",
        "next_seq": "`head_seq` + 1.",
        "count": "Live records.",
        "bytes": "Live bytes of `data` and `meta`.",
        "effective_priority": (
            "Current priority: the fixed or automatic one, plus 100 for every second that watchers have waited."
        ),
        "last_write_ts": "Last append; null for never.",
        "last_read_ts": "Last read, watch, claim or state request; null for never.",
        "content_type": "Only of topics that were used as a stream: its content type.",
        "queue": "Queues only: its counters. `ready`, `in_flight` and `delayed` add up to `count`.",
    },
    "QueueCounters": {
        "delayed": "Jobs delayed by an append or a nack, or moving to or from the dead-letter topic.",
        "dead_lettered": "Jobs moved to the dead-letter topic since the queue was created.",
        "paused": "`true` while the queue is paused, otherwise left out.",
    },
    "ListAnswer": {
        "topics": "One object per topic.",
        "total": "Only on request: the topics on all pages.",
    },
    "TopicSummary": {
        "count": "Live records.",
        "bytes": "Live bytes of `data` and `meta`.",
        "effective_priority": "Current priority.",
        "queue": "Counters of a queue.",
        "durable": "Whether the class is `fsync`.",
        "content_type": "Only of topics that were used as a stream: its content type.",
    },
    "ListTotal": {
        "value": "Number of topics.",
        "relation": "`eq`, or `gte` from 20,000 on.",
    },
    "DropAnswer": {
        "deleted": "Whether the topic existed.",
        "routers_removed": "Sorted names of its routers, which are deleted as well.",
    },
    "ConsumerBody": {
        "from_seq": "The cursor: reads begin behind it.",
        "since_ts": "Instead: begin with the first record of this time or later, in milliseconds or as a date.",
        "last": "Instead: begin with the last so many records; 0 is the end of the topic.",
    },
    "ReadConsumerBody": {
        "limit": "As for a diff.",
        "node": "As for a diff.",
        "include_tags": "As for a diff.",
        "include_meta": "As for a diff.",
        "wait_ms": "As for a diff.",
        "max_batch_bytes": "As for a diff.",
        "filter": "As for a diff.",
    },
    "CommitConsumerBody": {
        "seq": (
            "The new cursor, such as `next_from_seq` of a read; above the head it is refused with 400. This, "
            "`since_ts` or `last` is required."
        ),
        "since_ts": "Instead of `seq`: everything before this time.",
        "last": "Instead of `seq`: everything but the last so many records.",
        "force": "Allow the cursor to move back.",
        "epoch": "The `epoch` of the read; if the topic was created again since, 409 `topic_recreated`.",
    },
    "ConsumerOut": {
        "consumer": "Name of the consumer.",
        "epoch": "Another number, and a higher one, for every later topic of this name.",
        "seq": "The committed cursor.",
        "head_seq": "Head of the topic.",
        "lag": "Number of seqs behind the cursor.",
        "lag_ms": "Age of the first of them, estimated within a sealed segment.",
        "created_ms": "Time of creation.",
        "committed_ms": "Time of the last commit.",
        "committed_by": "Name of the key of the last commit.",
        "lost": "Null, or the tombstone of the next read.",
        "losses": "The tombstones of all ranges that were lost since the cursor, at most 64; the first is `lost`.",
    },
    "ConsumerPutAnswer": {
        "created": "Whether the consumer is new.",
    },
    "ConsumerCommitAnswer": {
        "moved": "Whether the commit moved the cursor.",
    },
    "ConsumerDropAnswer": {
        "consumer": "Name of the consumer.",
        "deleted": "Whether the consumer existed.",
    },
    "ConsumerListAnswer": {
        "consumers": "The consumers of this page.",
    },
    "RouterBody": {
        "source": "Topic to copy from.",
        "dest": "Topic to copy into.",
        "preserve_node": "Keep `$node`, so that consumers can leave out their own records.",
        "preserve_tag": "Keep `$tag`.",
        "create_dest": "Create a missing destination; otherwise 404.",
        "filter": "Copy only records whose tag matches, in the form of `match` of a delete.",
        "allow_cycle": "Allow a cycle; a record is then copied at most eight times within it.",
        "guarantee": (
            "`at_least_once`, or `exactly_once`: stamp copies, and skip records whose stamp is in the destination."
        ),
        "from_seq": "New routers: start after this seq of the source; 0 copies everything. Default: the head.",
    },
    "RouterSummary": {
        "router": "Name of the router.",
        "source": "Topic to copy from.",
        "dest": "Topic to copy into.",
        "guarantee": "`at_least_once` or `exactly_once`.",
        "forwarded_total": "Copies since the router was created.",
    },
    "RouterPutAnswer": {
        "router": "Name of the router.",
        "created": "Whether the router is new.",
        "filter": "The filter in its long form.",
    },
    "RouterAnswer": {
        "forwarded_total": "Copies since the router was created.",
        "lag": "Seqs of the source not forwarded yet.",
        "blocked": "Whether it waits for room in its destination, or cannot proceed otherwise.",
        "blocked_by": (
            "Only then: the error code an append would get, such as `topic_full` or `stream_closed`; `schema` if "
            "the destination's schema or profile refuses the next record."
        ),
        "blocked_seq": (
            "Only with `schema`: the refused source record. The router continues when the schema changes or the "
            "record is deleted."
        ),
    },
    "RouterListAnswer": {
        "routers": "One object per router.",
    },
    "RouterDropAnswer": {
        "router": "Name of the router.",
        "deleted": "Whether the router existed.",
    },
    "ClaimBody": {
        "node": "Name of the worker, unique among workers, at most `max_node_bytes`.",
        "max": "Maximum of jobs; 0 is 1, more than `max_claim` is clamped.",
        "lease_ms": "Length of the lease, clamped to 100 to 86400000. Default: that of the config.",
    },
    "ClaimAnswer": {
        "claimed": "Jobs by seq.",
        "count": "Number of jobs claimed.",
        "ready": "Jobs still ready.",
    },
    "JobOut": {
        "lease_id": "Identifies this delivery, for fencing.",
        "deadline": "End of the lease.",
        "deliveries": "Number of deliveries, this one included.",
    },
    "AckBody": {
        "result": "The result of the job, at most 64 KiB of JSON; needs one seq and `result_retention_ms`.",
        "node": "Name of the worker.",
        "seqs": "The jobs, at most `max_claim`.",
        "lease_ids": (
            'Fencing: the `lease_id` of each job in the same order, `""` for none. A job whose lease has another '
            "id is skipped."
        ),
    },
    "AckAnswer": {
        "acked": "Number of jobs deleted.",
    },
    "NackBody": {
        "delay_ms": "Delay before the next delivery, at most 86400000.",
        "reason": "Why the jobs failed, at most 1024 bytes; dropped when the memory budget of the server is used up.",
        "fatal": (
            "Move the jobs to the dead-letter topic now; `invalid_request` for a queue whose config has no "
            "`dead_letter`."
        ),
    },
    "NackAnswer": {
        "nacked": (
            "Number of jobs returned, or given up if `fatal`; a delayed job is neither in `ready` nor in `in_flight`."
        ),
        "dead_lettered": (
            "Number of jobs that a `fatal` nack moved, left out if none; others follow when the dead-letter topic "
            "accepts them."
        ),
    },
    "ExtendBody": {
        "lease_ms": "Length from now, clamped to 100 to 86400000.",
    },
    "ExtendAnswer": {
        "extended": "Number of leases extended.",
        "skipped": "Jobs that the worker does not hold; it should stop work on them.",
        "deadlines": "New deadline of each extended job, by seq.",
    },
    "RedriveBody": {
        "max": "Maximum; 0 is 1, more than `max_claim` is clamped. Fewer are moved if they are large: see `more`.",
        "source": "Topic to take them from. Default: `dead_letter` of the config.",
    },
    "RedriveAnswer": {
        "source": "The dead-letter topic.",
        "moved": "Number of jobs moved.",
        "first_seq": "First of their new seqs; 0 if none.",
        "last_seq": "Last of their new seqs; 0 if none.",
        "more": "Whether more may be left.",
    },
    "LeasesAnswer": {
        "leases": "One object per lease, by seq.",
        "next_after": "`after` of the next page; left out on the last one.",
    },
    "LeaseOut": {
        "$seq": "Seq of the job.",
        "node": "Name of the worker.",
        "deadline": "End of the lease.",
        "deliveries": "Number of deliveries.",
    },
    "JobsAnswer": {
        "state": "State of the jobs.",
        "jobs": "Jobs by seq. A page may be short, or empty, while there is a `next_cursor`.",
    },
    "JobStateOut": {
        "$seq": "Seq of the job; of a dead letter its seq in the dead-letter topic.",
        "state": "`ready`, `leased`, `delayed` or `dead`.",
        "deliveries": "Number of deliveries; left out if 0.",
        "priority": "Priority of the job; left out if 0.",
        "worker": "Name of the worker that holds the job.",
        "deadline": "End of its lease.",
        "ready_at": "End of its delay.",
        "first_failure": "Time of the first failure.",
        "failures": "The last three failures, the newest at the end; of a dead letter the last one.",
    },
    "JobFailureOut": {
        "delivery": "Number of the delivery that failed.",
        "at": "Time of the failure.",
        "worker": "Name of the worker; left out if unknown.",
        "reason": "Reason of the nack, or `lease expired`; left out if none.",
        "fatal": "Whether the worker gave the job up.",
    },
    "CancelBody": {
        "dead": "Whether the seq is that of a dead letter of the queue.",
    },
    "JobAnswer": {
        "seq": "Seq of the job, after a retry its new one.",
        "changed": "`false` if the job is in a state that the operation is not for.",
        "state": "State of the job now; null if it is gone.",
    },
    "QueueBody": {
        "paused": "Whether to stop handing out jobs.",
    },
    "QueueAnswer": {
        "paused": "Whether the queue hands out no jobs.",
    },
    **TRANSACTION_HELP,
    "WatchBody": {
        "topics": "Object: where to begin for each topic; `{}` is the beginning.",
        "node": "A node or a list of nodes whose records are left out.",
        "limit": "Records per event; 0 is 256, more than `max_limit` is clamped.",
        "max_batch_bytes": (
            "Record bytes per event; 0 is 1 MiB, more than the setting `max_batch_bytes` is clamped. One record "
            "always fits."
        ),
        "heartbeat_ms": "Silence before a heartbeat, clamped to 1000 to 60000.",
        "include_data": "Whether records have `data`.",
        "include_meta": "Whether records have `meta`. Default: as `include_data`.",
        "include_tags": "Whether records have `$tag`.",
        "consistency": "`strong` delivers records only after a sync, whatever the class (`ephemeral` is never synced).",
        "cursor": "`id` of an event of an earlier watch; overrides `from_seq` and `tail` of its topics.",
    },
    "WatchFrom": {
        "from_seq": "Only records with a higher seq.",
        "tail": "Begin at the head, whatever `from_seq` is.",
        "epoch": "Epoch of the cursor. If the topic was recreated, it starts over with a tombstone `recreated`.",
    },
    "WatchAnswer": {
        "wid": "Unguessable id of the session.",
        "stream_url": "Path of its event stream.",
        "session_ttl_ms": "Lifetime without an open stream.",
        "topics": "Where each topic begins.",
    },
    "WatchPosition": {
        "from_seq": "The cursor where the watch begins.",
    },
    "TokenBody": {
        "ttl_ms": "Lifetime, 1 to 3600000.",
    },
    "TokenAnswer": {
        "token": "The token.",
        "expires_ms": "Time of expiry.",
    },
    "HealthAnswer": {
        "status": "`ok`.",
        "version": "Server version.",
        "uptime_ms": "Time since the start.",
    },
    "ReadyAnswer": {
        "status": "`ready`, or `read_only` if `read_only_shards` is not empty.",
        "wal_replay_complete": "True.",
        "topics": "Number of topics.",
        "read_only_shards": "Log shards that refuse writes; all of them once the data folder was removed or replaced.",
        "disk_full": "Whether only requests that free space are accepted.",
        "backup_lag_ms": "Age of the newest state in the backup storage; null before the first backup.",
        "primary_term": "Term of this primary; null without a lease.",
        "role": "`primary`, or `standby` for a server that serves reads only.",
        "primary": "Standby: URL of the primary, null while unknown.",
        "lag_ms": "Standby: how far its state is behind; null on a primary.",
    },
    "SelfAnswer": {
        "version": "Server version.",
        "keys_required": "Whether the server has keys.",
        "key": "Rights of the caller's key.",
        "limits": "Limits in force, by setting.",
    },
    "KeyAnswer": {
        "name": "Name in the key file, or `#1` for the first of `TOPICS_API_KEYS`; empty without keys.",
        "scopes": "Scopes of the key.",
        "prefixes": "Prefixes of the names it may access; none means all.",
    },
    "PipelineAnswer": {
        "state": (
            "`off`; `unavailable` with the reason; `idle`; `running`, supervised or by hand; `waiting` before a "
            "retry; `paused`."
        ),
        "requests": "Requests that wait.",
        "paused": "Only while the server's pipeline is paused.",
        "reason": "Why the pipeline is unavailable.",
        "lag_segments": "Unprocessed sealed segments; with `archive` also counted while `pipeline` is `off`.",
        "lag_records": "Their records.",
        "lag_bytes": "Their bytes.",
        "lag_ms": "Age of their oldest record.",
        "rows": "Rows in the archive's table after the last round.",
        "rounds": "Rounds that published something.",
        "records": "Published records.",
        "bytes": "Published bytes.",
        "segments": "Published segments.",
        "failures": "Failed rounds and runs since the last success; a process that was killed or did not start counts.",
        "error": "Error of the last failure.",
        "restarts": "Unexpected exits of the process since the server started.",
        "last_run": "Last round with work.",
        "quarantined": "Topics that are skipped for now.",
        "products": "State of each product.",
        "worker": "The process after Spark has started.",
        "run": "The current run or the last one, also by hand.",
    },
    "PipelineRun": {
        "started_ms": "Start of the round.",
        "took_ms": "Its duration.",
        "records": "Records read.",
        "bytes": "Bytes read.",
        "segments": "Segments read.",
        "records_per_s": "Speed.",
    },
    "QuarantinedTopic": {
        "product": "The product that failed.",
        "reason": "Its error.",
        "since_ms": "First failure.",
        "attempts": "Number of attempts.",
        "retry_at_ms": "Time of the next attempt.",
    },
    "PipelineProduct": {
        "product": "Name of the product.",
        "lag_segments": "Unprocessed sealed segments.",
        "lag_records": "Their records.",
        "lag_bytes": "Their bytes.",
        "lag_ms": "Age of their oldest record.",
        "quarantined": "Number of topics that are skipped for now.",
        "error": "Error, if it skipped the last round.",
        "rows": "Rows of its tables.",
        "records": "Published records.",
        "bytes": "Published bytes.",
        "segments": "Published segments.",
        "records_per_s": "Speed.",
        "failures": "Failed rounds since the last success.",
    },
    "PipelineWorker": {
        "start_ms": "Start-up time of Spark.",
        "memory_bytes": "Memory of the process, Java and task workers after the last round.",
    },
    "PipelineProcess": {
        "by": "The process.",
        "started_ms": "Its start.",
        "updated_ms": "Time of its last report.",
        "ended_ms": "Its end.",
        "rounds": "Rounds of this run.",
        "records": "Records of this run.",
        "bytes": "Bytes of this run.",
        "error": "Its error.",
        "job": "The Spark job that runs, or null.",
    },
    "PipelineJob": {
        "about": "Its description.",
        "started_ms": "Its start.",
        "tasks": "Number of its tasks.",
        "tasks_done": "Tasks that are done.",
        "bytes": "Bytes that all tasks read.",
        "bytes_done": "Bytes that tasks have read.",
    },
    "MetricsHistory": {
        "step_ms": "Time between two points.",
        "end_ms": "Time of the last point.",
        "series": (
            "By metric: its values, the oldest first; null for a step without a value. A point of a minute is the"
            " highest value in it."
        ),
    },
    "BackupsAnswer": {
        "place": "Backup storage.",
        "lineage": "Id of this data folder in the storage; folders can share one.",
        "running": "Whether a backup is running.",
        "interval_ms": "Time between scheduled backups; 0 is never.",
        "lag_ms": "Age of the newest state stored by this run; null before the first backup.",
        "ship_ms": "Interval at which the log is shipped; 0 is never.",
        "shipped_moment_ms": (
            "Everything logged until then is in the storage; null before the first backup of this run."
        ),
        "ship_error": "Error of the last log shipment, or null.",
        "completed": "Completed backups since the start.",
        "failures": "Failed backups since the start.",
        "error": "Error of the last backup, or null.",
        "backups": "Complete backups, oldest first.",
    },
    "BackupInfo": {
        "number": "Number of the backup.",
        "made_ms": "Time of the backup.",
        "moment_ms": "Everything logged until then is in it.",
        "topics": "Number of topics.",
        "bytes": "Bytes of all its files, which backups share.",
        "before": (
            "Point-in-time restore is possible between that backup and this one; null if there is no log in between."
        ),
        "release": "Server version that made it.",
    },
    "ErrorAnswer": {
        "error": "The error.",
    },
    "ErrorBody": {
        "code": "Stable word to branch on.",
        "message": "Sentence for people; may change.",
        "detail": "Values that belong to the code; may be missing.",
    },
    "Performance": {
        "server_total_ms": "From the end of the request head to the answer.",
        "wal_append_ms": "Append: write of the group commit that contained the batch.",
        "fsync_ms": "Append: the sync it waited for, or 0.",
        "records_scanned": "Read: number of seqs examined.",
        "throttle_wait_ms": (
            "Delay by backpressure: of an append before it was admitted, of a long-poll before it was woken."
        ),
    },
    "ListedStream": {
        "name": "Name of the stream.",
        "created_at": "Time of creation.",
        "expires_at": "Time of expiry, or null.",
        "next_offset": "Offset of the end.",
        "sealed_through": "Last offset in sealed segments.",
        "uploaded_through": "Last offset in the cold tier.",
        "profile": "Kind of the profile, or null.",
    },
    "SubscriptionRequest": {
        "type": "`pull-wake` or `webhook`.",
        "pattern": "Glob of stream names.",
        "streams": "Streams of the subscription.",
        "webhook": "Where to send wake-ups.",
        "wake_stream": "Stream that receives wake-ups.",
        "lease_ttl_ms": "Length of a claim without an ack.",
        "description": "Text for people.",
    },
    "Webhook": {
        "url": "Address that receives wake-ups.",
    },
    "ClaimRequest": {
        "worker": "Name of the worker.",
    },
    "ReleaseRequest": {
        "wake_id": "Id of the wake-up.",
        "generation": "Generation of the claim.",
    },
    "Acks": {
        "acks": "Processed offset of each stream.",
        "done": "Whether the worker releases the claim.",
    },
    "Ack": {
        "stream": "Name of the stream.",
        "offset": "Everything up to here is processed.",
    },
    "LinkRequest": {
        "streams": "Streams to add.",
    },
    "PipelineRequest": {
        "kind": "Kind of the request.",
        "stream": "Stream of a rebuild, or null.",
        "by": "Name of the key that sent it.",
        "since_ms": "Time of the request.",
    },
    "PipelinePause": {
        "by": "Name of the key that paused the pipeline.",
        "since_ms": "Time of the pause.",
    },
}


def field_help(message: str, field: str) -> str | None:
    """The description of a field of a message, or None."""
    name: str | None = message
    while name is not None:
        if text := _HELP.get(name, {}).get(field):
            return text
        name = _SAME_AS.get(name)
    return _HELP[_ANY].get(field)


def describe(components: dict[str, Any]) -> None:
    """Adds the descriptions to the schemas of the messages. A patch of a config has those of the config."""
    for name, schema in components.items():
        for field, described in schema.get("properties", {}).items():
            text = field_help("TopicConfig" if name == "TopicConfigPatch" else name, field)
            if text is not None:
                described["description"] = text
