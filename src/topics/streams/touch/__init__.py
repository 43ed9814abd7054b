"""Touches: who waits for a row, a query or a table of a state-protocol stream is woken when it changes."""

from topics.streams.touch.service import Touches
from topics.streams.touch.stream import Outcome, StreamTouch

__all__ = ["Outcome", "StreamTouch", "Touches"]
