"""`topics queue redrive`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, show


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
    show(answer, output, f"{answer.moved} made jobs again{more}", str(answer.moved))
    return 0
