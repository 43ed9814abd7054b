"""`topics key`: API keys in a server's key file."""

import os
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.failures import UsageError
from topics.cli.output import Output, line, note, print_table
from topics.model.key_file import StoredKey, change_keys, load_keys, make_secret
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy

KeyFile = Annotated[str | None, Parameter(name=["--file"], help="The key file. (TOPICS_KEY_FILE)", show_default=False)]


def key_file(given: str | None) -> str:
    path = given or os.environ.get("TOPICS_KEY_FILE", "").strip()
    if not path:
        raise UsageError("the key file is missing: give --file or set TOPICS_KEY_FILE")
    return path


SCOPES = ("read", "write", "delete", "admin")


def create(
    name: str,
    /,
    *,
    scopes: Annotated[
        str, Parameter(help="Scopes joined with +: read, write, delete, admin.", show_default=lambda _: "all")
    ] = "",
    prefix: Annotated[
        list[str] | None,
        Parameter(help="Allow only topic names with this prefix; may be repeated.", show_default=lambda _: "all names"),
    ] = None,
    file: KeyFile = None,
) -> int:
    """Create a key and print its secret, which is not stored and cannot be shown again.

    Parameters
    ----------
    name
        The name of the key.
    """
    words = [word for word in scopes.split("+") if word]
    unknown = [word for word in words if word not in SCOPES]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a scope; accepted are {', '.join(SCOPES)}")
    if not name or not name.isprintable():
        raise UsageError("a key's name is printable text")
    secret, digest = make_secret(SystemEntropy().token)
    made = StoredKey(
        name=name, sha256=digest, scopes=words, prefixes=list(prefix or ()), created_ms=SystemClock().now_ms()
    )

    def added(keys: list[StoredKey]) -> list[StoredKey]:
        if any(key.name == name for key in keys):
            raise UsageError(f"there is a key {name} already; revoke it first")
        return [*keys, made]

    path = key_file(file)
    change_keys(path, added)
    note(f"created {name} in {path}; a running server loads it within a second. The secret is not stored:")
    line(secret)
    return 0


def list_(*, output: Output = "table", file: KeyFile = None) -> int:
    """List keys with their scopes and prefixes. Secrets are not stored."""
    print_table(
        output,
        ("KEY", "SCOPES", "PREFIXES", "CREATED"),
        (
            (
                (key.name, "+".join(key.scopes) or "all", "|".join(key.prefixes) or "all", _day(key.created_ms)),
                {name: value for name, value in msgspec.structs.asdict(key).items() if name != "sha256"},
            )
            for key in load_keys(key_file(file))
        ),
    )
    return 0


def _day(created_ms: int) -> str:
    return datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y-%m-%d")


def revoke(name: str, /, *, file: KeyFile = None) -> int:
    """Revoke a key. A running server drops it within a second, and ends its open connections.

    Parameters
    ----------
    name
        The name of the key.
    """

    def without(keys: list[StoredKey]) -> list[StoredKey]:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise UsageError(f"key {name} does not exist")
        return left

    path = key_file(file)
    change_keys(path, without)
    note(f"removed {name} from {path}; a running server drops it within a second")
    return 0
