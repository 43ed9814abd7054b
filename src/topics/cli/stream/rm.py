"""`topics stream rm`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.asking import Yes, confirm
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import line
from topics.cli.stream.contents import name_of


def rm(*names: Annotated[str, Parameter(required=True)], yes: Yes = False, server: Server = HERE) -> int:
    """Delete streams with everything in them. On a terminal it asks first.

    Parameters
    ----------
    names
        Their names.
    """
    confirm(f"delete {', '.join(names)} with everything in it?", yes)
    with connected(server) as client:
        for name in names:
            client.delete_stream(name_of(name))
            line(f"deleted {name}")
    return 0
