"""`topics context ls`."""

import os
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.failures import UsageError
from topics.cli.output import Output, line, print_table
from topics.cli.server_connection import Context, Contexts, config_path, load_contexts, save_contexts
from topics_client import Client


def ls(*, output: Output = "table") -> int:
    """List the contexts; the star is at the current one. Keys are not shown."""
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


# `topics context use`.


def use(name: Annotated[str, Parameter(allow_leading_hyphen=True)], /) -> int:
    """Choose the server that commands talk to when nothing else says it.

    Parameters
    ----------
    name
        The context; - is none: the server on this machine.
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


# `topics context set`.


def set_(
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


# `topics context rm`.


def rm(name: str, /) -> int:
    """Forget a context, and its key.

    Parameters
    ----------
    name
        Which one.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    found.find(name)
    left = {other: context for other, context in found.contexts.items() if other != name}
    save_contexts(path, Contexts(None if found.current == name else found.current, left))
    line(f"forgot {name}")
    return 0
