"""A durable event engine: topics, routers and queues on one crash-safe log."""

__version__ = "0.1.0"
