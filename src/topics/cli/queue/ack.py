"""`topics queue ack`."""

from topics.cli.queue.settling import settled
from topics.cli.queue.worker import LeaseIds, Node, Seqs, node_or_me
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output


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
    return settled(answer, output, "done", answer.acked, answer.skipped)
