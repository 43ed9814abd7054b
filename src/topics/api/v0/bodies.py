"""Reading a request's body into its message, and numbers that must be in a range.

A number that the server cuts to what it gives at most (`limit`, `wait_ms`, `max`, durations) has no upper bound here:
whoever asks for too much gets the most there is, however much it was.
"""

from collections.abc import Callable
from typing import TypeVar

from topics.core.errors import InvalidRequestError

T = TypeVar("T")
_DIGITS_MAX = 40


def decode_body(what: str, decode: Callable[[bytes], T], body: bytes) -> T:
    """Raises InvalidRequestError, which says what is wrong and where."""
    try:
        # A Raw payload is not looked at by the decoder, so bad UTF-8 in it must be found here, once for the body.
        if not body.isascii():
            body.decode()
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode(what, error, body) from error


def check_number(what: str, field: str, value: int, maximum: int | None = None) -> None:
    """Raises InvalidRequestError for a number of a body that is out of its range."""
    if value < 0:
        raise InvalidRequestError(f"{what} field {field}: must not be negative", field=field)
    if maximum is not None and value > maximum:
        raise InvalidRequestError(f"{what} field {field}: must be from 0 to {maximum}", field=field)


def query_number(text: str | None, name: str, default: int, maximum: int | None = None) -> int:
    """A whole number of a query; raises InvalidRequestError for what is none, or out of its range."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(f"query {name}: must be a whole number", field=name)
    # Python reads numbers of a few thousand digits only. So many are too large for anything.
    number = int(text[-_DIGITS_MAX:]) if not text[:-_DIGITS_MAX].strip("0") else 10**_DIGITS_MAX
    if maximum is not None and number > maximum:
        raise InvalidRequestError(f"query {name}: must be from 0 to {maximum}", field=name)
    return number
