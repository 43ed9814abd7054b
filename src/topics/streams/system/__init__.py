"""Streams that the server writes for others to read: what became of every stream, and how the server is doing."""
