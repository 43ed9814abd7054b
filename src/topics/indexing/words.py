"""Words of texts and forms of keywords. Each has a name with a version, because what is indexed outlives the code."""

import re
from collections.abc import Callable
from typing import Final

# Letters and digits of any script: exactly the characters of the Unicode categories L and N.
_find_words = re.compile(r"[^\W_]+").findall


def unicode_word_v1(text: str) -> list[str]:
    """The words of a text: maximal runs of letters and digits, in small letters."""
    return _find_words(text.lower())


_BLANKS: Final = {code: " " for code in range(128) if chr(code) != "\n" and not chr(code).isalnum()}


def words_by_line(text: str) -> list[list[str]]:
    """The words of each line. Texts that are lines of one cost a fraction of what each would cost by itself.

    Small letters are the same that way: the only letter that becomes another one at the end of a word is at its end
    before a new line as well.
    """
    small = text.lower()
    if small.isascii():
        return _words_of_ascii(small)
    # One line in another script must not cost the others their quick way.
    lines = small.split("\n")
    plain = iter(_words_of_ascii("\n".join(filter(str.isascii, lines))))
    return [next(plain) if line.isascii() else _find_words(line) for line in lines]


def _words_of_ascii(text: str) -> list[list[str]]:
    return list(map(str.split, text.translate(_BLANKS).split("\n")))


def lowercase_v1(text: str) -> str:
    return text.lower()


def identity_v1(text: str) -> str:
    return text


NORMALIZERS: dict[str, Callable[[str], str]] = {"identity_v1": identity_v1, "lowercase_v1": lowercase_v1}
