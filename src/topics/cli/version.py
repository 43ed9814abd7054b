"""`topics version`."""

from topics import __version__


def version() -> int:
    """Prints the version of this server."""
    print(f"topics {__version__}")
    return 0
