"""A durable event engine: topics, routers and queues on one crash-safe log.

    import topics

    with topics.open("data") as log:
        log.append("orders", {"order": 1})

`open` runs the engine in this process; `Client` and `AsyncClient` talk to a server. Each name is imported on first use.
Modules of this package import `__version__` from `topics_protocol`, so that none of them depends on this one.
"""

import importlib
from typing import TYPE_CHECKING

from topics_protocol import __version__

if TYPE_CHECKING:
    from topics.embedded import open_folder as open
    from topics.engine.engine import Engine
    from topics_client import AsyncClient, Client
    from topics_protocol.records import Record

__all__ = ["AsyncClient", "Client", "Engine", "Record", "__version__", "open"]

_LAZY = {
    "AsyncClient": ("topics_client", "AsyncClient"),
    "Client": ("topics_client", "Client"),
    "Engine": ("topics.engine.engine", "Engine"),
    "Record": ("topics_protocol.records", "Record"),
    "open": ("topics.embedded", "open_folder"),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
