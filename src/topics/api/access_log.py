"""The access log: a line for each answer, where that is asked for."""

import logging

from topics.api.proxies import TrustedProxies
from topics.api.traces import trace_of
from topics.http.exchange import Exchange

_access = logging.getLogger("topics.access")


class AccessLog:
    def __init__(self, proxies: TrustedProxies) -> None:
        self._proxies = proxies

    def answered(self, exchange: Exchange, status: int, spent_s: float) -> None:
        head = exchange.head
        key = getattr(head.context, "key", None)
        line: dict[str, object] = {
            "method": head.method,
            # Without the query, where a token may stand.
            "path": head.path,
            "status": status,
            "took_ms": round(spent_s * 1000, 3),
            "peer": self._proxies.client(exchange.peer, head.headers),
        }
        if key is not None and key.name:
            line["key"] = key.name
        trace = trace_of(head)
        if trace is not None:
            line["trace_id"], line["span_id"] = trace
        _access.info("answered", extra=line)
