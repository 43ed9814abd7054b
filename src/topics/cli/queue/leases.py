"""`topics queue leases`."""

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import shown_time
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing
from topics.client import Client, Lease


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
        listing(
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
