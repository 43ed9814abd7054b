"""`topics context use`."""

import os
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.contexts import config_path, load_contexts, save_contexts
from topics.cli.shared.output import line


def use(name: Annotated[str, Parameter(allow_leading_hyphen=True)], /) -> int:
    """Choose the server that commands talk to when nothing else says it.

    Parameters
    ----------
    name
        The context; - is none: the server on this machine.
    """
    path = config_path(os.environ)
    found = load_contexts(path)
    if name == "-":
        save_contexts(path, msgspec.structs.replace(found, current=None))
        line("no context is current")
        return 0
    url = found.find(name).url
    save_contexts(path, msgspec.structs.replace(found, current=name))
    line(f"{name} is current: {url}")
    return 0
