"""`topics context rm`."""

import os

from topics.cli.shared.contexts import Contexts, config_path, load_contexts, save_contexts
from topics.cli.shared.output import line


def rm(name: str, /) -> int:
    """Forget a context, and its key.

    Parameters
    ----------
    name
        Which one.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    found.find(name)
    left = {other: context for other, context in found.contexts.items() if other != name}
    save_contexts(path, Contexts(None if found.current == name else found.current, left))
    line(f"forgot {name}")
    return 0
