"""The OpenAPI 3.1 document of both protocols, and a page of it that needs no network.

`write_operation` is the only writer of operations. Specs of /v0 are generated from the route table and its message
types; `topics.api.v1.openapi` generates those of /v1.
"""

import html
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from topics.api.app import Operation, Route
from topics.api.error_responses import STATUS_BY_CODE
from topics.api.field_help import describe
from topics.consumers.consumers import CONSUMER_NAME_PATTERN
from topics.model.router_rules import ROUTER_NAME_PATTERN
from topics.model.topic_config import TOPIC_NAME_PATTERN
from topics.schedules.schedules import SCHEDULE_NAME_PATTERN
from topics_protocol.v0 import ErrorAnswer, Performance

Schema = dict[str, object]
"""A JSON Schema."""

REF = "#/components/schemas/{name}"
JSON = "application/json"
_SWITCHING, _CREATED = 101, 201
_EVERY_ROUTE = ("invalid_request", "internal")
_WITH_KEYS = ("unauthorized", "forbidden")
_WITH_ENGINE = ("throttled", "not_ready")
_NAME_PATTERNS = {
    "topic": TOPIC_NAME_PATTERN,
    "router": ROUTER_NAME_PATTERN,
    "transaction": TOPIC_NAME_PATTERN,
    "consumer": CONSUMER_NAME_PATTERN,
    "schedule": SCHEDULE_NAME_PATTERN,
    "wid": "^wid_[A-Za-z0-9_-]{22}$",
}
_U64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_MATCH = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"enum": ["Eq", "Glob"]}, {"type": "string"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {"type": "null"},
    ],
}
_NOT_NEGATIVE = ("_ms", "_seq", "_records", "_bytes", "limit", "max_deliveries")


def build_document(
    routes: tuple[Route, ...],
    version: str,
    stream_paths: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    stream_types: frozenset[type] = frozenset(),
) -> dict[str, Any]:
    """The document of both protocols. Paths of /v1, which have headers and bodies of all kinds, come as they are."""
    types: set[type] = {Performance, ErrorAnswer, *stream_types}
    for route in routes:
        if route.operation is not None:
            types |= {answer for answer in route.operation.answers.values() if isinstance(answer, type)}
            types |= {route.operation.body} if route.operation.body is not None else set()
    ordered = sorted(types, key=lambda one: one.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=REF)
    _sharpen(components)
    describe(components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.operation is not None:
            paths.setdefault(route.path, {})[route.method.lower()] = write_operation(_spec_of(route, route.operation))
    paths.update(stream_paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": version,
            "description": "A durable event engine: append-only topics, cursors by seq, and reports of lost records.",
        },
        "tags": [
            {"name": "/v0", "description": "Topics, queues, routers and live delivery."},
            {"name": "/v1", "description": "Durable Streams: the same log, as streams."},
        ],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class ResponseSpec(msgspec.Struct, frozen=True):
    """One response: its meaning, its body by content type, and its headers with their descriptions."""

    text: str
    content: Mapping[str, type | Schema | None] = {}
    """A message type, a schema, or None for a body without one."""
    headers: Mapping[str, str] = {}


class ParameterSpec(msgspec.Struct, frozen=True):
    """A parameter of a request: `where` is path, query or header."""

    name: str
    where: str
    schema: Schema
    text: str | None = None


class OperationSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of either protocol, as the document describes it."""

    name: str
    summary: str
    tag: str
    responses: Mapping[int, ResponseSpec]
    refusals: Mapping[int, ResponseSpec]
    parameters: Sequence[ParameterSpec] = ()
    body: Mapping[str, type | Schema | None] = {}
    body_required: bool = False
    open: bool = False
    """Whether it answers without a key."""


def write_operation(spec: OperationSpec) -> dict[str, Any]:
    """The OpenAPI operation object."""
    written: dict[str, Any] = {
        "operationId": spec.name,
        "summary": spec.summary,
        "tags": [spec.tag],
        "responses": _write_responses(spec),
    }
    if spec.parameters:
        written["parameters"] = [_write_parameter(parameter) for parameter in spec.parameters]
    if spec.body:
        written["requestBody"] = {"required": spec.body_required, "content": _write_content(spec.body)}
    if not spec.open:
        written["security"] = [{}, {"bearer": []}]
    return written


def _write_parameter(spec: ParameterSpec) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": spec.name,
        "in": spec.where,
        "required": spec.where == "path",
        "schema": spec.schema,
    }
    return written if spec.text is None else {**written, "description": spec.text}


def _write_responses(spec: OperationSpec) -> dict[str, Any]:
    """The responses by status. A status with a response and a refusal (408 of a search) has either body."""
    responses = {str(status): _write_response(one) for status, one in spec.responses.items()}
    refusals = {str(status): _write_response(one) for status, one in spec.refusals.items()}
    for status in responses.keys() & refusals.keys():
        kinds = [part["content"][JSON]["schema"] for part in (responses[status], refusals[status])]
        refusals[status]["content"][JSON] = {"schema": {"anyOf": kinds}}
    return {**responses, **refusals}


def _write_response(spec: ResponseSpec) -> dict[str, Any]:
    written: dict[str, Any] = {"description": spec.text}
    if spec.content:
        written["content"] = _write_content(spec.content)
    if spec.headers:
        written["headers"] = {
            name: {"required": False, "schema": {"type": "string"}, "description": text}
            for name, text in spec.headers.items()
        }
    return written


def _write_content(content: Mapping[str, type | Schema | None]) -> dict[str, Any]:
    return {media: {} if kind is None else {"schema": _write_schema(kind)} for media, kind in content.items()}


def _write_schema(kind: type | Schema) -> Schema:
    return {"$ref": REF.format(name=kind.__name__)} if isinstance(kind, type) else kind


# Operations of /v0, made of the route table


def _spec_of(route: Route, operation: Operation) -> OperationSpec:
    parameters = [ParameterSpec(one.name, "query", one.schema, one.text) for one in operation.query]
    for place, name in enumerate(re.findall(r"\{(\w+)\}", route.path)):
        schema: Schema = {"type": "string"}
        if name == "seq":
            schema = {"type": "integer", "minimum": 0}
        elif place or not operation.any_name:
            schema["pattern"] = _NAME_PATTERNS[name]
        parameters.insert(place, ParameterSpec(name, "path", schema))
    return OperationSpec(
        name=operation.name,
        summary=operation.summary,
        tag="/v0",
        responses={status: _response_of(status, answer) for status, answer in operation.answers.items()},
        refusals=_refusals_of(route, operation),
        parameters=parameters,
        body={} if operation.body is None else {JSON: operation.body},
        body_required=operation.body_required,
        open=route.open,
    )


def _response_of(status: int, answer: type | str) -> ResponseSpec:
    if status == _SWITCHING:
        return ResponseSpec("Switching Protocols")
    content: dict[str, type | Schema | None] = {answer: None} if isinstance(answer, str) else {}
    if not isinstance(answer, str):
        # Every JSON response has the performance block besides its own fields.
        performance = {"properties": {"performance": _write_schema(Performance)}}
        content[JSON] = {"allOf": [_write_schema(answer), performance]}
    return ResponseSpec("Created" if status == _CREATED else "OK", content)


def _refusals_of(route: Route, operation: Operation) -> dict[int, ResponseSpec]:
    codes = (
        *operation.errors,
        *_EVERY_ROUTE,
        *(() if route.open else _WITH_KEYS),
        *(() if route.ops else _WITH_ENGINE),
    )
    if operation.body is not None:
        codes = (*codes, "payload_too_large", "unsupported_media_type")
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS_BY_CODE[code], []).append(code)
    return {status: ResponseSpec(", ".join(found), {JSON: ErrorAnswer}) for status, found in sorted(by_status.items())}


def _sharpen(components: dict[str, Any]) -> None:
    """Adds constraints that the types lack: unsigned numbers, the grammar of a match, opaque payloads."""
    for schema in components.values():
        for name, field in schema.get("properties", {}).items():
            if name.endswith(_NOT_NEGATIVE) and field.get("type") == "integer":
                field.setdefault("minimum", 0)
    delete = components["DeleteBody"]["properties"]
    delete["before_seq"] = {"anyOf": [_U64, {"type": "null"}]}
    delete["match"] = dict(_MATCH)
    components["DeleteBody"]["anyOf"] = [{"required": ["before_seq"]}, {"required": ["match"]}]
    components["RouterBody"]["properties"]["filter"] = dict(_MATCH)
    for name in ("ScheduleBody", "ScheduleOut", "SchedulePutAnswer"):
        components[name]["properties"]["data"] = {}
    for name in ("AckBody", "JobResultOut"):
        components[name]["properties"]["result"] = {}
    record = components["Record"]["properties"]
    record["data"] = {}
    record["meta"] = {"anyOf": [{"type": "object"}, {"type": "null"}]}


def build_page(document: dict[str, Any]) -> bytes:
    """A plain page of the document: no scripts, nothing to fetch."""
    parts = [_PAGE_HEAD]
    for tag in document["tags"]:
        parts.append(f"<h2>{html.escape(tag['name'])}</h2><p>{html.escape(tag['description'])}</p>")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts.append(_section(method.upper(), path, operation))
    parts.append("<h2>Messages</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = html.escape(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
        parts.append(f'<details id="{name}"><summary><code>{name}</code></summary><pre>{text}</pre></details>')
    parts.append("</main></body></html>")
    return "\n".join(parts).encode()


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{status}</td><td>{html.escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    asked = "".join(
        f"<li><code>{html.escape(p['name'])}</code> ({p['in']}) {html.escape(p.get('description', ''))}</li>"
        for p in operation.get("parameters", ())
    )
    sent = _bodies(operation.get("requestBody", {}).get("content", {}))
    return (
        f"<section><h3><b>{method}</b> <code>{html.escape(path)}</code></h3><p>{html.escape(operation['summary'])}</p>"
        f"{sent}<ul>{asked}</ul><table>{rows}</table></section>"
    )


def _bodies(content: dict[str, Any]) -> str:
    """The request bodies by content type, each linked to its message type."""
    shown = []
    for media, described in content.items():
        name = described["schema"].get("$ref", "").rpartition("/")[2]
        link = f' <a href="#{name}"><code>{name}</code></a>' if name else ""
        shown.append(f"<code>{html.escape(media)}</code>{link}")
    return f"<p>Body: {', '.join(shown)}</p>" if shown else ""


_PAGE_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>topics: API</title>
<meta name="viewport" content="width=device-width"><style>
body{font:16px/1.5 system-ui,sans-serif;margin:0;color:#1b1b1b;background:#fff}
main{max-width:52rem;margin:auto;padding:2rem}
section{border-top:1px solid #ddd;padding:.5rem 0}h3 b{display:inline-block;min-width:4.5rem;color:#0a5}
td{padding:.1rem 1rem .1rem 0;vertical-align:top;color:#444}pre{background:#f6f6f6;padding:1rem;overflow:auto}
code{font-size:.95em}ul{margin:.2rem 0;padding-left:1.2rem;color:#444}
</style></head><body><main><h1>topics</h1>
<p>The document behind this page is at <a href="/v0/openapi.json">/v0/openapi.json</a>.</p>"""
