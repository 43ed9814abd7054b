"""HTTP/2 for clients that begin with it: the same exchanges, each on a stream of its own. Imported by the first of
them."""
