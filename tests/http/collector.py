"""A collector of OpenTelemetry for tests: takes exports by OTLP over HTTP, and keeps their spans."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_PATIENCE_S = 60.0


class Collector:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        """As the protocol has them, in the order in which they came."""
        self.resources: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                right = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                if right:
                    collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if right else 400)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, export: Any) -> None:
        for group in export.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)

    def wait_for(self, name: str) -> Any:
        """The first span of the name."""
        give_up = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up:
            for span in list(self.spans):
                if span.name == name:
                    return span
            time.sleep(0.05)
        raise AssertionError(f"no span {name!r} came, but {[span.name for span in self.spans]}")

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes(span: Any) -> dict[str, str | int]:
    return {
        one.key: one.value.int_value if one.value.HasField("int_value") else one.value.string_value
        for one in span.attributes
    }
