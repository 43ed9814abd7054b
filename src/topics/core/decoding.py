"""Why a body could not be decoded, in words for whoever sent it."""

import re
from typing import NamedTuple

_PROBLEM_CHARS_MAX = 200
_MSGSPEC_PATH = re.compile(r"(?P<problem>.*) - at `(?:key in )?\$\.?(?P<path>.*)`", re.DOTALL)
_TRUNCATED = "Input data was truncated"
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}[^\\]")


class Problem(NamedTuple):
    text: str
    field: str = ""
    """Which field it was, where the decoder says so."""


def problem_of(error: Exception, body: bytes | str) -> Problem:
    """What an error of msgspec means. Malformed JSON, a wrong type and bad UTF-8 are all `ValueError`s, and a hostile
    depth of nesting is a `RecursionError`."""
    if isinstance(error, RecursionError):
        return Problem("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return Problem("the text is not valid UTF-8")
    text = str(error)
    if "surrogate" in text or (text == _TRUNCATED and _ends_in_half_a_pair(body)):
        return Problem("a string holds half of a surrogate pair, such as \\ud800, which is no character")
    found = _MSGSPEC_PATH.fullmatch(text)
    problem = (found["problem"] if found else text).replace("`", "")[:_PROBLEM_CHARS_MAX]
    return Problem(problem, found["path"] if found else "")


def _ends_in_half_a_pair(body: bytes | str) -> bool:
    """Whether that is why the parser found no end: it looks for the other half behind the last byte."""
    tail = body[-16:]
    return _HALF_A_PAIR.search(tail.encode("utf-8", "replace") if isinstance(tail, str) else bytes(tail)) is not None
