"""What the OpenAPI document says of /v1: each route by its method and path, as `StreamsApi.listed` names them.

A route that is missing here is missing in the document, and a test fails.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from topics.api.errors import V1_STATUS_BY_CODE
from topics.api.openapi_operation import Parameter
from topics.api.refusals import V1_CODE_BY_STATUS
from topics.api.v1.listing import ListedStream
from topics.api.v1.openapi_parts import (
    AGGREGATE_BODY,
    AGGREGATED,
    ANSWER_HEADERS,
    BODIES,
    ENTRIES,
    GRANTED,
    INDEX_STATUS,
    INSPECT_QUERY,
    NAMES,
    PROFILE,
    PROFILE_BODY,
    READ_QUERY,
    REGISTRY,
    REGISTRY_BODY,
    REQUEST_HEADERS,
    ROUTING_KEYS,
    SEARCH_BODY,
    SEARCH_MANY_BODY,
    SEARCH_QUERY,
    SEARCHED,
    SEARCHED_MANY,
    SERVER_DETAILS,
    SERVER_MEMORY,
    STREAM_DETAILS,
    SUBSCRIPTION,
    TEMPLATES,
    TEMPLATES_BODY,
    TOUCH_META,
    TOUCH_WAIT,
    TOUCHED,
    Schema,
    whole,
)
from topics.api.v1.subscriptions import ClaimRequest, LinkRequest, ReleaseRequest
from topics.streams.subscriptions.model import SubscriptionRequest
from topics.streams.subscriptions.service import Acks

REF = "#/components/schemas/{name}"
_JSON = "application/json"
_STREAM = "/v1/stream/{stream}"
_SUBSCRIPTION = "/v1/stream/__ds/subscriptions/{id}"
_EVERY = (400, 404, 405, 408, 429, 500, 503)
_WITH_KEYS = (401, 403)
_ERROR_HEADERS = {
    401: ("WWW-Authenticate",), 403: ("Producer-Epoch",), 405: ("Allow",), 429: ("Retry-After",), 503: ("Retry-After",),
    409: (
        "Stream-Closed", "Stream-Next-Offset", "Stream-Expected-Seq", "Stream-Received-Seq", "Producer-Expected-Seq",
        "Producer-Received-Seq",
    ),
}  # fmt: skip


class Told(msgspec.Struct, frozen=True):
    """One answer: what it means, its body by content type, and its headers."""

    text: str
    content: dict[str, type | Schema] = {}
    headers: tuple[str, ...] = ()


class Described(msgspec.Struct, frozen=True):
    name: str
    summary: str
    answers: dict[int, Told]
    errors: tuple[int, ...] = ()
    """Statuses besides those that every route has."""
    query: tuple[Parameter, ...] = ()
    headers: tuple[str, ...] = ()
    """Of the request, from `REQUEST_HEADERS`."""
    body: dict[str, type | Schema] = {}
    body_required: bool = False
    open: bool = False
    """Answers without a key."""


_WRITTEN = ("Stream-Next-Offset", "Stream-Closed", "Producer-Epoch", "Producer-Seq")
_CREATED = ("Stream-Next-Offset", "Stream-Closed", "Stream-Expires-At")
_READ = (
    "Stream-Next-Offset", "Stream-End-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Gap", "Stream-Cursor",
    "Stream-Expires-At", "Stream-SSE-Data-Encoding", "Stream-Filter-Scan-Limit-Reached",
    "Stream-Filter-Scan-Limit-Bytes", "Stream-Filter-Scanned-Bytes", "ETag", "Cache-Control",
)  # fmt: skip
_APPEND_HEADERS = (
    "Stream-Key", "Stream-Timestamp", "Stream-Seq", "Stream-Closed", "Producer-Id", "Producer-Epoch", "Producer-Seq",
)  # fmt: skip
_CREATE_HEADERS = (
    "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Stream-Key", "Stream-Timestamp", "Stream-Forked-From",
    "Stream-Fork-Offset", "Stream-Fork-Sub-Offset",
)  # fmt: skip
_READS = {
    200: Told("The entries, as an array, as bytes one behind the other, or as events.", ENTRIES, _READ),
    204: Told("Nothing came while a long poll waited, or the stream is closed.", {}, _READ),
    304: Told("What the client has still holds.", {}, _READ),
}
_TAGGED = ("ETag", "Cache-Control")
_ACKED = {200: Told("Acknowledged.", {_JSON: {"type": "object", "required": ["ok", "next_wake"]}})}
_ENTRY_BODY: dict[str, type | Schema] = {**BODIES}

_PAGES = {
    200: Told("A page of hits.", {_JSON: SEARCHED}),
    408: Told("What was found before the time was over.", {_JSON: SEARCHED}),
}
OPERATIONS: dict[tuple[str, str], Described] = {
    ("GET", "/v1/streams"): Described(
        "listStreams", "Streams in the order of their names.",
        {200: Told("A page of them.", {_JSON: {"type": "array", "items": {"$ref": REF.format(name="ListedStream")}}})},
        query=(
            Parameter("limit", whole(1), "How many; 100 unless told, 1000 at most."),
            Parameter("offset", whole(0), "How many to pass over first."),
            Parameter("prefix", {"type": "string"}, "Only names that begin so."),
            Parameter("after", {"type": "string"}, "Only names behind this one."),
        ),
    ),
    ("PUT", _STREAM): Described(
        "putStream", "Create a stream, or confirm that it is there as asked.",
        {
            201: Told("Created.", {}, (*_CREATED, "Location")), 200: Told("It was there as asked.", {}, _CREATED),
        },
        (409, 410, 413, 415), headers=_CREATE_HEADERS, body=_ENTRY_BODY,
    ),
    ("POST", _STREAM): Described(
        "appendToStream", "Append entries, close the stream, or both at once.",
        {
            204: Told("Done; with a producer: it was done before.", {}, _WRITTEN),
            200: Told("With a producer: new data.", {}, _WRITTEN),
        },
        (409, 410, 413, 415, 422), headers=_APPEND_HEADERS, body=_ENTRY_BODY,
    ),
    ("GET", _STREAM): Described(
        "readStream", "Read entries, at once or waiting.", _READS, (410,), READ_QUERY, ("If-None-Match",),
    ),
    ("GET", f"{_STREAM}/pk/{{key}}"): Described(
        "readStreamKey", "Read the entries of one key.", _READS, (410,), READ_QUERY, ("If-None-Match",),
    ),
    ("HEAD", _STREAM): Described(
        "headStream", "What a stream is, and where it ends.",
        {200: Told(
            "It is there.", {},
            ("Stream-Next-Offset", "Stream-End-Offset", "Stream-TTL", "Stream-Expires-At", "Stream-Closed"),
        )}, (410,),
    ),
    ("DELETE", _STREAM): Described(
        "deleteStream", "Delete a stream with everything in it.",
        {204: Told("Deleted.", {}, ("Stream-Next-Offset",))}, (409, 410),
    ),
    ("GET", f"{_STREAM}/_schema"): Described(
        "getStreamSchema", "The schemas, lenses, routing key and search description of a stream.",
        {200: Told("The registry.", {_JSON: REGISTRY})}, (410,),
    ),
    ("POST", f"{_STREAM}/_schema"): Described(
        "updateStreamSchema", "Install a schema, a routing key or a search description.",
        {200: Told("The registry as it is now.", {_JSON: REGISTRY})}, (409, 410, 413, 415),
        body={_JSON: REGISTRY_BODY}, body_required=True,
    ),
    ("GET", f"{_STREAM}/_profile"): Described(
        "getStreamProfile", "The profile of a stream.", {200: Told("The profile.", {_JSON: PROFILE})}, (410,),
    ),
    ("POST", f"{_STREAM}/_profile"): Described(
        "updateStreamProfile", "Give a stream another profile.",
        {200: Told("The profile as it is now.", {_JSON: PROFILE})}, (409, 410, 413, 415),
        body={_JSON: PROFILE_BODY}, body_required=True,
    ),
    ("GET", f"{_STREAM}/_search"): Described(
        "findEntries", "Search the entries of a stream, with the fields of the body as parameters.",
        _PAGES, (410,), SEARCH_QUERY,
    ),
    ("POST", f"{_STREAM}/_search"): Described(
        "searchStream", "Search the entries of a stream.", _PAGES,
        (410, 413, 415), body={_JSON: SEARCH_BODY},
    ),
    ("POST", "/v1/_search"): Described(
        "searchStreams", "Search the entries of several streams.",
        {200: Told("A page of hits.", {_JSON: SEARCHED_MANY}), 408: Told("The same in part.", {_JSON: SEARCHED_MANY})},
        (413, 415), body={_JSON: SEARCH_MANY_BODY}, body_required=True,
    ),
    ("POST", f"{_STREAM}/_aggregate"): Described(
        "aggregateStream", "Measures of a rollup, in intervals of time.",
        {200: Told("The buckets that hold something.", {_JSON: AGGREGATED})}, (410, 413, 415),
        body={_JSON: AGGREGATE_BODY}, body_required=True,
    ),
    ("GET", f"{_STREAM}/_routing_keys"): Described(
        "listRoutingKeys", "The keys of a stream in their order.",
        {200: Told("A page of them.", {_JSON: ROUTING_KEYS})}, (410,),
        query=(
            Parameter("limit", whole(1), "How many."), Parameter("after", {"type": "string"}, "Only keys behind this."),
        ),
    ),
    ("GET", f"{_STREAM}/_details"): Described(
        "getStreamDetails", "Everything about a stream, now or once it is otherwise.",
        {200: Told("The details.", {_JSON: STREAM_DETAILS}, _TAGGED), 304: Told("They are as they were.", {}, _TAGGED)},
        (410,), INSPECT_QUERY, ("If-None-Match",),
    ),
    ("GET", f"{_STREAM}/_index_status"): Described(
        "getIndexStatus", "Which indexes a stream asks for, and how far they are; now or once that is otherwise.",
        {200: Told("The status.", {_JSON: INDEX_STATUS}, _TAGGED), 304: Told("It is as it was.", {}, _TAGGED)},
        (410,), INSPECT_QUERY, ("If-None-Match",),
    ),
    ("GET", "/v1/server/_details"): Described(
        "getServerDetails", "What the server is set to, and how it stands.",
        {200: Told("The details.", {_JSON: SERVER_DETAILS})},
    ),
    ("GET", "/v1/server/_mem"): Described(
        "getServerMemory", "What the server holds in memory.", {200: Told("Part by part.", {_JSON: SERVER_MEMORY})},
    ),
    ("GET", f"{_STREAM}/touch/meta"): Described(
        "getTouches", "The cursor to wait from, and counters.", {200: Told("How it stands.", {_JSON: TOUCH_META})},
        (410,),
        query=(
            Parameter("settle", {"type": "string", "enum": ["flush"]}, "Wait until all entries were looked at."),
            Parameter("timeoutMs", whole(0), "How long, up to 120000."),
        ),
    ),
    ("POST", f"{_STREAM}/touch/wait"): Described(
        "waitForTouch", "Wait until one of some keys is touched.", {200: Told("How it ended.", {_JSON: TOUCHED})},
        (410, 413, 415), body={_JSON: TOUCH_WAIT}, body_required=True,
    ),
    ("POST", f"{_STREAM}/touch/templates/activate"): Described(
        "activateTemplates", "Let changes be looked at for templates of queries.",
        {200: Told("Which are active.", {_JSON: TEMPLATES})}, (410, 413, 415), body={_JSON: TEMPLATES_BODY},
        body_required=True,
    ),
    ("PUT", _SUBSCRIPTION): Described(
        "putSubscription", "Create a subscription, or confirm that it is there as asked.",
        {
            201: Told("Created.", {_JSON: SUBSCRIPTION}), 200: Told("It was there as asked.", {_JSON: SUBSCRIPTION}),
        },
        (409, 413, 415), body={_JSON: SubscriptionRequest}, body_required=True,
    ),
    ("GET", _SUBSCRIPTION): Described(
        "getSubscription", "What a subscription asks for, and how far it is.",
        {200: Told("The subscription.", {_JSON: SUBSCRIPTION})},
    ),
    ("DELETE", _SUBSCRIPTION): Described(
        "deleteSubscription", "Delete a subscription.", {204: Told("It is not there any more.")},
    ),
    ("POST", f"{_SUBSCRIPTION}/streams"): Described(
        "linkStreams", "Add streams to a subscription.", {204: Told("Added.")}, (409, 413, 415),
        body={_JSON: LinkRequest}, body_required=True,
    ),
    ("DELETE", f"{_SUBSCRIPTION}/streams/{{name}}"): Described(
        "unlinkStream", "Take a stream out of a subscription.", {204: Told("It does not belong to it any more.")},
    ),
    ("POST", f"{_SUBSCRIPTION}/claim"): Described(
        "claimWake", "Take the lease of a subscription that has something new.",
        {200: Told("The lease, and what is new.", {_JSON: GRANTED})}, (409, 413, 415), body={_JSON: ClaimRequest},
    ),
    ("POST", f"{_SUBSCRIPTION}/ack"): Described(
        "ackWake", "Acknowledge offsets and renew the lease, with the token of the claim.", _ACKED,
        (401, 409, 413, 415), body={_JSON: Acks}, body_required=True, open=True,
    ),
    ("POST", f"{_SUBSCRIPTION}/callback"): Described(
        "callBack", "The same for the receiver of a webhook.", _ACKED, (401, 409, 413, 415),
        body={_JSON: Acks}, body_required=True, open=True,
    ),
    ("POST", f"{_SUBSCRIPTION}/release"): Described(
        "releaseWake", "Give the lease back, with the token of the claim.", {204: Told("Given back.")},
        (401, 409, 413, 415), body={_JSON: ReleaseRequest}, body_required=True, open=True,
    ),
    ("GET", "/v1/stream/__ds/jwks.json"): Described(
        "getSigningKeys", "The key that signs webhooks.",
        {200: Told("A set of one key.", {"application/jwk-set+json": {"type": "object", "required": ["keys"]}})},
        open=True,
    ),
}  # fmt: skip


def described_types() -> frozenset[type]:
    """The message types that the descriptions name."""
    told = [answer.content for one in OPERATIONS.values() for answer in one.answers.values()]
    bodies = [one.body for one in OPERATIONS.values()]
    kinds = [kind for content in (*told, *bodies) for kind in content.values()]
    return frozenset((ListedStream, *(kind for kind in kinds if isinstance(kind, type))))


def stream_paths(listed: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """The paths of the document, for the routes that there are."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in listed:
        described = OPERATIONS.get((method, path))
        if described is not None:
            paths.setdefault(path, {})[method.lower()] = _operation(path, described)
    return paths


def _operation(path: str, described: Described) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": NAMES[name][0], "description": NAMES[name][1]}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "required": False, "schema": one.schema, "description": one.text}
        for one in described.query
    ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
        for name in described.headers
        for schema, text in (REQUEST_HEADERS[name],)
    ]
    operation: dict[str, Any] = {
        "operationId": described.name, "summary": described.summary, "tags": ["/v1"],
        "responses": _both(_answers(described), _refusals(path, described)),
    }  # fmt: skip
    if parameters:
        operation["parameters"] = parameters
    if described.body:
        operation["requestBody"] = {"required": described.body_required, "content": _content(described.body)}
    if not described.open:
        operation["security"] = [{}, {"bearer": []}]
    return operation


def _both(answers: dict[str, Any], refusals: dict[str, Any]) -> dict[str, Any]:
    """A status may be that of an answer in part as well as of a refusal: 408 of a search is either."""
    for status in answers.keys() & refusals.keys():
        kinds = [part["content"][_JSON]["schema"] for part in (answers[status], refusals[status])]
        refusals[status]["content"][_JSON] = {"schema": {"anyOf": kinds}}
    return {**answers, **refusals}


def _answers(described: Described) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, told in described.answers.items():
        answer: dict[str, Any] = {"description": told.text}
        if told.content:
            answer["content"] = _content(told.content)
        if told.headers:
            answer["headers"] = _headers(told.headers)
        answers[str(status)] = answer
    return answers


def _refusals(path: str, described: Described) -> dict[str, Any]:
    keyed = () if described.open else _WITH_KEYS
    own_words = path.startswith("/v1/stream/__ds/")
    refusals: dict[str, Any] = {}
    for status in sorted({*_EVERY, *keyed, *described.errors}):
        words = _words(status, own_words)
        answer = {"description": " or ".join(words) or "refused", "content": {_JSON: {"schema": _error(words)}}}
        if status in _ERROR_HEADERS:
            answer["headers"] = _headers(_ERROR_HEADERS[status])
        refusals[str(status)] = answer
    return refusals


def _words(status: int, own_words: bool) -> list[str]:
    """The codes that a status comes with; below subscriptions there are more than anyone wants to read."""
    if own_words:
        return [code for code, of in V1_STATUS_BY_CODE.items() if of == status and code.isupper()]
    words = [V1_CODE_BY_STATUS.get(status, "topic_full")]
    return [*words, "append_timeout"] if status == 408 else words


def _error(words: list[str]) -> Schema:
    general: Schema = {"$ref": REF.format(name="ErrorAnswer")}
    if not words or words[0].isupper():
        return general
    return {"allOf": [general, {"properties": {"error": {"properties": {"code": {"enum": words}}}}}]}


def _headers(names: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: {"required": False, "schema": {"type": "string"}, "description": ANSWER_HEADERS[name]} for name in names
    }


def _content(content: dict[str, type | Schema]) -> dict[str, Any]:
    return {
        media: {"schema": {"$ref": REF.format(name=kind.__name__)} if isinstance(kind, type) else kind}
        for media, kind in content.items()
    }
