"""Error reporting: maps exceptions of commands to one sentence with advice and an exit code.

An exception without a mapping is a bug and keeps its traceback.
"""

import errno
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cyclopts import CycloptsError

if TYPE_CHECKING:
    from topics_client import ApiError


_OF_STREAMS = ("stream", "schema", "search", "aggregate")
FAILED, MISUSED, BUSY, UNREACHABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 4, 130, 141


class CommandError(Exception):
    """A command failed; the message has the reason and the remedy."""

    code = FAILED


class UsageError(CommandError):
    """The command line is invalid."""

    code = MISUSED


class UnreachableError(CommandError):
    """No server answers, or it cannot take requests now."""

    code = UNREACHABLE


def explained(error: BaseException, command: str = "") -> tuple[str, int] | None:
    """The message and the exit code for an exception; None for a bug."""
    if isinstance(error, CommandError):
        return str(error), error.code
    if isinstance(error, CycloptsError):
        # The text is formatted for a box of several lines.
        return f"{' '.join(str(error).split())} See --help.", MISUSED
    if "topics_client" in sys.modules:
        # If it was not imported, none of its exceptions was raised, and the import would take longer than the command.
        from topics_client import ApiError, ClientError  # noqa: PLC0415
        from topics_client.errors import Unsendable  # noqa: PLC0415

        if isinstance(error, Unsendable):
            return str(error), MISUSED
        if isinstance(error, ApiError):
            return _refusal(error, command in _OF_STREAMS)
        if isinstance(error, ClientError):
            return str(error), FAILED
    if isinstance(error, UnicodeEncodeError) and "\udc80" <= error.object[error.start] <= "\udcff":
        # The interpreter keeps invalid bytes of the command line as surrogates.
        shown = error.object.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return f"{shown!r} is not UTF-8 text", MISUSED
    return _of_the_machine(error)


def one_line(sentence: str) -> str:
    """The sentence on one line without control characters, which could come from a server or a file."""
    joined = " ".join(sentence.split())
    return "".join(char if char.isprintable() else "�" for char in joined)


def _of_the_machine(error: BaseException) -> tuple[str, int] | None:
    from topics.model.errors import FolderBusyError, TopicsError  # noqa: PLC0415
    from topics.model.settings import SettingsError  # noqa: PLC0415 - only a command that failed needs these

    if isinstance(error, SettingsError):
        return str(error), MISUSED
    if isinstance(error, FolderBusyError):
        return str(error), BUSY
    if isinstance(error, OSError) and error.strerror:
        hint = "; --port or TOPICS_PORT chooses another one" if error.errno == errno.EADDRINUSE else ""
        return (f"{error.filename}: " if error.filename else "") + error.strerror + hint, FAILED
    if isinstance(error, TopicsError | OSError):
        return str(error), FAILED
    return None


def _refusal(error: "ApiError", of_streams: bool) -> tuple[str, int]:
    from topics_client import (  # noqa: PLC0415
        Forbidden,
        NotAQueue,
        RetryLater,
        RouterNotFound,
        TopicNotFound,
        Unauthorized,
        UnexpectedAnswer,
    )

    if isinstance(error, Unauthorized):
        return f"{error.message}: give a key by TOPICS_API_KEY, by a context, or by --api-key", FAILED
    if isinstance(error, Forbidden):
        return f"{error.message}: the key does not allow it; use another one", FAILED
    if isinstance(error, TopicNotFound):
        word = "topics stream" if of_streams else "topics"
        return f"{error.message}: `{word} ls` lists them, and `{word} create` creates one", FAILED
    if isinstance(error, RouterNotFound):
        return f"{error.message}: `topics router ls` lists routers", FAILED
    if isinstance(error, NotAQueue):
        return f"{error.message}: `topics create NAME --type queue` creates one", FAILED
    detail = error.detail or {}
    index = detail.get("index")
    if detail.get("reason") == "schema" and isinstance(index, int):
        return (
            f"value {index + 1} of the batch does not fit the schema: {error.message}; `topics schema show` shows it",
            FAILED,
        )
    if isinstance(error, RetryLater):
        return f"{error.message} ({error.code}): try again later", UNREACHABLE
    if isinstance(error, UnexpectedAnswer):
        return f"the address is not that of a topics server ({error.message}). Check --url", FAILED
    return f"{error.message} ({error.code})", FAILED


# Unknown `TOPICS_…` variables: a misspelled setting would be ignored silently.

CLIENT_NAMES = ("TOPICS_URL", "TOPICS_API_KEY", "TOPICS_CONTEXT", "TOPICS_CONFIG")
"""The variables of the command line; all others are settings of the server."""

_PREFIX = "TOPICS_"


def strangers(names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Every unknown `TOPICS_…` variable, and the most similar known name."""
    unsure = sorted(name for name in names if name.startswith(_PREFIX) and name not in CLIENT_NAMES)
    if not unsure:
        return
    from topics.model.settings import SETTINGS  # noqa: PLC0415 - most command lines have no such variable

    known = [*CLIENT_NAMES, *(setting.env for setting in SETTINGS)]
    for name in unsure:
        if name not in known:
            # The common prefix must not count as similarity.
            meant = did_you_mean(name.removeprefix(_PREFIX), [one.removeprefix(_PREFIX) for one in known])
            yield name, None if meant is None else _PREFIX + meant


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name; None where none is similar."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def advice(name: str, meant: str | None) -> str:
    """The warning for an unknown name."""
    return f"{name} is unknown" + (f"; did you mean {meant}?" if meant else "")
