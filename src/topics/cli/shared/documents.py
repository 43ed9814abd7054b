"""JSON documents as arguments: as they stand, out of a file, or from standard input."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from topics.cli.shared.failures import CommandError, UsageError

STDIN = "-"


def document(text: str, what: str) -> Any:
    """The JSON of an argument: one that begins like an object or an array is it, any other names a file."""
    if text.lstrip()[:1] in ("{", "["):
        return _parsed(text.encode("utf-8", "surrogateescape"), what)
    if text == STDIN:
        return _parsed(sys.stdin.buffer.read(), f"{what} on standard input")
    return _parsed(Path(text).read_bytes(), text)


def one_from_stdin(*given: str | None) -> None:
    """Standard input can be read once."""
    if sum(text == STDIN for text in given) > 1:
        raise UsageError("- stands for standard input, which can be one document only")


def _parsed(raw: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{where} is no JSON ({error})") from error
