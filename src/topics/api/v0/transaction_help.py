"""Descriptions of the fields of transactions (`topics.api.field_help`)."""

TRANSACTION_HELP: dict[str, dict[str, str]] = {
    "TransactionBody": {
        "id": "1 to 255 of A-Z a-z 0-9 . _ : - beginning with a letter or digit.",
        "sequence": "From 0; a higher one replaces an open one.",
        "attempt": (
            "Name that several workers share: the open attempt is joined, another name begins a new attempt. "
            "Default: generated."
        ),
        "timeout_ms": "Idle time before the abort; 0 is `transaction_timeout_ms`, more is clamped to it.",
    },
    "TransactionAnswer": {
        "id": "Id of the transaction.",
        "sequence": "Its sequence.",
        "state": "`open`, `committed` or `aborted`.",
        "attempt": "Open: the attempt to name in stage and commit.",
        "parts": "Open: number of staged parts.",
        "records": "Records that are staged or committed; 0 when aborted.",
        "bytes": "Open: staged payload bytes.",
        "expires_ts": "Open: time of the abort unless more is staged.",
        "deduped": "Committed: whether it was committed before and nothing changed.",
        "topics": "Committed: one object per topic.",
    },
    "StageBody": {
        "sequence": "As begun.",
        "attempt": "Another one than the open attempt is `transaction_fenced`. Default: the open one.",
        "part": "A name in the form of an `id`.",
        "topic": "Destination of the records.",
        "records": "As in an append.",
        "node": "Default `node` of the records.",
        "create": "As in an append, for a topic that does not exist at the commit.",
        "config": "As in an append, for a topic that does not exist at the commit.",
        "delay_ms": "As in an append; begins at the commit.",
        "run_at": "As in an append.",
        "priority": "As in an append.",
    },
    "StageAnswer": {
        "id": "Id of the transaction.",
        "sequence": "Its sequence.",
        "attempt": "Attempt that staged the part.",
        "part": "Name of the part.",
        "count": "Records of the part.",
        "records": "Records of the whole transaction.",
        "bytes": "Bytes of the whole transaction.",
    },
    "CommitBody": {
        "conditions": "Conditions by topic: `expected_head_seq` and `fence`, of topics that the commit appends to.",
        "sequence": "As begun.",
        "attempt": "Which attempt to commit. Default: the open one.",
        "parts": (
            "The parts that count, in this order; others are dropped. For workers that may have staged twice. "
            "Default: all, in staging order."
        ),
    },
    "AbortBody": {
        "sequence": "As begun.",
        "attempt": "Which attempt to abort. Default: the open one.",
    },
    "PlacedOut": {
        "first_seq": "First seq of the records.",
        "last_seq": (
            "Last seq of the records. In a transaction of more than 5,000 records or 512 KiB, records of other "
            "writers may lie between them."
        ),
        "count": "Records of the transaction.",
    },
}
