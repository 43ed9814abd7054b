"""`topics stream profile`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.documents import document
from topics.cli.shared.output import Output, encode, fields, json_line, line
from topics.cli.stream.contents import name_of
from topics.client import StreamProfile


def profile(
    name: str,
    new: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show what a stream is for, or say it.

    Parameters
    ----------
    name
        Its name.
    new
        A kind, such as generic, evlog, metrics, otel-traces or state-protocol; with settings as JSON, such as
        '{"kind":"evlog","redactKeys":["pin"]}'. Without it the profile is shown.
    """
    stream = name_of(name)
    with connected(server) as client:
        if new is None:
            found = client.get_profile(stream)
        else:
            is_json = new.lstrip().startswith("{") or new == "-"
            found = client.set_profile(stream, document(new, "the profile") if is_json else new)
    if output == "json":
        json_line({"kind": found.kind, **found.settings})
    elif output == "raw":
        line(found.kind)
    elif new is not None:
        line(f"{name} is {found.kind} now")
    else:
        _show(found)
    return 0


def _show(found: StreamProfile) -> None:
    settings = {
        name: value if isinstance(value, str | int) and not isinstance(value, bool) else encode(value).decode()
        for name, value in found.settings.items()
    }
    fields([("kind", found.kind), *settings.items()])
