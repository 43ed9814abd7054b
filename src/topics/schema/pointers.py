"""JSON pointers (RFC 6901)."""

import re
from collections.abc import Callable
from typing import Final

from topics.core.errors import InvalidRequestError, quoted

_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX = re.compile(r"0|[1-9][0-9]*")

MISSING: Final = object()
"""What a pointer finds where there is nothing; None is a value."""


def parse_pointer(text: str, what: str) -> tuple[str, ...]:
    """The tokens of a pointer; none of them for the whole document."""
    if _POINTER.fullmatch(text) is None:
        raise InvalidRequestError(f"{what} {quoted(text)} is not a JSON pointer", field=what)
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])


def show_pointer(tokens: tuple[str, ...]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def finder(tokens: tuple[str, ...]) -> Callable[[object], object]:
    """A function that finds the value in a document, or `MISSING`. It is asked for every entry, so the common case of a
    member at the top has no loop."""
    if len(tokens) == 1:
        name = tokens[0]

        def find_member(document: object) -> object:
            return document.get(name, MISSING) if type(document) is dict else _element(document, name)

        return find_member

    def find(document: object) -> object:
        for token in tokens:
            document = document.get(token, MISSING) if type(document) is dict else _element(document, token)
            if document is MISSING:
                break
        return document

    return find


def _element(document: object, token: str) -> object:
    if type(document) is not list or _INDEX.fullmatch(token) is None or len(token) > 9:
        return MISSING
    index = int(token)
    return document[index] if index < len(document) else MISSING
