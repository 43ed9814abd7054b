"""`topics router show`."""

import msgspec

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, fields, json_line, line


def show(router: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show what a router does, how far it got, and what holds it up.

    Parameters
    ----------
    router
        Its name, such as 'orders->archive'.
    """
    with connected(server) as client:
        state = client.get_router(router)
    if output == "json":
        json_line(state)
    elif output == "raw":
        line(str(state.lag))
    else:
        told = msgspec.to_builtins(state)
        told.pop("performance", None)
        fields((name.replace("_", " "), "none" if value is None else value) for name, value in told.items())
    return 0
