"""Spans by OpenTelemetry, sent to a collector by OTLP over HTTP: the extra `otel`.

A request with a trace begins its span at admission, because its answer names it; for any other request the span is
created with the answer. Both end with the answer, which for an event stream is its start. A thread of the library sends
them in batches, and spans that the collector refuses are dropped; no request waits for it.

A span has the route, the topic and the outcome. It has no keys, queries, bodies or paths, because the ids of watches
are secrets.
"""

from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as _Span

from topics.api.tracing import TraceContext
from topics.http.messages import RequestHead
from topics_protocol import __version__

_EXPORT_S = 5.0
_FAILED = 500


class Span:
    """A started span and its position in the trace."""

    def __init__(self, span: _Span, end_ns: int | None = None) -> None:
        """`end_ns` is its end, if known already."""
        self._span = span
        self._end_ns = end_ns
        reported = span.get_span_context()
        self.context = TraceContext(
            f"{reported.trace_id:032x}",
            f"{reported.span_id:016x}",
            reported.trace_flags.sampled,
            reported.trace_state.to_header(),
        )

    def end(self, status: int | None, error: str = "") -> None:
        """Ends the span with the status of the answer, or with the error that prevented it."""
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if error or (status is not None and status >= _FAILED):
            self._span.set_status(Status(StatusCode.ERROR, error or None))
        self._span.end(self._end_ns)


class Spans:
    def __init__(self, endpoint: str, sample_percent: int, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        resource = Resource.create({"service.version": __version__}).merge(_named())
        sampler = ParentBased(TraceIdRatioBased(sample_percent / 100))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_S)))
        self._tracer = self._provider.get_tracer("topics", __version__)

    def begin(
        self, head: RequestHead, route: str, name: str, parent: TraceContext | None, ago_s: float | None = None
    ) -> Span:
        """Starts the span of a request, or of an earlier request that is answered now."""
        attributes = {"http.request.method": head.method, "network.protocol.version": head.http_version}
        if route:
            attributes["http.route"] = route
        if name:
            attributes["messaging.destination.name"] = name
        return self._start(f"{head.method} {route}".strip(), SpanKind.SERVER, parent, attributes, ago_s)

    def call(self, url: str, parent: TraceContext | None) -> Span:
        """Starts the span of a webhook call."""
        attributes = {"http.request.method": "POST", "url.full": url.partition("?")[0]}
        return self._start("POST webhook", SpanKind.CLIENT, parent, attributes)

    def close(self) -> None:
        """Sends the remaining spans. Blocks while the collector answers, up to a few seconds."""
        self._provider.shutdown()

    def _start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        attributes: dict[str, str],
        ago_s: float | None = None,
    ) -> Span:
        around = None if parent is None else set_span_in_context(NonRecordingSpan(_remote(parent)))
        if ago_s is None:
            return Span(self._tracer.start_span(name, around, kind, attributes))
        end_ns = self._now_ms() * 1_000_000
        start_ns = end_ns - int(ago_s * 1e9)
        return Span(self._tracer.start_span(name, around, kind, attributes, start_time=start_ns), end_ns)


def _remote(parent: TraceContext) -> SpanContext:
    return SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent.sampled)),
        trace_state=TraceState.from_header([parent.state]) if parent.state else TraceState(),
    )


def _named() -> Resource:
    """Returns the service name from OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES; by default `topics`."""
    said = Resource.create()
    unknown = str(said.attributes.get("service.name", "unknown_service")).startswith("unknown_service")
    return Resource({"service.name": "topics"}) if unknown else Resource({})
