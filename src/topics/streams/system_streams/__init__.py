"""Streams that the server itself writes: the stream registry and server metrics."""
