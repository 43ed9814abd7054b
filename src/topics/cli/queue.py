"""`topics queue`: queues, jobs, leases and dead letters."""

import getpass
import socket
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import duration_ms, shown_time
from topics.cli.failures import CommandError
from topics.cli.output import Form, Output, json_line, json_text, line, note, print_result, print_table, raw_line, table
from topics.cli.server_connection import HERE, Server, connected
from topics_client import Client, JobChanged, JobState, Lease

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


# `topics queue jobs`, `retry`, `cancel`, `promote`, `release`, `pause` and `resume`


def jobs(
    queue: str,
    /,
    *,
    state: Annotated[Literal["ready", "leased", "delayed", "dead"], Parameter(help="The state of the jobs.")] = "ready",
    tag: Annotated[str | None, Parameter(help="List only jobs with this tag.")] = None,
    max: Annotated[int, Parameter(name=["--max", "-n"], help="The maximum number of jobs.")] = 100,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List the jobs of a queue in one state, with the reason of their last failure.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        print_table(
            output,
            ("SEQ", "TAG", "DELIVERIES", "WHEN", "REASON", "DATA"),
            ((_job_row(job), job) for job in islice(_jobs(client, queue, state, tag, max), max)),
        )
    return 0


def _jobs(client: Client, queue: str, state: str, tag: str | None, most: int) -> Iterator[JobState]:
    cursor: str | None = None
    while True:
        page = client.list_jobs(queue, state, tag=tag, limit=min(most, 1000), cursor=cursor)
        yield from page.jobs
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def _job_row(job: JobState) -> tuple[object, ...]:
    """A job as a row: when its lease or its delay ends, or when it failed last."""
    last = job.failures[-1] if job.failures else None
    when = job.deadline or job.ready_at or (last.at if last is not None else None)
    data = msgspec.json.encode(job.data).decode("utf-8", "replace")
    return (
        job.seq, job.tag or "", job.deliveries, shown_time(when) if when is not None else "",
        last.reason if last is not None else "", data,
    )  # fmt: skip


Seq = Annotated[int, Parameter(help="The seq of the job.")]


def _print_job(answer: JobChanged, form: Form, done: str) -> int:
    if form == "json":
        json_line(answer)
    elif answer.changed:
        line(done)
    if not answer.changed:
        raise CommandError(f"job {answer.seq} did not change: it is {answer.state}")
    return 0


def retry(queue: str, seq: Seq, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Move one dead letter back into its queue.

    Parameters
    ----------
    queue
        The name of the queue.
    seq
        The seq in the dead-letter topic.
    """
    with connected(server) as client:
        answer = client.retry_job(queue, seq)
    return _print_job(answer, output, f"ready again as job {answer.seq}")


def cancel(
    queue: str,
    seq: Seq,
    /,
    *,
    dead: Annotated[bool, Parameter(negative="", help="Delete a dead letter of the queue.")] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete a job of a queue, also one that a worker holds.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.cancel_job(queue, seq, dead=dead)
    return _print_job(answer, output, f"deleted job {seq}")


def promote(queue: str, seq: Seq, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Make a delayed job ready now.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.promote_job(queue, seq)
    return _print_job(answer, output, f"job {seq} is ready")


def release(queue: str, seq: Seq, /, *, output: Output = "table", server: Server = HERE) -> int:
    """End the lease of a job, of any worker.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.release_job(queue, seq)
    return _print_job(answer, output, f"job {seq} is ready")


def pause(queue: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Stop handing out jobs of a queue, also over restarts. Workers keep the jobs they have.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.pause_queue(queue)
    print_result(answer, output, f"paused {queue}", queue)
    return 0


def resume(queue: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Hand out jobs of a paused queue again.

    Parameters
    ----------
    queue
        The name of the queue.
    """
    with connected(server) as client:
        answer = client.pause_queue(queue, False)
    print_result(answer, output, f"resumed {queue}", queue)
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
    result: Annotated[str | None, Parameter(help="The result of a single job as JSON.")] = None,
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
        kept = {} if result is None else {"result": json_text(result.encode(), "result", is_text=False)}
        answer = client.ack(queue, node_or_me(node), seqs, lease_ids=lease_id, **kept)
    return print_outcome(answer, output, "acknowledged", answer.acked, answer.skipped)


def result(
    queue: str,
    seq: int,
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to wait until the job is done, up to 30s.")] = "0s",
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show the result of a job, or its state while it is in the queue.

    Parameters
    ----------
    queue
        The name of the queue.
    seq
        The seq of the job.
    """
    wait_ms = duration_ms(wait, "--wait")
    with connected(server) as client:
        answer = client.get_result(queue, seq, wait_ms=wait_ms)
    found = msgspec.json.encode(answer.result).decode()
    print_result(answer, output, found if answer.state == "done" else answer.state, found)
    return 0


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
    return print_outcome(answer, output, "returned", answer.nacked, answer.skipped)


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
    return print_outcome(answer, output, f"extended to {lease} from now", answer.extended, answer.skipped)
