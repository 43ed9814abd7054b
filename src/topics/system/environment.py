"""Forgetting a variable of the environment, for those that hold secrets."""

import os
import posix
import sys


def forget_variable(name: str) -> None:
    """Drops a variable wherever this process holds it. The system keeps what the process was started with."""
    os.environ.pop(name, None)
    # The interpreter keeps the environment of its start beside the one that programs see.
    posix.environ.pop(name.encode(), None)
    # So does a module of the standard library that the metrics bring along, from when it was imported.
    handlers = sys.modules.get("wsgiref.handlers")
    if handlers is not None:
        handlers.BaseHandler.os_environ.pop(name, None)
