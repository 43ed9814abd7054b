"""The reference of error codes: details, meaning and action, for the documentation site and the OpenAPI document."""

from typing import NamedTuple


class ErrorHelp(NamedTuple):
    """An error code, for people."""

    detail: str
    """The members of `detail`, or none."""
    meaning: str
    action: str


ERROR_HELP: dict[str, ErrorHelp] = {
    "invalid_request": ErrorHelp(
        "`field` where known; for a limit also `bytes`, `chars` or `keys`, and `max`",
        "not JSON, a wrong type, a value out of range, a bad name or config, or not valid HTTP",
        "correct `field`",
    ),
    "batch_too_large": ErrorHelp(
        "`records` or `seqs`, `max`",
        "too many records in an append, or too many jobs in one call (413 in /v1)",
        "split the batch",
    ),
    "record_too_large": ErrorHelp(
        "record: `index`, `bytes`, `max`; batch: `topic`, `cap_records`, `cap_bytes`",
        (
            "a record is over its limit, or the batch is larger than the cap of a topic with `discard` of "
            "`reject` (413 in /v1)"
        ),
        "make the record or the batch smaller",
    ),
    "transaction_too_large": ErrorHelp(
        "`what` of `parts`, `records` or `bytes`, `max`",
        "the transaction would exceed a limit; staged parts are kept",
        "commit and begin another transaction, or raise the limit",
    ),
    "topic_not_found": ErrorHelp(
        "`topic`",
        "the topic does not exist, and the request may not create it",
        "create it, or correct the name",
    ),
    "topic_exists_incompatible": ErrorHelp(
        (
            "`topic`, `existing_type`, `requested_type`; router: `reason` of `router_dest_fan_in` or "
            "`router_repoint_forbidden`, `source`, `dest`"
        ),
        "the type of a topic cannot change, a router cannot change its topics, and a destination has one source",
        "keep what exists, or delete it first",
    ),
    "topic_not_empty": ErrorHelp(
        "`topic`, `count`",
        "a delete with `if_empty` found records, or records in flight",
        "empty the topic, or drop the condition",
    ),
    "consumer_not_found": ErrorHelp(
        "`topic`, `consumer`",
        "the topic has no consumer of that name",
        "create it, or correct the name",
    ),
    "schedule_not_found": ErrorHelp(
        "`schedule`",
        "there is no schedule of that name; one is deleted with its topic",
        "create it, or correct the name",
    ),
    "job_not_found": ErrorHelp(
        "`topic`, `seq`",
        "the queue has no such job, or no such dead letter: it is done, or never was",
        "list the jobs of the queue",
    ),
    "topic_recreated": ErrorHelp(
        "`topic`, `epoch`",
        "the request names the epoch of an earlier topic of this name",
        "read the topic from its start",
    ),
    "router_not_found": ErrorHelp(
        "`router`",
        "the router does not exist",
        "create it, or correct the name",
    ),
    "router_cycle": ErrorHelp(
        "`cycle`, which begins and ends with the source; a name the key may not access is null",
        "the router would close a cycle",
        "leave it out, or set `allow_cycle`",
    ),
    "not_a_queue": ErrorHelp(
        "`topic`",
        "a queue operation or a delayed append on a topic of type `log`",
        "correct the name, or create the topic with `type` `queue`",
    ),
    "topic_full": ErrorHelp(
        "`topic`, `cap_records`, `cap_bytes`, `head_seq`, `earliest_seq`",
        "a topic with `discard` of `reject` is at its cap; nothing was appended",
        "retry when consumers have made room",
    ),
    "stream_closed": ErrorHelp(
        "`stream`",
        "the stream was closed",
        "write to another stream",
    ),
    "stream_gone": ErrorHelp(
        "`stream`",
        "the stream was deleted while it has forks",
        "use another name, or delete the forks",
    ),
    "system_stream": ErrorHelp(
        "`stream`",
        "/v1: only the server writes to this stream",
        "read it only",
    ),
    "stream_conflict": ErrorHelp(
        "`stream`, `setting` or `content_type`",
        "/v1: the stream exists with other settings or another content type",
        "use it as it was created",
    ),
    "idempotency_conflict": ErrorHelp(
        "`topic`, `first_seq`, `last_seq`",
        "the key was used for other records, and `idempotency_check` is set",
        "use another key",
    ),
    "head_mismatch": ErrorHelp(
        "`topic`, `expected_head_seq`, `head_seq`",
        "the topic has another head than the append expected",
        "read the new records, then decide again",
    ),
    "fence_mismatch": ErrorHelp(
        "`topic`, `fence`",
        "the topic has another fence token than the append named",
        "stop: another writer has taken over",
    ),
    "sequence_conflict": ErrorHelp(
        "`given`, `last`",
        "/v1: `Stream-Seq` is not above the last one",
        "read what another writer appended, then decide",
    ),
    "producer_gap": ErrorHelp(
        "`producer`, `expected_seq`, `received_seq`",
        "/v1: a producer's batch arrived before its predecessor",
        "send the missing batches first",
    ),
    "producer_fenced": ErrorHelp(
        "`producer`, `epoch`",
        "/v1: a later epoch of the producer is active",
        "stop, or begin a higher epoch",
    ),
    "offset_gone": ErrorHelp(
        "`stream`; of a loss also `first`, `last`, `lost_by`",
        "/v1: the offset belongs to a deleted stream, or the entries after it are lost",
        "read from the start",
    ),
    "transaction_not_found": ErrorHelp(
        "`transaction`",
        "the transaction is not open: never begun, aborted, or expired with its staged records",
        "begin it and stage everything again",
    ),
    "transaction_foreign": ErrorHelp(
        "`transaction`",
        "another key began it, and it is still open",
        "use that key, or another id",
    ),
    "transaction_fenced": ErrorHelp(
        "`transaction`, `sequence` of the open one",
        "another attempt or a later sequence began; staged records of this one are dropped",
        "stop: another worker does the same work",
    ),
    "transaction_sequence": ErrorHelp(
        "`transaction`, `sequence`, `committed`",
        "this sequence or a later one is already committed",
        "stop, or continue with a higher sequence",
    ),
    "transaction_incomplete": ErrorHelp(
        "`transaction`, `missing`, `first_missing`",
        "the commit names parts that are not staged",
        "stage them, and commit again",
    ),
    "throttled": ErrorHelp(
        "limit: `limit`, `max`; backpressure: `retry_after_ms`",
        (
            "`limit` names the setting that is reached (429 in limits); without it, backpressure or a full log "
            "refuses the write"
        ),
        "with `limit`, free resources or raise the setting; otherwise wait `retry_after_ms`",
    ),
    "cold_store_unavailable": ErrorHelp(
        "none",
        "old records are in an object store that does not answer; nothing is lost, newer records can be read",
        "retry; check the object store",
    ),
    "remote_unavailable": ErrorHelp(
        "`in_doubt`",
        (
            "the backup storage does not take the log, which class `remote` waits for; `in_doubt` true: the "
            "write is on the local disk"
        ),
        "retry with the same idempotency key; check the storage",
    ),
    "lease_ended": ErrorHelp(
        "`retry_after_ms`",
        "the primary could not renew its lease in the backup storage; reads work, nothing was written",
        "retry, or find the primary",
    ),
    "not_primary": ErrorHelp(
        "`primary`: its URL or null",
        "this server is a standby, or another one took over; nothing was done",
        "send the request to the primary",
    ),
    "disk_full": ErrorHelp(
        "`retry_after_ms`",
        "the disk is full; reads and deletes work",
        "delete data or add space; writes resume by themselves",
    ),
    "system_busy": ErrorHelp(
        "`retry_after_ms`",
        "no file descriptors or memory left for this request",
        "wait `retry_after_ms`",
    ),
    "search_unavailable": ErrorHelp(
        "none",
        "the search process could not answer; everything else works",
        "retry, which starts a new process",
    ),
    "transaction_busy": ErrorHelp(
        "`transaction`",
        "a commit of the transaction is in flight",
        "wait a moment; a repeated commit waits by itself",
    ),
    "backup_running": ErrorHelp(
        "none",
        "another backup is running",
        "wait until `GET /v0/backups` has `running` of `false`",
    ),
    "backup_failed": ErrorHelp(
        "none",
        "the checkpoint failed, or the backup storage cannot be read or written; earlier backups are unchanged",
        "read the message; scheduled backups are retried",
    ),
    "not_ready": ErrorHelp(
        "`replay_progress`, 0.0 to 1.0",
        "the log is being replayed after a start",
        "wait",
    ),
    "append_timeout": ErrorHelp(
        "none",
        "/v1: the log took too long; the outcome of the append is unknown",
        "read the stream, then decide",
    ),
    "shutting_down": ErrorHelp(
        "none",
        "the server is stopping and accepts no new requests",
        "wait for the restart",
    ),
    "backup_target": ErrorHelp(
        "none",
        (
            "the backups do not contain the requested state, the target folder is not empty, or two topics "
            "would have one name"
        ),
        "request another state, or restore into another folder",
    ),
    "read_only": ErrorHelp(
        "`shard`, `cause`",
        "a write or sync of this log shard failed, and it refuses writes; reads work",
        "repair the disk, restart",
    ),
    "corrupt_segment": ErrorHelp(
        "`topic`, `from_seq`, `to_seq`",
        "stored records of this range, both ends included, cannot be read",
        "read on from `to_seq`; run `topics verify`",
    ),
    "damage": ErrorHelp(
        "`findings`: for each `where`, `what`, `byte_range`, `seq_range`, `topic`",
        "the data folder has damage that a crash cannot cause; the server does not start",
        "verify, then restore or repair",
    ),
    "no_backup_place": ErrorHelp(
        "none",
        "`backup_dir` is not set",
        "set it and restart",
    ),
    "damaged_backup": ErrorHelp(
        "`files`: for each `name`, `why`",
        "files of the backup are missing or changed; nothing was restored",
        "restore another backup",
    ),
    "newer_format": ErrorHelp(
        "`where`, `what`",
        "a newer release wrote a file of the data folder; the server does not start, nothing was changed",
        "start that release or a later one",
    ),
    "folder_busy": ErrorHelp(
        "`folder`, `owner`",
        "another process owns the data folder; the server does not start",
        "stop that process",
    ),
    "internal": ErrorHelp(
        "none",
        "a bug in the server; its log has the traceback",
        "report it with the log lines around it",
    ),
    "invalid_json": ErrorHelp(
        "none",
        "WebSocket: the message is not a JSON object with a known `op`",
        "correct it",
    ),
    "unauthorized": ErrorHelp(
        "none",
        "no bearer token, or an unknown one; with `WWW-Authenticate: Bearer`",
        "send a key",
    ),
    "forbidden": ErrorHelp(
        "`scope` or `name`",
        "the key lacks the scope, or may not access the name",
        "use another key",
    ),
    "not_found": ErrorHelp(
        "none",
        "nothing at this path, or an unknown watch session",
        "correct the path, or create a session",
    ),
    "method_not_allowed": ErrorHelp(
        "`allowed`",
        "the path has other methods, also listed in `Allow`",
        "use one of them",
    ),
    "not_acceptable": ErrorHelp(
        "none",
        "the answer is an event stream, and `Accept` excludes it",
        "accept `text/event-stream`",
    ),
    "request_timeout": ErrorHelp(
        "none",
        "the request did not arrive in time, or was not answered in time",
        "retry",
    ),
    "slow_consumer": ErrorHelp(
        "none",
        "WebSocket: the client read nothing for `slow_consumer_timeout_ms`",
        "read faster, and resume from the cursors",
    ),
    "payload_too_large": ErrorHelp(
        "none",
        "the body is over its limit, before or after decompression",
        "split the batch",
    ),
    "unsupported_media_type": ErrorHelp(
        "none",
        "the body is not `application/json`, or its coding is not gzip",
        "correct the headers",
    ),
    "unsupported_message": ErrorHelp(
        "none",
        "WebSocket: the message is binary",
        "send text",
    ),
    "expectation_failed": ErrorHelp(
        "none",
        "an `Expect` other than `100-continue`",
        "leave it out",
    ),
    "upgrade_required": ErrorHelp(
        "none",
        "the path needs a WebSocket handshake of version 13",
        "use a WebSocket client",
    ),
    "headers_too_large": ErrorHelp(
        "none",
        "the request line and headers are too large",
        "shorten them",
    ),
    "not_implemented": ErrorHelp(
        "none",
        "an unknown transfer coding, or `CONNECT`; with status 505, an HTTP version other than 1.0, 1.1 and 2",
        "use HTTP/1.1",
    ),
    "ALREADY_CLAIMED": ErrorHelp(
        "none",
        "/v1 subscriptions: another worker holds the claim",
        "wait, or use another subscription",
    ),
    "FENCED": ErrorHelp(
        "none",
        "/v1 subscriptions: the claim was given to another worker",
        "stop work on it",
    ),
    "NO_PENDING_WORK": ErrorHelp(
        "none",
        "/v1 subscriptions: nothing to claim",
        "wait for the next wake-up",
    ),
    "SUBSCRIPTION_CONFLICT": ErrorHelp(
        "none",
        "/v1: the subscription exists with other settings",
        "use it as it is, or delete it",
    ),
    "SUBSCRIPTION_NOT_FOUND": ErrorHelp(
        "none",
        "/v1: the subscription does not exist",
        "create it",
    ),
    "INVALID_TOKEN": ErrorHelp(
        "none",
        "/v1 subscriptions: the claim token is wrong or expired",
        "claim again",
    ),
    "WEBHOOK_URL_REJECTED": ErrorHelp(
        "none",
        "/v1: the webhook URL is not allowed",
        "use a public https address",
    ),
}
"""By code. Rows that name /v1 occur only there."""
