"""Durable Streams on the log: a stream is a topic with a content type, an end, producers and forks."""

from topics.streams.appending import Appended, AppendRequest
from topics.streams.lifecycle import Created, CreateRequest, Deleted, ForkFrom, StreamInfo
from topics.streams.listing import ListedInfo
from topics.streams.offsets import Position
from topics.streams.reading import CHUNK_BYTES, ReadSpec, StreamSlice
from topics.streams.service import Streams

__all__ = [
    "CHUNK_BYTES",
    "AppendRequest",
    "Appended",
    "CreateRequest",
    "Created",
    "Deleted",
    "ForkFrom",
    "ListedInfo",
    "Position",
    "ReadSpec",
    "StreamInfo",
    "StreamSlice",
    "Streams",
]
