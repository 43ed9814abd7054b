"""Durable Streams on the log: a stream is a topic with a content type, an end, producers and forks."""
