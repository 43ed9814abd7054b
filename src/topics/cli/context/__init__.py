"""`topics context`: servers by name."""
