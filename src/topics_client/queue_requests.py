"""The calls of queues as values, as those of `requests`."""

from collections.abc import Sequence

import msgspec

from topics_client.answers import Acked, Claimed, Extended, LeasePage, Nacked, Redriven
from topics_client.requests import Request, given_only, topic_path

_encode = msgspec.json.Encoder().encode


def claim(topic: str, node: str, *, max: int = 1, lease_ms: int | None = None) -> Request[Claimed]:
    """Leases up to `max` jobs to the worker `node`, for `lease_ms` or as long as the queue's config says.

    A claim whose answer was lost is sent again. What the lost one got is free again when its leases end.
    """
    given = {"node": node, "max": max, "lease_ms": lease_ms}
    # A queue with a claim_jitter_ms holds the answer back for up to five seconds.
    return Request(
        method="POST", target=topic_path(topic, "/claim"), body=_encode(given_only(given)), answer=Claimed, wait_s=5.0
    )


def ack(topic: str, node: str, seqs: Sequence[int], *, lease_ids: Sequence[str] | None = None) -> Request[Acked]:
    """Jobs are done: deletes those that the worker `node` still holds, and tells which it does not.

    With `lease_ids`, one for each seq, a job that was lost and claimed again by the same node is not touched.
    """
    body = _encode(given_only({"node": node, "seqs": seqs, "lease_ids": lease_ids}))
    return Request(method="POST", target=topic_path(topic, "/ack"), body=body, answer=Acked)


def nack(
    topic: str, node: str, seqs: Sequence[int], *, delay_ms: int = 0, lease_ids: Sequence[str] | None = None
) -> Request[Nacked]:
    """Gives jobs back, for anybody to claim at once or after `delay_ms`."""
    given = {"node": node, "seqs": seqs, "delay_ms": delay_ms or None, "lease_ids": lease_ids}
    return Request(
        method="POST",
        target=topic_path(topic, "/nack"),
        body=_encode(given_only(given)),
        answer=Nacked,
        # Without the lease ids, the second try could give back what the node has claimed again in between.
        repeatable=lease_ids is not None,
    )


def extend(
    topic: str, node: str, seqs: Sequence[int], lease_ms: int, *, lease_ids: Sequence[str] | None = None
) -> Request[Extended]:
    """Holds jobs for `lease_ms` from now on, whatever was left of their leases."""
    body = _encode(given_only({"node": node, "seqs": seqs, "lease_ms": lease_ms, "lease_ids": lease_ids}))
    return Request(method="POST", target=topic_path(topic, "/extend"), body=body, answer=Extended)


def redrive(topic: str, *, max: int = 100, source: str | None = None) -> Request[Redriven]:
    """Moves up to `max` dead letters of a queue back into it, from `source` or its dead letter topic.

    Sent again only when it certainly was not carried out: a second one would move more.
    """
    body = _encode(given_only({"max": max, "source": source}))
    return Request(method="POST", target=topic_path(topic, "/redrive"), body=body, answer=Redriven, repeatable=False)


def list_leases(
    topic: str, *, after: int = 0, page_size: int | None = None, node: str | None = None
) -> Request[LeasePage]:
    """One page of who holds which job, behind the seq `after`; of one worker if one is named."""
    query = {"after": after or None, "page_size": page_size, "node": node}
    return Request(method="GET", target=topic_path(topic, "/leases", query), answer=LeasePage)
