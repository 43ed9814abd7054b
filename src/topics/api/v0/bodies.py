"""Reading a request's body into its message."""

from collections.abc import Callable
from typing import TypeVar

from topics.core.errors import InvalidRequestError

T = TypeVar("T")


def decode_body(what: str, decode: Callable[[bytes], T], body: bytes) -> T:
    """Raises InvalidRequestError, which says what is wrong and where."""
    try:
        # A Raw payload is not looked at by the decoder, so bad UTF-8 in it must be found here, once for the body.
        if not body.isascii():
            body.decode()
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode(what, error) from error
