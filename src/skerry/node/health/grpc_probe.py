"""One call of `grpc.health.v1.Health/Check` over a connection, by HTTP/2 without TLS.

A channel with everything that belongs to one would cost more than the call.
"""

from __future__ import annotations

from typing import Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error

from skerry.node.health.connections import ProbeConnection
from skerry.node.health.decisions import CheckResult
from skerry.node.health.http_probe import ProbeFailed

_MAX_RECEIVED: Final = 64 * 1024
_PREFIX: Final = 5  # of a message: whether it is compressed, and its length
_STATUS_FIELD: Final = 0x08  # field 1, a varint
_SERVING: Final = 1
_SERVING_NAMES: Final = {0: "UNKNOWN", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_NOT_FOUND: Final = "5"
_UNIMPLEMENTED: Final = "12"


class _Call:
    """What has been heard of one call."""

    def __init__(self) -> None:
        self.http_status = ""
        self.grpc_status = ""
        self.data = b""
        self.has_ended = False

    def take(self, event: events.Event) -> None:
        match event:
            case events.ResponseReceived() | events.TrailersReceived():
                headers = dict(event.headers or ())
                self.http_status = _text(headers.get(b":status")) or self.http_status
                self.grpc_status = _text(headers.get(b"grpc-status")) or self.grpc_status
            case events.DataReceived():
                self.data += event.data or b""
            case events.StreamEnded():
                self.has_ended = True
            case events.StreamReset() | events.ConnectionTerminated():
                raise ProbeFailed(f"it broke off the call (HTTP/2 error {event.error_code})")

    def result(self) -> CheckResult:
        if self.http_status != "200":
            return CheckResult(False, f"HTTP {self.http_status[:3]}")
        match self.grpc_status:
            case "0":
                status = _serving_status(self.data)
                if status == _SERVING:
                    return CheckResult(True)
                return CheckResult(False, _SERVING_NAMES.get(status, f"status {status}"))
            case "":
                return CheckResult(False, "its answer is not gRPC")
            case code if code == _NOT_FOUND:
                return CheckResult(False, "it does not know that service")
            case code if code == _UNIMPLEMENTED:
                return CheckResult(False, "it does not offer grpc.health.v1")
            case code:
                return CheckResult(False, f"gRPC status {code[:10]}")


async def check(connection: ProbeConnection, service: str) -> CheckResult:
    """Raises OSError, ProbeFailed."""
    http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    http.send_headers(
        stream,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", f"{connection.host}:{connection.port}"),
            (":path", "/grpc.health.v1.Health/Check"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "skerry-check"),
        ],
    )
    http.send_data(stream, _request(service), end_stream=True)
    call, received = _Call(), 0
    while not call.has_ended:
        if to_send := http.data_to_send():
            await connection.send(to_send)
        data = await connection.receive()
        received += len(data)
        if not data:
            raise ProbeFailed("it closed the connection without an answer")
        if received > _MAX_RECEIVED:
            raise ProbeFailed(f"its answer has more than {_MAX_RECEIVED // 1024} KiB")
        try:
            for event in http.receive_data(data):
                call.take(event)
        except H2Error:
            raise ProbeFailed("its answer is not HTTP/2") from None
    return call.result()


def _request(service: str) -> bytes:
    """A HealthCheckRequest, with its prefix."""
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _serving_status(data: bytes) -> int:
    """Of a HealthCheckResponse. Raises ProbeFailed."""
    message = data[_PREFIX:]
    if len(data) < _PREFIX or data[0] or len(message) != int.from_bytes(data[1:_PREFIX], "big"):
        raise ProbeFailed("its answer is not gRPC")
    if not message:
        return 0
    if len(message) != 2 or message[0] != _STATUS_FIELD:
        raise ProbeFailed("its answer is no HealthCheckResponse")
    return message[1]


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _text(value: bytes | str | None) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
