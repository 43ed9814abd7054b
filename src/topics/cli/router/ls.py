"""`topics router ls`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing


def ls(
    prefix: str = "",
    /,
    *,
    source: Annotated[str | None, Parameter(help="Only those that read this topic.")] = None,
    dest: Annotated[str | None, Parameter(help="Only those that write to this topic.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List routers, in the order of their names.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    with connected(server) as client:
        listing(
            output,
            ("ROUTER", "SOURCE", "DEST", "GUARANTEE", "COPIES"),
            (
                ((one.router, one.source, one.dest, one.guarantee.value, one.forwarded_total), one)
                for one in client.all_routers(prefix, source=source, dest=dest)
            ),
        )
    return 0
