"""Whole exports of OTLP in JSON, taken apart into spans without looking into them.

    {"resourceSpans": [{"resource": R, "scopeSpans": [{"scope": S, "spans": [{...}, {...}]}]}]}

Each span becomes a text of its own, with its resource and its scope behind its own members. Nothing but the brackets
around spans is parsed here, so this is quick, and what is in a span is looked at with all others, in portions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from topics.core.errors import BatchTooLargeError, InvalidRequestError
from topics.schema.limits import MAX_UNPACKED_BYTES

_MARK = b'"resourceSpans"'
_RESOURCE, _SCOPE = b'"resource":', b'"instrumentationScope":'
_NOTHING = msgspec.Raw(b"null")


class _Scope(msgspec.Struct, rename="camel", gc=False):
    scope: msgspec.Raw = _NOTHING
    spans: list[msgspec.Raw] | None = None


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource: msgspec.Raw = _NOTHING
    scope_spans: list[_Scope] | None = None


class _Export(msgspec.Struct, rename="camel", gc=False):
    resource_spans: list[_Resource] | None = None


class ExportLimits(msgspec.Struct, frozen=True):
    """What one append may hold in all of its exports together."""

    bytes: int
    resources: int
    scopes: int
    spans: int


_decode = msgspec.json.Decoder(_Export).decode


def unpack_exports(raws: Sequence[bytes | msgspec.Raw], limits: ExportLimits) -> list[bytes | msgspec.Raw] | None:
    """The entries of an append, with the spans of an export in its place; None where none of them is one."""
    if not any(_MARK in _text(raw) for raw in raws):
        return None
    exports = [_read(index, raw, limits) for index, raw in enumerate(raws)]
    found = [export for export in exports if export is not None]
    _check(found, limits)
    unpacked: list[bytes | msgspec.Raw] = []
    for raw, export in zip(raws, exports, strict=True):
        unpacked += [raw] if export is None else _spans(export)
    if not unpacked:
        raise InvalidRequestError("the export holds no spans: there is nothing to append", field="resourceSpans")
    return unpacked


def _text(raw: bytes | msgspec.Raw) -> bytes:
    return raw if isinstance(raw, bytes) else bytes(raw)


def _read(index: int, raw: bytes | msgspec.Raw, limits: ExportLimits) -> _Export | None:
    """An entry as an export; None where it is something else that only mentions the word."""
    text = _text(raw)
    if _MARK not in text:
        return None
    if len(text) > limits.bytes:
        raise BatchTooLargeError(f"an export has at most {limits.bytes} bytes here; split it", max=limits.bytes)
    try:
        export = _decode(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(index, f"is not an export of traces: {error}") from None
    if export.resource_spans is None:
        return None
    for spans in _span_lists(export):
        for span in spans:
            if bytes(span)[:1] != b"{":
                raise _refusal(index, "holds a span that is not a JSON object")
    return export


def _check(exports: list[_Export], limits: ExportLimits) -> None:
    """The bounds of an export, before any of it takes memory: each span is given a copy of its resource."""
    resources = sum([len(export.resource_spans or ()) for export in exports])
    scopes = [scope for export in exports for one in export.resource_spans or () for scope in one.scope_spans or ()]
    spans = sum([len(scope.spans or ()) for scope in scopes])
    for what, count, most in (
        ("resources", resources, limits.resources), ("scopes", len(scopes), limits.scopes),
        ("spans", spans, limits.spans),
    ):  # fmt: skip
        if count > most:
            raise BatchTooLargeError(f"an export has at most {most} {what} here; split it", max=most)
    size = sum(
        (len(one.resource) + len(scope.scope)) * len(scope.spans or ())
        for export in exports
        for one in export.resource_spans or ()
        for scope in one.scope_spans or ()
    )
    if size > MAX_UNPACKED_BYTES:
        raise BatchTooLargeError(
            f"with its resource and scope in each span the export has more than {MAX_UNPACKED_BYTES} bytes; split it",
            max=MAX_UNPACKED_BYTES,
        )


def _span_lists(export: _Export) -> Iterator[list[msgspec.Raw]]:
    for one in export.resource_spans or ():
        for scope in one.scope_spans or ():
            yield scope.spans or []


def _spans(export: _Export) -> Iterator[bytes]:
    for one in export.resource_spans or ():
        for scope in one.scope_spans or ():
            behind = b"".join((_RESOURCE, bytes(one.resource), b",", _SCOPE, bytes(scope.scope), b"}"))
            for span in scope.spans or ():
                # The members behind win over those of the same name in the span, as a later one of JSON does.
                begun = bytes(span).rstrip()[:-1].rstrip()
                yield begun + (b"" if begun.endswith(b"{") else b",") + behind


def _refusal(index: int, problem: str) -> InvalidRequestError:
    detail: dict[str, Any] = {"index": index, "reason": "schema"}
    return InvalidRequestError(f"entry {index} {problem}", **detail)
