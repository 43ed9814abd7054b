"""Routers: forwarding records from one topic into another, and keeping the copies through any crash."""

from topics.engine.routing.control import RouterInfo, RouterPutResult, RouterRemoveResult
from topics.engine.routing.routing import Routing

__all__ = ["RouterInfo", "RouterPutResult", "RouterRemoveResult", "Routing"]
