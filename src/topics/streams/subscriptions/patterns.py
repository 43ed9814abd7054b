"""Patterns of stream names: `*` stands for a part of one segment, `**` for any number of segments.

A pattern is somebody's text and is tried on every new name, so no pattern may take long on any name. One with a single
wildcard is a beginning and an end. One with more is first held against the texts between its wildcards, and then walked
along the name once, with all places in the pattern at which one can be as the bits of one number.
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
    wild = [token for token in tokens if token.startswith("*")]
    if not wild:
        return pattern.__eq__
    begin = tokens[0] if tokens[0] != wild[0] else ""
    end = tokens[-1] if tokens[-1] != wild[-1] else ""
    if len(wild) == 1:
        return _single(begin, wild[0], end)
    texts = [token for token in tokens if not token.startswith("*")]
    walk = _walker(tokens)

    def fits(name: str) -> bool:
        if not (name.startswith(begin) and name.endswith(end)):
            return False
        return all(text in name for text in texts) and walk(name)

    return fits


def _single(begin: str, wildcard: str, end: str) -> Callable[[str], bool]:
    first, least = len(begin), len(begin) + len(end)

    def fits(name: str) -> bool:
        if len(name) < least or not (name.startswith(begin) and name.endswith(end)):
            return False
        if wildcard == "**":
            return True
        between = name[first : len(name) - len(end)]
        return "/" not in between if wildcard == "*" else not between or between.endswith("/")

    return fits


def _walker(tokens: list[str]) -> Callable[[str], bool]:
    """Bit n of a number says that one can be behind the first n steps of the pattern.

    A step is a character, or one of the two that `**/` takes: from its first one goes on at the next slash (a stay), or
    at once (a skip), to its second.
    """
    after: dict[str, int] = {}
    any_, within, stays, skips, place = 0, 0, 0, 0, 0
    for token in tokens:
        if token == "**":
            any_ |= 1 << place
        elif token == "*":
            within |= 1 << place
        elif token == "**/":
            skips |= 1 << place
            stays |= 1 << (place + 1)
            place += 2
        else:
            for character in token:
                place += 1
                after[character] = after.get(character, 0) | 1 << place
    last, kept = 1 << place, any_ | stays

    def closed(where: int) -> int:
        for _ in range(DEEP_MAX):
            where |= (where & skips) << 1 | (where & skips) << 2
        return where

    def walk(name: str) -> bool:
        where = closed(1)
        for character in name:
            onward = (where << 1) & after.get(character, 0) | where & kept
            onward |= (where & stays) << 1 if character == "/" else where & within
            where = closed(onward) if skips else onward
            if not where:
                return False
        return bool(where & last)

    return walk


def literal_prefix(pattern: str) -> str:
    """What every name that fits begins with."""
    return pattern.partition("*")[0]
