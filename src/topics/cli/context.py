"""`topics context`: named servers in a config file."""

import os
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.failures import UsageError
from topics.cli.output import Output, line, print_table
from topics.cli.server_connection import Context, Contexts, config_path, load_contexts, save_contexts
from topics_client import Client


def ls(*, output: Output = "table") -> int:
    """List contexts; a star marks the current one. Keys are not shown."""
    found = load_contexts(config_path(os.environ))
    print_table(
        output,
        ("", "CONTEXT", "URL", "KEY"),
        (
            (
                ("*" if name == found.current else "", name, context.url, "yes" if context.api_key else "no"),
                {"context": name, "url": context.url, "key": bool(context.api_key), "current": name == found.current},
            )
            for name, context in sorted(found.contexts.items())
        ),
        name=1,
    )
    return 0


def use(name: Annotated[str, Parameter(allow_leading_hyphen=True)], /) -> int:
    """Select the context that commands use by default.

    Parameters
    ----------
    name
        The context; - for none, which is the server on this machine.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    if name == "-":
        save_contexts(path, msgspec.structs.replace(found, current=None))
        line("no context is current")
        return 0
    url = found.find(name).url
    save_contexts(path, msgspec.structs.replace(found, current=name))
    line(f"{name} is current: {url}")
    return 0


def set_(
    name: str,
    /,
    *,
    url: Annotated[str | None, Parameter(help="The server's address.", show_default=lambda _: "as it is")] = None,
    api_key: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="The API key; - prompts for it, to keep it out of the shell history.",
            show_default=lambda _: "as it is",
        ),
    ] = None,
) -> int:
    """Add or change a context. The first one becomes current. Only the owner can read the file.

    Parameters
    ----------
    name
        The name of the context.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    before = found.contexts.get(name)
    address = url or (before.url if before else None)
    if address is None:
        raise UsageError(f"{name} is a new context: give its address with --url")
    if api_key == "-":
        import getpass  # noqa: PLC0415 - hardly ever needed

        api_key = getpass.getpass(f"the key of {name}: ")
    # A key must not be sent to another server: a new address without a new key has none.
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


def rm(name: str, /) -> int:
    """Remove a context and its key.

    Parameters
    ----------
    name
        The name of the context.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    found.find(name)
    left = {other: context for other, context in found.contexts.items() if other != name}
    save_contexts(path, Contexts(None if found.current == name else found.current, left))
    line(f"removed {name}")
    return 0
