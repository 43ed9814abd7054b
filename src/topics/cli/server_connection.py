"""Server connection of commands: resolves the address and the key, and opens a client.

The first of these is used: `--url`, `--context`, `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, the server on
this machine. `--api-key` overrides every other key. A context has its own key or none, so that a key is never sent to a
server that it is not meant for; `TOPICS_API_KEY` is used for addresses that are not from a context.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.failures import CommandError, UnreachableError, UsageError, advice, did_you_mean
from topics.cli.output import note
from topics_client import Client, ClientOptions, ConnectionFailed, RetryLater, RetryPolicy
from topics_protocol.config import DEFAULT_URL

# Contexts: named servers in `~/.config/topics/config.toml`.
#
#     current = "shop"
#
#     [contexts.shop]
#     url = "https://topics.example.com"
#     api_key = "…"
#
# `TOPICS_CONFIG` names another file. It may have keys, so only its owner can read it.

_FIELDS = ("url", "api_key")


class Context(msgspec.Struct, frozen=True):
    """The address of a server and its key."""

    url: str
    api_key: str | None = None


class Contexts(msgspec.Struct, frozen=True):
    """The content of the file."""

    current: str | None = None
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)

    def find(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            meant = did_you_mean(name, self.contexts)
            hint = f"did you mean {meant}?" if meant else "`topics context ls` lists contexts"
            raise UsageError(f"context {name} does not exist: {hint}")
        return found


def config_path(env: Mapping[str, str]) -> Path:
    """The path of the file."""
    if env.get("TOPICS_CONFIG"):
        return Path(env["TOPICS_CONFIG"])
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base, "topics", "config.toml")


def load_contexts(path: Path) -> Contexts:
    """Reads the file; a missing file is empty. Warns about unknown fields."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    import tomllib  # noqa: PLC0415 - most people have no such file

    try:
        found = tomllib.loads(text.decode("utf-8"))
        contexts = msgspec.convert(found, Contexts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise CommandError(f"{path} is not valid: {error}") from error
    _warn(path, "", found, ("current", "contexts"))
    for name, fields in found.get("contexts", {}).items():
        _warn(path, f"contexts.{name}.", fields, _FIELDS)
    return contexts


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replaces the file atomically."""
    lines = [f"current = {_quoted(contexts.current)}\n"] if contexts.current is not None else []
    for name, context in sorted(contexts.contexts.items()):
        lines.append(f"\n[contexts.{_quoted(name)}]\nurl = {_quoted(context.url)}\n")
        if context.api_key is not None:
            lines.append(f"api_key = {_quoted(context.api_key)}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(lines).lstrip("\n"))
    fresh.replace(path)


def _warn(path: Path, where: str, fields: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            print(f"topics: {path}: {advice(where + name, did_you_mean(name, known))}", file=sys.stderr)


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise UsageError(f"{text!r} has characters that cannot be stored in a context")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


QUICK_S = 1.0
"""The retry deadline of single commands."""
PATIENT_S = 30.0
"""The retry deadline of commands that send or read many pages."""


@Parameter(name="*", group="Server")
@dataclass(frozen=True)
class Server:
    """The server options of commands."""

    url: Annotated[
        str | None,
        Parameter(
            help="The address of the server, or of several with one primary, with commas (TOPICS_URL).",
            show_default=lambda _: f"the context's, or {DEFAULT_URL}",
        ),
    ] = None
    api_key: Annotated[str | None, Parameter(help="The API key, if the server requires one (TOPICS_API_KEY).")] = None
    context: Annotated[
        str | None,
        Parameter(
            help="The name of a context (TOPICS_CONTEXT).",
            show_default=lambda _: "the current one",
        ),
    ] = None


HERE = Server()


def resolve(server: Server, env: Mapping[str, str]) -> Context:
    """The address and the key from options, environment and contexts."""
    if server.url is not None and server.context is not None:
        raise UsageError("--url and --context exclude each other: give one of them")
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
    """A client of the server, which retries requests for `deadline_s`."""
    where = resolve(server, os.environ)
    # The client logs each attempt; a terminal shows one message of the command instead.
    logging.getLogger("topics_client").addHandler(logging.NullHandler())
    try:
        if deadline_s > QUICK_S:
            # The long deadline is for a restart in between, not for a server that was never reachable.
            with _client(where, QUICK_S) as client:
                client.health()
        with _client(where, deadline_s) as client:
            yield client
    except ConnectionFailed as error:
        raise unreachable(where.url, error) from error


def each_client(server: Server) -> Iterator[tuple[str, Client]]:
    """A client of each address that is given, which tries every request once."""
    where = resolve(server, os.environ)
    logging.getLogger("topics_client").addHandler(logging.NullHandler())
    for url in where.url.split(","):
        with _client(Context(url.strip(), where.api_key), 0.0) as client:
            yield url.strip(), client


def _client(where: Context, deadline_s: float) -> Client:
    options = ClientOptions(retry=RetryPolicy(deadline_s=deadline_s))
    try:
        return Client(where.url, api_key=where.api_key, options=options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def unreachable(url: str, error: Exception) -> UnreachableError:
    """The error for a server that does not answer."""
    reason = str(error).removeprefix(f"{url}: ")
    return UnreachableError(
        f"{url} does not answer ({reason}): `topics serve` starts a server, --url or TOPICS_URL names another one"
    )


# Waiting for a restarted server while following a topic or stream.

PROGRESS_AFTER_S = 1.0
"""How long a server may be unavailable before a message is printed."""
_LOOK_AGAIN_S = 0.2


def wait_for(client: Client, error: Exception) -> None:
    """Waits until the server is ready, with messages before and after."""
    note(f"the server does not answer ({error}); waiting for it")
    while True:
        try:
            client.ready()
            break
        except (ConnectionFailed, RetryLater):
            time.sleep(_LOOK_AGAIN_S)
    note("the server answers again")
