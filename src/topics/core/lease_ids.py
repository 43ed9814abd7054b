"""The id of a lease on the wire: a random number that fences out whoever was not given it."""

from topics.core.errors import InvalidRequestError, quoted

_PREFIX = "lease_"
_DIGITS = 16
_HEX = frozenset("0123456789abcdef")


def format_lease_id(token: int) -> str:
    """A lease's id on the wire."""
    return f"{_PREFIX}{token:0{_DIGITS}x}"


def parse_lease_id(text: str, field: str = "lease_ids") -> int | None:
    """The token in a lease id; None for an empty one, which fences nothing. Anything else is refused."""
    if not text:
        return None
    digits = text.removeprefix(_PREFIX)
    if digits == text or not digits or len(digits) > _DIGITS or not _HEX.issuperset(digits):
        raise InvalidRequestError(f"{field}: {quoted(text)} is not a lease id", field=field)
    return int(digits, 16)
