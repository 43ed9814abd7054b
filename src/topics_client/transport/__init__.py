"""HTTP/1.1 without I/O: what both halves of the client send and read."""
