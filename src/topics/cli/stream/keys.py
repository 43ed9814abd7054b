"""`topics stream keys`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, json_line, line, note, printable
from topics.cli.stream.contents import name_of


def keys(
    name: str,
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only keys behind this one.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List the routing keys that entries of a stream have, in their order.

    Parameters
    ----------
    name
        Its name.
    """
    stream, place = name_of(name), after
    with connected(server) as client:
        while True:
            page = client.list_routing_keys(stream, after=place, limit=500)
            for key in page.keys:
                if output == "json":
                    json_line({"key": key})
                else:
                    line(printable(key) if output == "table" else key)
            if not page.coverage.complete:
                note(f"{name}: not every entry was looked at; ask again")
            place = page.next_after
            if place is None:
                return 0
