"""`topics schema`: what the entries of a stream look like, and how that changes."""
