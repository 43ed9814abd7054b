"""Named servers, in `~/.config/topics/config.toml`:

    current = "shop"

    [contexts.shop]
    url = "https://topics.example.com"
    api_key = "…"

`TOPICS_CONFIG` names another file. It may hold keys, so only its owner may read it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from topics.cli.shared.environment import advice, did_you_mean
from topics.cli.shared.failures import CommandError, UsageError

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
