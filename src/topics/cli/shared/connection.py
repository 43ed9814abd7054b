"""Which server a command talks to, and the client that does.

The first of these counts: `--url`, `--context`, `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, the server on this
machine. `--api-key` beats every other key. A context brings its own key or none, so that a key never goes to a server
that it is not meant for; `TOPICS_API_KEY` goes to every address that is not a context's.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.contexts import Context, config_path, load_contexts
from topics.cli.shared.failures import UnreachableError, UsageError
from topics.client import Client, ClientOptions, ConnectionFailed, RetryPolicy

DEFAULT_URL = "http://127.0.0.1:4000"

QUICK_S = 1.0
"""How long a person waits for a server that does not answer before being told so."""
PATIENT_S = 30.0
"""How long a command waits that is in the middle of something."""


@Parameter(name="*", group="Server")
@dataclass(frozen=True)
class Server:
    """The options of every command that talks to a server."""

    url: Annotated[
        str | None,
        Parameter(help="The server's address (TOPICS_URL).", show_default=lambda _: f"the context's, or {DEFAULT_URL}"),
    ] = None
    api_key: Annotated[str | None, Parameter(help="The key, where the server wants one (TOPICS_API_KEY).")] = None
    context: Annotated[
        str | None,
        Parameter(
            help="A server by its name in the file of contexts (TOPICS_CONTEXT).",
            show_default=lambda _: "the current one",
        ),
    ] = None


HERE = Server()


def resolve(server: Server, env: Mapping[str, str]) -> Context:
    """The address and the key that options, environment and contexts come to."""
    if server.url is not None and server.context is not None:
        raise UsageError("--url and --context both name a server: give one of them")
    url, name = server.url, server.context
    if url is None and name is None:
        url = env.get("TOPICS_URL", "").strip() or None
        name = env.get("TOPICS_CONTEXT", "").strip() or None
    if url is not None:
        return Context(url, server.api_key or _key_of(env))
    contexts = load_contexts(config_path(env))
    name = name or contexts.current
    if name is None:
        return Context(DEFAULT_URL, server.api_key or _key_of(env))
    found = contexts.find(name)
    return Context(found.url, server.api_key or found.api_key)


def _key_of(env: Mapping[str, str]) -> str | None:
    return env.get("TOPICS_API_KEY", "").strip() or None


@contextmanager
def connected(server: Server, deadline_s: float = QUICK_S) -> Iterator[Client]:
    """A client of that server; `deadline_s` is how long it tries again when the server cannot take a request."""
    where = resolve(server, os.environ)
    # What it logs of each try is for programs; the person at the terminal is told once, by the command.
    logging.getLogger("topics.client").addHandler(logging.NullHandler())
    options = ClientOptions(retry=RetryPolicy(deadline_s=deadline_s))
    try:
        client = Client(where.url, api_key=where.api_key, options=options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with client:
        try:
            if deadline_s > QUICK_S:
                # Patience is for a server that goes away in between, and not for one that was never there.
                client.health()
            yield client
        except ConnectionFailed as error:
            raise unreachable(where.url, error) from error


def unreachable(url: str, error: Exception) -> UnreachableError:
    """No answer came, in words that say what to do about it."""
    reason = str(error).removeprefix(f"{url}: ")
    return UnreachableError(
        f"{url} does not answer ({reason}): `topics serve` starts a server, --url or TOPICS_URL names another one"
    )
