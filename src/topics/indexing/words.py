"""Words of texts and forms of keywords. Each has a name with a version, because what is indexed outlives the code."""

import re
from collections.abc import Callable
from functools import cache

# Letters and digits of any script: exactly the characters of the Unicode categories L and N.
_find_words = re.compile(r"[^\W_]+").findall


def unicode_word_v1(text: str) -> list[str]:
    """The words of a text: maximal runs of letters and digits, in small letters."""
    return _find_words(text.lower())


def words_and_gaps(text: str, gap: str) -> list[str]:
    """The words of several texts that a character stands between, and that character where it does."""
    return _words_or(gap)(text.lower())


@cache
def _words_or(gap: str) -> Callable[[str], list[str]]:
    return re.compile(rf"[^\W_]+|{re.escape(gap)}").findall


def lowercase_v1(text: str) -> str:
    return text.lower()


def identity_v1(text: str) -> str:
    return text


NORMALIZERS: dict[str, Callable[[str], str]] = {"identity_v1": identity_v1, "lowercase_v1": lowercase_v1}
