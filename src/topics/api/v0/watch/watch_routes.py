"""The routes of a watch, with what they need and what they answer."""

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.openapi_operation import Operation, Parameter
from topics.api.v0.watch import watch
from topics.wire.watch import WatchAnswer, WatchBody

WATCH_ROUTES = (
    Route(
        "POST", "/v0/watch", watch.create, Scope.READ, takes_body=True,
        operation=Operation(
            "createWatch", "Make a session that follows topics.", {200: WatchAnswer}, ("topic_not_found",), WatchBody,
            True, (Parameter("lenient", {"type": "boolean"}, "Leave out what does not exist; false unless told."),),
        ),
    ),
    Route(
        "GET", "/v0/watch/{wid}", watch.stream, Scope.READ, guards_itself=True,
        operation=Operation(
            "openWatch", "The session's stream of events.", {200: "text/event-stream"},
            ("not_found", "not_acceptable"),
            query=(Parameter("token", {"type": "string"}, "The key, for browsers, which send no header here."),),
        ),
    ),
)  # fmt: skip
