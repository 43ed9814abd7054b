"""`topics stream create`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import duration_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import line
from topics.cli.stream.contents import JSON, name_of


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
    ttl_s = None if ttl is None else _seconds(ttl)
    with connected(server) as client:
        made = client.put_stream(name_of(name), content_type=content_type, ttl_s=ttl_s)
    line(f"created {name}" if made.created else f"{name} is there already, as asked")
    return 0


def _seconds(text: str) -> int:
    """A time span; a number alone is seconds, as in the protocol."""
    seconds, rest = divmod(duration_ms(f"{text}s" if text.isascii() and text.isdigit() else text, "--ttl"), 1000)
    if rest or not seconds:
        raise UsageError(f"--ttl is {text!r}; accepted is a time of whole seconds, such as 3600 or 1h")
    return seconds
