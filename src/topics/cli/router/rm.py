"""`topics router rm`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, show


def rm(*routers: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE) -> int:
    """Delete routers; what they copied stays.

    Parameters
    ----------
    routers
        Their names.
    """
    missing = []
    with connected(server) as client:
        for router in routers:
            answer = client.delete_router(router)
            if answer.deleted:
                show(answer, output, f"deleted {router}", router)
            else:
                missing.append(router)
    if missing:
        raise CommandError(f"there is no router {', '.join(missing)}: `topics router ls` lists those there are")
    return 0
