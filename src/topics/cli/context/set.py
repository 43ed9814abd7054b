"""`topics context set`."""

import os
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.contexts import Context, config_path, load_contexts, save_contexts
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import line
from topics.client import Client


def set(
    name: str,
    /,
    *,
    url: Annotated[str | None, Parameter(help="The server's address.", show_default=lambda _: "as it is")] = None,
    api_key: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="The key; - asks for it, so that no shell remembers it.",
            show_default=lambda _: "as it is",
        ),
    ] = None,
) -> int:
    """Add a context, or change it. The first one becomes current. The file is readable by its owner alone.

    Parameters
    ----------
    name
        What to call the server.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    before = found.contexts.get(name)
    address = url or (before.url if before else None)
    if address is None:
        raise UsageError(f"{name} is a new context: say where the server is with --url")
    if api_key == "-":
        import getpass  # noqa: PLC0415 - hardly ever needed

        api_key = getpass.getpass(f"the key of {name}: ")
    # A key stays with its server: a new address without a new key has none.
    kept = before.api_key if before and address == before.url else None
    context = Context(address, api_key or kept)
    try:
        Client(context.url, api_key=context.api_key).close()
    except ValueError as error:
        raise UsageError(str(error)) from error
    contexts = {**found.contexts, name: context}
    current = found.current if found.contexts else name
    save_contexts(path, msgspec.structs.replace(found, contexts=contexts, current=current))
    line(f"{'changed' if before else 'added'} {name}: {context.url}" + (", with a key" if context.api_key else ""))
    return 0
