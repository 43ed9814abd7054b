"""The log on disk: the only layer that touches files."""
