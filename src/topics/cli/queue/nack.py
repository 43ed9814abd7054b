"""`topics queue nack`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.queue.settling import settled
from topics.cli.queue.worker import LeaseIds, Node, Seqs, node_or_me
from topics.cli.shared.amounts import duration_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output


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
    return settled(answer, output, "given back", answer.nacked, answer.skipped)
