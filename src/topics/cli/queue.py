"""`topics queue`: queues, jobs, leases and dead letters."""

import getpass
import socket
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import duration_ms, shown_time
from topics.cli.failures import CommandError
from topics.cli.output import Form, Output, json_line, line, note, print_result, print_table, raw_line, table
from topics.cli.server_connection import HERE, Server, connected
from topics_client import Client, Lease

_COUNTS = ("ready", "in_flight", "delayed", "dead_lettered")


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List queues with the number of ready, in-flight, delayed and dead-lettered jobs.

    Parameters
    ----------
    prefix
        List only queues with this prefix.
    """
    with connected(server) as client:
        head = ("QUEUE", "READY", "IN FLIGHT", "DELAYED", "DEAD")
        rows = [
            (topic.topic, *(getattr(topic.queue, one) for one in _COUNTS))
            for topic in client.all_topics(prefix)
            if topic.queue is not None
        ]
        print_table(output, head, [(row, dict(zip(("queue", *_COUNTS), row, strict=True))) for row in rows])
    return 0


def leases(
    queue: str,
    /,
    *,
    node: Annotated[str | None, Parameter(help="List only leases of this worker.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List the leases of a queue: worker, deliveries and deadline of each job.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        print_table(
            output,
            ("SEQ", "WORKER", "DELIVERIES", "UNTIL"),
            (
                ((lease.seq, lease.node, lease.deliveries, shown_time(lease.deadline)), lease)
                for lease in _all(client, queue, node)
            ),
        )
    return 0


def _all(client: Client, queue: str, node: str | None) -> Iterator[Lease]:
    after: int | None = 0
    while after is not None:
        page = client.list_leases(queue, after=after, node=node)
        yield from page.leases
        after = page.next_after


def redrive(
    queue: str,
    /,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"], help="The maximum number of records.")] = 100,
    source: Annotated[
        str | None,
        Parameter(help="The topic with the dead letters.", show_default=lambda _: "the queue's dead letter topic"),
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Move dead letters back into a queue.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.redrive(queue, max=max, source=source)
    more = "; there may be more" if answer.more else ""
    print_result(answer, output, f"{answer.moved} moved back into the queue{more}", str(answer.moved))
    return 0


def print_outcome(answer: msgspec.Struct, form: Form, done: str, count: int, skipped: Sequence[int]) -> int:
    """Prints the result of an ack, nack or extend. Raises CommandError for jobs that this worker does not hold."""
    if form == "json":
        json_line(answer)
    else:
        line(f"{count} {done}" if form == "table" else str(count))
    if skipped:
        raise CommandError(
            f"not held by this worker: {', '.join(map(str, skipped))}; `topics queue leases` lists the leases"
        )
    return 0


# `topics queue claim`, `ack`, `nack` and `extend`

Node = Annotated[str | None, Parameter(help="The name of the worker.", show_default=lambda _: "user@host")]
Seqs = Annotated[int, Parameter(required=True, help="The seqs of the jobs.")]
LeaseIds = Annotated[
    list[str] | None,
    Parameter(
        name="--lease-id", negative="", help="The lease id of each seq, in order; jobs with another lease are skipped."
    ),
]


def node_or_me(node: str | None) -> str:
    """The name of the worker; by default the same for all commands of a user, so that claimed jobs can be acked."""
    return node or f"{getpass.getuser()}@{socket.gethostname()}"


def claim(
    queue: str,
    /,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"], help="The maximum number of jobs.")] = 1,
    lease: Annotated[
        str | None,
        Parameter(help="The lease duration, such as 30s.", show_default=lambda _: "the queue's lease_ms"),
    ] = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Claim jobs: lease them to a worker. No other worker gets them until the lease expires.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    lease_ms = None if lease is None else duration_ms(lease, "--lease")
    with connected(server) as client:
        answer = client.claim(queue, node_or_me(node), max=max, lease_ms=lease_ms)
    if output == "table":
        rows = [(job.seq, job.lease_id, job.deliveries, job.raw.decode("utf-8", "replace")) for job in answer.claimed]
        table(("SEQ", "LEASE", "DELIVERIES", "DATA"), rows)
        note(f"{len(rows)} claimed as {node_or_me(node)}; {answer.ready} more are ready")
        return 0
    for job in answer.claimed:
        if output == "raw":
            raw_line(job.raw)
        else:
            reported = {
                "seq": job.seq,
                "lease_id": job.lease_id,
                "deadline": job.deadline,
                "deliveries": job.deliveries,
            }
            json_line({**reported, "tag": job.tag, "meta": job.meta, "data": msgspec.Raw(job.raw)})
    return 0


def ack(
    queue: str,
    /,
    *seqs: Seqs,
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Acknowledge jobs as done, which deletes them.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.ack(queue, node_or_me(node), seqs, lease_ids=lease_id)
    return print_outcome(answer, output, "done", answer.acked, answer.skipped)


def nack(
    queue: str,
    /,
    *seqs: Seqs,
    delay: Annotated[str, Parameter(help="The delay before they can be claimed again, such as 30s.")] = "0s",
    reason: Annotated[str, Parameter(help="Why the jobs failed, up to 1 KiB.")] = "",
    fatal: Annotated[bool, Parameter(negative="", help="Move the jobs to the dead-letter topic now.")] = False,
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Release jobs for another attempt by any worker.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    delay_ms = duration_ms(delay, "--delay")
    with connected(server) as client:
        answer = client.nack(
            queue, node_or_me(node), seqs, delay_ms=delay_ms, lease_ids=lease_id, reason=reason, fatal=fatal
        )
    return print_outcome(answer, output, "given back", answer.nacked, answer.skipped)


def extend(
    queue: str,
    /,
    *seqs: Seqs,
    lease: Annotated[str, Parameter(help="The new lease duration from now.")] = "30s",
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Extend the leases of jobs.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    lease_ms = duration_ms(lease, "--lease")
    with connected(server) as client:
        answer = client.extend(queue, node_or_me(node), seqs, lease_ms, lease_ids=lease_id)
    return print_outcome(answer, output, f"held for {lease} from now", answer.extended, answer.skipped)
