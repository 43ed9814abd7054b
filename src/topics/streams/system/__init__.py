"""Streams that the server writes for others to read: what became of every stream, and how the server is doing."""

from topics.streams.system.readings import Around
from topics.streams.system.service import SystemOptions, SystemStreams

__all__ = ["Around", "SystemOptions", "SystemStreams"]
