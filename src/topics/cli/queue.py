"""`topics queue ls`."""

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
    """List queues and how many jobs are ready, held, held back and given up.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
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


# `topics queue leases`.


def leases(
    queue: str,
    /,
    *,
    node: Annotated[str | None, Parameter(help="Only those of this worker.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List who holds which job, and until when.

    Parameters
    ----------
    queue
        Its name.
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


# `topics queue redrive`.


def redrive(
    queue: str,
    /,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"], help="At most so many.")] = 100,
    source: Annotated[
        str | None, Parameter(help="The topic they are in.", show_default=lambda _: "the queue's dead letter topic")
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Make dead letters jobs again.

    Parameters
    ----------
    queue
        The queue they go back to.
    """
    with connected(server) as client:
        answer = client.redrive(queue, max=max, source=source)
    more = "; there may be more" if answer.more else ""
    print_result(answer, output, f"{answer.moved} made jobs again{more}", str(answer.moved))
    return 0


# Showing what became of jobs that a worker spoke about.


def print_outcome(answer: msgspec.Struct, form: Form, done: str, count: int, skipped: Sequence[int]) -> int:
    """Prints it; jobs that were not this worker's are a failure, since somebody else may have them now."""
    if form == "json":
        json_line(answer)
    else:
        line(f"{count} {done}" if form == "table" else str(count))
    if skipped:
        raise CommandError(
            f"not held by this worker: {', '.join(map(str, skipped))}; `topics queue leases` tells who holds what"
        )
    return 0


# Who works: the name under which jobs are leased, and the jobs that are meant.

Node = Annotated[str | None, Parameter(help="The worker's name.", show_default=lambda _: "you, on this machine")]
Seqs = Annotated[int, Parameter(required=True, help="The seqs of the jobs.")]
LeaseIds = Annotated[
    list[str] | None,
    Parameter(
        name="--lease-id", negative="", help="The lease of each seq, in their order: only a job that is still held so."
    ),
]


def node_or_me(node: str | None) -> str:
    """The same name for every command of one person, so that what was claimed can be acknowledged."""
    return node or f"{getpass.getuser()}@{socket.gethostname()}"


# `topics queue claim`.


def claim(
    queue: str,
    /,
    *,
    max: Annotated[int, Parameter(name=["--max", "-n"], help="At most so many jobs.")] = 1,
    lease: Annotated[
        str | None,
        Parameter(help="For how long, such as 30s.", show_default=lambda _: "as the queue's config says"),
    ] = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Lease jobs to a worker: nobody else gets them until the lease ends.

    Parameters
    ----------
    queue
        Its name.
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
            told = {"seq": job.seq, "lease_id": job.lease_id, "deadline": job.deadline, "deliveries": job.deliveries}
            json_line({**told, "tag": job.tag, "meta": job.meta, "data": msgspec.Raw(job.raw)})
    return 0


# `topics queue ack`.


def ack(
    queue: str,
    /,
    *seqs: Seqs,
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Jobs are done: they are deleted.

    Parameters
    ----------
    queue
        Its name.
    """
    with connected(server) as client:
        answer = client.ack(queue, node_or_me(node), seqs, lease_ids=lease_id)
    return print_outcome(answer, output, "done", answer.acked, answer.skipped)


# `topics queue nack`.


def nack(
    queue: str,
    /,
    *seqs: Seqs,
    delay: Annotated[str, Parameter(help="After how long they can be claimed again, such as 30s.")] = "0s",
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Give jobs back, for anybody to claim.

    Parameters
    ----------
    queue
        Its name.
    """
    delay_ms = duration_ms(delay, "--delay")
    with connected(server) as client:
        answer = client.nack(queue, node_or_me(node), seqs, delay_ms=delay_ms, lease_ids=lease_id)
    return print_outcome(answer, output, "given back", answer.nacked, answer.skipped)


# `topics queue extend`.


def extend(
    queue: str,
    /,
    *seqs: Seqs,
    lease: Annotated[str, Parameter(help="For how long from now on.")] = "30s",
    lease_id: LeaseIds = None,
    node: Node = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Hold jobs for longer.

    Parameters
    ----------
    queue
        Its name.
    """
    lease_ms = duration_ms(lease, "--lease")
    with connected(server) as client:
        answer = client.extend(queue, node_or_me(node), seqs, lease_ms, lease_ids=lease_id)
    return print_outcome(answer, output, f"held for {lease} from now", answer.extended, answer.skipped)
