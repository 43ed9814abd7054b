"""Appending, whichever way the records came: the batch for the engine, and the answer of it."""

import msgspec

from topics.engine import AppendResult, Batch
from topics.wire.v0 import AppendAnswer, AppendBody

_encode = msgspec.json.Encoder().encode


def batch_of(body: AppendBody, idempotency_key: str | None) -> Batch:
    return Batch(
        records=body.records,
        node=body.node,
        idempotency_key=idempotency_key or None,
        create=body.create,
        config=body.config,
        disable_backpressure=body.disable_backpressure,
    )


def encode_appended(outcome: AppendResult, return_seqs: bool) -> bytes:
    """The answer as a JSON object, without its performance block."""
    first, last = outcome.first_seq, outcome.last_seq
    answer = AppendAnswer(
        topic=outcome.topic, first_seq=first, last_seq=last,
        seqs=list(range(first, last + 1)) if return_seqs else msgspec.UNSET, head_seq=outcome.head_seq,
        count=last - first + 1, created=outcome.created, deduped=outcome.deduped,
    )  # fmt: skip
    return _encode(answer)


def measured(outcome: AppendResult) -> bytes:
    """What the performance block says of an append, behind `server_total_ms`."""
    return b',"wal_append_ms":%.3f,"fsync_ms":%.3f' % (outcome.wal_append_ms, outcome.fsync_ms)
