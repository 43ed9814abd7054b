"""A durable event engine: topics, routers and queues on one crash-safe log."""

from topics_protocol import __version__

__all__ = ["__version__"]
