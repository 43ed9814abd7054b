"""`topics queue extend`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.queue.settling import settled
from topics.cli.queue.worker import LeaseIds, Node, Seqs, node_or_me
from topics.cli.shared.amounts import duration_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output


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
    return settled(answer, output, f"held for {lease} from now", answer.extended, answer.skipped)
