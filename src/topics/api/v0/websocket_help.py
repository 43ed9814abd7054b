"""Descriptions of the fields of WebSocket commands and frames, for the documentation site."""

FIELDS = {
    "publish": (
        (
            "field of `publish`",
            "default",
            "meaning",
        ),
        (
            "`topic`",
            "required",
            "its name",
        ),
        (
            (
                "`records`, `node`, `idempotency_key`, `idempotency_check`, `create`, `config`, `delay_ms`, "
                "`run_at`, `priority`, `unique_key`, `disable_backpressure`, `expected_head_seq`, `fence`, `new_fence`"
            ),
            "",
            "as in an append",
        ),
        (
            "`return_seqs`",
            "`true`",
            "whether the `ack` has `seqs`",
        ),
    ),
    "subscribe": (
        (
            "field of `subscribe`",
            "default",
            "meaning",
        ),
        (
            "`topic`",
            "none",
            "one topic, with the three fields below",
        ),
        (
            "`from_seq`",
            "0",
            "the cursor: only records with a higher seq",
        ),
        (
            "`tail`",
            "`false`",
            "begin at the head",
        ),
        (
            "`epoch`",
            "none",
            "epoch of the cursor. If the topic was recreated, it starts over with a tombstone `recreated`",
        ),
        (
            "`topics`",
            "none",
            "several topics: object with the three fields, or null, per name; may be combined with `topic`",
        ),
        (
            "`node`",
            "none",
            "a node or a list of nodes whose records are left out",
        ),
        (
            "`limit`",
            "1000",
            "records per frame; more than `max_limit` is clamped",
        ),
        (
            "`max_batch_bytes`",
            "0",
            "record bytes per frame; 0 is 1 MiB, more than the setting is clamped",
        ),
        (
            "`include_data`",
            "`true`",
            "whether records have `data`",
        ),
        (
            "`include_tags`",
            "`false`",
            "whether records have `$tag`",
        ),
        (
            "`include_meta`",
            "as `include_data`",
            "whether records have `meta`",
        ),
    ),
    "unsubscribe": (
        (
            "field of `unsubscribe`",
            "meaning",
        ),
        (
            "`topic`, `topics`",
            "a topic, or a list of topics, to stop following",
        ),
    ),
    "frame": (
        (
            "field of a frame",
            "meaning",
        ),
        (
            "`request_id`",
            "that of the command",
        ),
        (
            "`topic`",
            "topic of the frame",
        ),
        (
            "`topics`",
            "`subscribed`: object by name; `unsubscribed`: list of names",
        ),
        (
            "`first_seq`, `last_seq`, `seqs`, `count`, `created`, `deduped`, `differs`, `performance`",
            "as in the answer to an append",
        ),
        (
            "`records`",
            "as in the answer to a read",
        ),
        (
            "`from_seq`",
            "cursor before the records, or start of a subscription",
        ),
        (
            "`to_seq`",
            "cursor after the records, also past records left out: subscribe from here to resume",
        ),
        (
            "`head_seq`, `earliest_seq`",
            "state of the topic",
        ),
        (
            "`epoch`",
            "epoch of the topic; send it along with the cursor",
        ),
        (
            "`gap_from`, `gap_to`",
            "lost range, both ends included",
        ),
        (
            "`reason`",
            "`tombstone`: as in a read; `topic_deleted`: `deleted`",
        ),
        (
            "`code`, `message`, `detail`",
            "as in every error",
        ),
    ),
}
"""By command, and `frame` for all frames: the head of the table, then its rows."""
