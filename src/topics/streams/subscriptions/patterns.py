"""Patterns of stream names: `*` stands for one segment or a part of it, `**` for any number of segments."""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\*\*/?|\*|[^*]+")


def matcher(pattern: str) -> Callable[[str], bool]:
    parts = []
    for token in _TOKEN.findall(pattern):
        if token.startswith("**"):
            parts.append("(?:.*/)?" if token.endswith("/") else ".*")
        else:
            parts.append("[^/]*" if token == "*" else re.escape(token))
    expression = re.compile("".join(parts), re.DOTALL)
    return lambda name: expression.fullmatch(name) is not None


def literal_prefix(pattern: str) -> str:
    """What every name that fits begins with."""
    return pattern.partition("*")[0]
