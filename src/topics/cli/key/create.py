"""`topics key create`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.key.place import KeyFile, key_file
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import line, note
from topics.config.key_file import StoredKey, change_keys, make_secret
from topics.system.clock import SystemClock
from topics.system.dice import SystemDice

SCOPES = ("read", "write", "delete", "admin")


def create(
    name: str,
    /,
    *,
    scopes: Annotated[
        str, Parameter(help="What it may do, joined with +: read, write, delete, admin.", show_default=lambda _: "all")
    ] = "",
    prefix: Annotated[
        list[str] | None,
        Parameter(help="Only names that begin so; may be given more than once.", show_default=lambda _: "all names"),
    ] = None,
    file: KeyFile = None,
) -> int:
    """Make a key, and print its secret: the only time that anybody can see it.

    Parameters
    ----------
    name
        What to call it.
    """
    words = [word for word in scopes.split("+") if word]
    unknown = [word for word in words if word not in SCOPES]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a scope; there are {', '.join(SCOPES)}")
    if not name or not name.isprintable():
        raise UsageError("a key's name is printable text")
    secret, digest = make_secret(SystemDice().token)
    made = StoredKey(
        name=name, sha256=digest, scopes=words, prefixes=list(prefix or ()), created_ms=SystemClock().now_ms()
    )

    def added(keys: list[StoredKey]) -> list[StoredKey]:
        if any(key.name == name for key in keys):
            raise UsageError(f"there is a key {name} already; revoke it first")
        return [*keys, made]

    path = key_file(file)
    change_keys(path, added)
    note(f"made {name} in {path}; a running server counts it after SIGHUP. Its secret is not kept:")
    line(secret)
    return 0
