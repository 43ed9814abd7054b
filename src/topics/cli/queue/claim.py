"""`topics queue claim`."""

from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.queue.worker import Node, node_or_me
from topics.cli.shared.amounts import duration_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, json_line, note, raw_line, table


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
