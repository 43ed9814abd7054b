"""HTTP/1.1 without I/O, for both clients."""
