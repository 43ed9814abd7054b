"""Which log it is that products are made of."""

from typing import NamedTuple


class History(NamedTuple):
    name: str
    takes_over: bool = False
    """Whether products of another history are this one's, to be made anew."""
    told: int = 0
    """The newest catalog of which deletes were confirmed, by whichever archive."""
