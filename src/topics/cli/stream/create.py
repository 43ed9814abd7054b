"""`topics stream create`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.output import line
from topics.cli.stream.http import JSON, path_of, streams_of


def create(
    name: str,
    /,
    *,
    content_type: Annotated[str, Parameter(help="What it holds, for good: JSON values, or bytes of any kind.")] = JSON,
    ttl: Annotated[str | None, Parameter(help="How long it lives without being used, such as 3600 or 1h.")] = None,
    server: Server = HERE,
) -> int:
    """Create a stream.

    Parameters
    ----------
    name
        Its name; it may have slashes.
    """
    headers = {"content-type": content_type, **({"stream-ttl": ttl} if ttl is not None else {})}
    with streams_of(server) as streams:
        answer = streams.ask("PUT", path_of(name), headers)
    line(f"created {name}" if answer.status == 201 else f"{name} is there already, as asked")
    return 0
