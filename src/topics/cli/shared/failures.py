"""What a failure means to whoever typed the command: one sentence with what to do, and an exit code.

Anything that is not explained here is a bug and keeps its traceback.
"""

import errno
import sys
from typing import TYPE_CHECKING

from cyclopts import CycloptsError

if TYPE_CHECKING:
    from topics.client import ApiError

FAILED, MISUSED, BUSY, UNREACHABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 4, 130, 141


class CommandError(Exception):
    """A command cannot be carried out; the text says why and what to do."""

    code = FAILED


class UsageError(CommandError):
    """The command line says something that cannot be."""

    code = MISUSED


class UnreachableError(CommandError):
    """No server answers, or it cannot take requests now."""

    code = UNREACHABLE


def explained(error: BaseException) -> tuple[str, int] | None:
    """The sentence and the exit code for a failure; None for a bug."""
    if isinstance(error, CommandError):
        return str(error), error.code
    if isinstance(error, CycloptsError):
        # The text is laid out for a box of several lines.
        return f"{' '.join(str(error).split())} --help tells more.", MISUSED
    if "topics.client" in sys.modules:
        # Where it was not imported, nothing of it was raised, and importing it would take longer than the command.
        from topics.client import ApiError, ClientError  # noqa: PLC0415

        if isinstance(error, ApiError):
            return _refusal(error)
        if isinstance(error, ClientError):
            return str(error), FAILED
    return _of_the_machine(error)


def _of_the_machine(error: BaseException) -> tuple[str, int] | None:
    from topics.config.values import SettingsError  # noqa: PLC0415 - only a command that failed needs these
    from topics.core.errors import FolderBusyError, TopicsError  # noqa: PLC0415

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


def _refusal(error: "ApiError") -> tuple[str, int]:
    from topics.client import (  # noqa: PLC0415
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
        return f"{error.message}: `topics ls` lists those there are, and `topics create` makes one", FAILED
    if isinstance(error, RouterNotFound):
        return f"{error.message}: `topics router ls` lists those there are", FAILED
    if isinstance(error, NotAQueue):
        return f"{error.message}: `topics create NAME --type queue` makes one", FAILED
    if isinstance(error, RetryLater):
        return f"{error.message} ({error.code}): try again later", UNREACHABLE
    if isinstance(error, UnexpectedAnswer):
        return f"what answers there is no topics server ({error.message}): look at the address", FAILED
    return f"{error.message} ({error.code})", FAILED
