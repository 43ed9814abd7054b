"""Which server a command talks to, and the client that does.

The first of these counts: `--url`, `--context`, `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, the server on this
machine. `--api-key` beats every other key. A context brings its own key or none, so that a key never goes to a server
that it is not meant for; `TOPICS_API_KEY` goes to every address that is not a context's.
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

# Named servers, in `~/.config/topics/config.toml`:
#
#     current = "shop"
#
#     [contexts.shop]
#     url = "https://topics.example.com"
#     api_key = "…"
#
# `TOPICS_CONFIG` names another file. It may hold keys, so only its owner may read it.

_FIELDS = ("url", "api_key")


class Context(msgspec.Struct, frozen=True):
    """A server, and the key to it."""

    url: str
    api_key: str | None = None


class Contexts(msgspec.Struct, frozen=True):
    """What the file holds."""

    current: str | None = None
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)

    def find(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            meant = did_you_mean(name, self.contexts)
            hint = f"did you mean {meant}?" if meant else "`topics context ls` lists those there are"
            raise UsageError(f"there is no context {name}: {hint}")
        return found


def config_path(env: Mapping[str, str]) -> Path:
    """Where the file is, or would be."""
    if env.get("TOPICS_CONFIG"):
        return Path(env["TOPICS_CONFIG"])
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base, "topics", "config.toml")


def load_contexts(path: Path) -> Contexts:
    """The file; none at all is an empty one. What it does not know it says."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    import tomllib  # noqa: PLC0415 - most people have no such file

    try:
        found = tomllib.loads(text.decode("utf-8"))
        contexts = msgspec.convert(found, Contexts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise CommandError(f"{path} cannot be understood: {error}") from error
    _warn(path, "", found, ("current", "contexts"))
    for name, fields in found.get("contexts", {}).items():
        _warn(path, f"contexts.{name}.", fields, _FIELDS)
    return contexts


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replaces the file as a whole, so that nobody reads half of it."""
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
        raise UsageError(f"{text!r} has characters that cannot be kept in the file of contexts")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
    logging.getLogger("topics_client").addHandler(logging.NullHandler())
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


# Waiting for a server that went away while something of it was followed.

TOLD_AFTER_S = 1.0
"""How long a server may be away before it is worth a word."""
_LOOK_AGAIN_S = 0.2


def wait_for(client: Client, error: Exception) -> None:
    """Says that it is away and why, waits until it is ready, and says so."""
    note(f"the server is away ({error}); waiting for it")
    while True:
        try:
            client.ready()
            break
        except (ConnectionFailed, RetryLater):
            time.sleep(_LOOK_AGAIN_S)
    note("the server is back")
