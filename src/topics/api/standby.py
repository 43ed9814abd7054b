"""The rules of a standby that serves reads: headers of its answers, and requests that only the primary may answer.

| request header `topics-primary` | effect on a standby |
|---|---|
| none | reads are answered with `topics-role: standby` and `topics-lag-ms`; writes get 421 `not_primary` |
| `redirect` | writes get 307 with the URL of the primary, where it is known |
| `require` | reads get 421, too |
| `require, redirect` | every request gets 307 |
"""

from collections.abc import Callable

from topics.api.auth import Scope
from topics.api.error_responses import error_headers, refusal_of
from topics.http.messages import Refusal, RequestHead
from topics.model.errors import NotPrimaryError

HEADER = b"topics-primary"
ROLE = "topics-role"
LAG = "topics-lag-ms"
_SUBSCRIPTIONS = "/v1/stream/__ds/"
"""Only a primary keeps the state of subscriptions in memory."""


def redirection(head: RequestHead, error: NotPrimaryError) -> tuple[tuple[str, str], ...]:
    """The headers of a redirect to the primary, for a client that asks for it; empty for others."""
    primary = error.detail.get("primary")
    if HEADER not in head.headers.first or not isinstance(primary, str):
        return ()
    if "redirect" not in head.headers.get("topics-primary", "").lower():
        return ()
    location = primary.rstrip("/") + head.path + (f"?{head.query}" if head.query else "")
    return (("location", location), ("cache-control", "no-store"))


class StandbyRules:
    def __init__(self, lag_ms: Callable[[], int], primary: Callable[[], str | None]) -> None:
        """`primary` returns the URL of the primary; empty or None while it is not known."""
        self.lag_ms = lag_ms
        self._primary = primary

    def admit(self, head: RequestHead, scopes: Scope) -> Refusal | None:
        """The refusal of a request that only the primary answers; None for others, whose answers get headers."""
        only_primary = HEADER in head.headers.first and "require" in head.headers.get("topics-primary", "").lower()
        reads = scopes in (Scope.READ, Scope(0)) and not head.path.startswith(_SUBSCRIPTIONS)
        if reads and not only_primary:
            head.answer_headers = (*head.answer_headers, (ROLE, "standby"), (LAG, str(self.lag_ms())))
            return None
        error = NotPrimaryError(self._primary() or "")
        headers = redirection(head, error)
        if headers:
            return Refusal(307, b"", "", headers)
        status, body = refusal_of(error, head.path)
        return Refusal(status, body, "application/json", error_headers(error))
