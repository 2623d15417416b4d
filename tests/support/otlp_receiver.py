"""A strict receiver of OTLP over HTTP that decodes with the messages of OpenTelemetry itself."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_IDS = ("traceId", "spanId", "parentSpanId")


class ReceivedSpan(NamedTuple):
    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    error: str | None
    node: str  # that it is of

    def is_within(self, other: ReceivedSpan) -> bool:
        return other.start <= self.start <= self.end <= other.end


def decode_export(body: bytes) -> list[ReceivedSpan]:
    """The spans of an export; raises if it is not as OTLP has it."""
    # OTLP writes ids in hex, where JSON of protobuf has base64; all else is the same.
    document = json.loads(body, object_hook=_with_base64_ids)
    request = json_format.ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=False)
    found = []
    for part in request.resource_spans:
        resource = _values(part.resource.attributes)
        assert resource["service.name"] == "skerry"
        for scope in part.scope_spans:
            for span in scope.spans:
                assert (len(span.trace_id), len(span.span_id)) == (16, 8)
                assert any(span.trace_id)
                assert any(span.span_id)
                assert len(span.parent_span_id) in (0, 8)
                assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
                assert span.name
                assert 1 <= span.kind <= 5
                found.append(
                    ReceivedSpan(
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.name,
                        span.kind,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                        span.status.message if span.status.code == 2 else None,
                        resource["service.instance.id"],
                    )
                )
    return found


def _with_base64_ids(document: dict[str, Any]) -> dict[str, Any]:
    for name in _IDS:
        if name in document:
            document[name] = base64.b64encode(bytes.fromhex(document[name])).decode()
    return document


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class OtlpReceiver:
    """What was exported to `url`."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.problems: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []  # answered first, one each
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver._take(self.path, dict(self.headers), body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def do_GET(self) -> None:  # where a redirect leads to
                receiver.problems.append(f"GET {self.path}")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.headers.append({name.lower(): value for name, value in headers.items()})
        if self.statuses:
            return self.statuses.pop(0)
        try:
            assert path == "/v1/traces"
            assert self.headers[-1]["content-type"] == "application/json"
            self.spans += decode_export(body)
        except (AssertionError, ValueError, KeyError, json_format.Error) as problem:
            self.problems.append(repr(problem))
            return 400
        return 200

    def trace(self, id: str) -> dict[str, ReceivedSpan]:
        """The spans of a trace, by their names."""
        return {span.name: span for span in self.spans if span.trace == id}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
