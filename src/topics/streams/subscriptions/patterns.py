"""Patterns of stream names: `*` stands for a part of one segment, `**` for any number of segments.

A pattern is somebody's text and is tried on every new name, so no pattern may take long on any name. A `*` with another
wildcard behind it gives nothing back once the text behind it was found: the leftmost place is as good as any. A `**`
has to try, and there may be only two of them.
"""

import re
from collections.abc import Callable

from topics.core.errors import InvalidRequestError

_TOKEN = re.compile(r"\*\*/?|\*|[^*]+")
DEEP_MAX = 2
PATTERN_CHARS_MAX = 1024


def check_pattern(pattern: str) -> None:
    deep = sum(token.startswith("**") for token in _tokens(pattern))
    if len(pattern) > PATTERN_CHARS_MAX or deep > DEEP_MAX:
        raise InvalidRequestError(
            f"pattern: at most {PATTERN_CHARS_MAX} characters and {DEEP_MAX} times `**` are allowed", field="pattern"
        )


def _tokens(pattern: str) -> list[str]:
    # More stars in a row say no more than two.
    return _TOKEN.findall(re.sub(r"\*{3,}", "**", pattern))


def matcher(pattern: str) -> Callable[[str], bool]:
    tokens = _tokens(pattern)
    parts: list[str] = []
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        if token.startswith("**"):
            parts.append("(?:.*/)?" if token.endswith("/") else ".*")
        elif token == "*":
            parts.append("[^/]*")
        elif before == "*" and place + 1 < len(tokens):
            parts[-1] = f"(?>[^/]*?{re.escape(token)})"
        else:
            parts.append(re.escape(token))
    expression = re.compile("".join(parts), re.DOTALL)
    return lambda name: expression.fullmatch(name) is not None


def literal_prefix(pattern: str) -> str:
    """What every name that fits begins with."""
    return pattern.partition("*")[0]
