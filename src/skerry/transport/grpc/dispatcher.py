"""From the headers of a call to its status: who calls, may they, run the handler, tell how it ended.

`skerry.transport.grpc.connections` hands over every call; the handlers are the services'. Every error of a
handler becomes a status here, by the one table of `skerry.transport.error_codes`; what is no `SkerryError` is
a fault of ours, whose text goes to the log and never to the client. grpclib's own request handler is not
used: it logs tracebacks of application errors and leaves some malformed calls without an answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
import structlog
from grpclib import const, protocol
from grpclib._typing import IServable
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import Deadline, _Metadata, decode_metadata, encode_grpc_message
from h2.exceptions import ProtocolError

from skerry.kit import logs, metrics, ulid
from skerry.kit.clock import Clock
from skerry.kit.tasks import race
from skerry.model import errors, ids
from skerry.transport.access import namespaces, rules
from skerry.transport.access.gate import AccessGate, is_forwarding
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.access.revalidation import until_refused
from skerry.transport.admission import ConnectionSlot
from skerry.transport.error_codes import GRPC_STATUS
from skerry.transport.grpc.call_streams import REQUEST_ID, CallStream
from skerry.transport.grpc.inline_replies import InlineReply

log = structlog.get_logger(__name__)

CALLS = metrics.counter("skerry_grpc_calls_total", "gRPC calls that ended", ["method", "status"])
SECONDS = metrics.histogram(
    "skerry_grpc_call_seconds", "Time from headers to status of gRPC calls", ["method"]
)

GrpcHeaders = Sequence[tuple[str, str]]

_QUIET = "/grpc."  # health and reflection, which tools ask all the time
_CONTENT_TYPE = re.compile(r"application/grpc(\+proto)?(;.*)?")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class CallConnection(Protocol):
    """What a call must know of its connection."""

    @property
    def peer(self) -> ConnectionPeer: ...

    @property
    def place(self) -> ConnectionSlot: ...

    @property
    def is_stopping(self) -> bool: ...

    def set_inline_reply(self, reply: InlineReply | None) -> None: ...


class GrpcMethod(msgspec.Struct, frozen=True):
    """One RPC: its handler and who may call it."""

    handler: const.Handler
    access: rules.AccessRule


class RejectedCall(msgspec.Struct, frozen=True):
    """An answer to what is not a call of a method that is served."""

    http: int
    status: Status
    text: str


def methods_of(services: Sequence[IServable]) -> dict[str, GrpcMethod]:
    """Every RPC of `services` by its path; refuses one that is served twice or has no access row."""
    methods: dict[str, GrpcMethod] = {}
    for service in services:
        for path, handler in service.__mapping__().items():
            if path in methods:
                raise ValueError(f"{path} is served twice")
            if path not in rules.GRPC_RULES:
                raise ValueError(f"{path} has no row in skerry.transport.access.rules.GRPC_RULES")
            methods[path] = GrpcMethod(handler, rules.GRPC_RULES[path])
    return methods


class GrpcDispatcher:
    """Answers the calls of every connection."""

    def __init__(
        self, methods: Mapping[str, GrpcMethod], gate: AccessGate, clock: Clock, *, max_message_bytes: int
    ) -> None:
        self._methods = methods
        self._gate = gate
        self._clock = clock
        self._max_message_bytes = max_message_bytes

    def is_endless(self, headers: GrpcHeaders) -> bool:
        """True for a method that streams, be it one way: it may go on for ever, and no stop waits for it."""
        path = next((value for name, value in headers if name == ":path"), "")
        method = self._methods.get(path)
        return method is not None and method.handler.cardinality is not const.Cardinality.UNARY_UNARY

    async def answer(self, wire: protocol.Stream, headers: GrpcHeaders, line: CallConnection) -> None:
        """Serve one call to its end; nothing but cancellation leaves here."""
        fields = dict(headers)
        request_id = self._request_id(fields.get(REQUEST_ID, ""))
        with logs.request_context(request_id):
            try:
                method = self._methods.get(fields.get(":path", ""))
                if refusal := refusal_of(fields, is_served=method is not None):
                    CALLS.labels("unknown", refusal.status.name).inc()
                    await _turn_away(wire, refusal)
                elif method is not None:
                    await self._serve(wire, method, fields, headers, request_id, line)
            except ProtocolError:
                pass  # the client reset the call or closed the connection: there is no client to answer
            except Exception as error:
                log.error("call.unanswered", path=fields.get(":path", ""), exc_info=error)

    async def _serve(
        self,
        wire: protocol.Stream,
        method: GrpcMethod,
        fields: Mapping[str, str],
        headers: GrpcHeaders,
        request_id: str,
        line: CallConnection,
    ) -> None:
        started = self._clock.monotonic()
        stream = CallStream(
            wire,
            fields[":path"],
            method.handler,
            request_id=request_id,
            max_message_bytes=self._max_message_bytes,
            user_agent=fields.get("user-agent"),
        )
        try:
            async with stream:  # sends the status that `_run` raises
                await self._run(stream, method, headers, line)
        finally:
            status = (stream.status or Status.CANCELLED).name
            took_s = self._clock.monotonic() - started
            CALLS.labels(stream.path, status).inc()
            SECONDS.labels(stream.path).observe(took_s)
            log_call = log.debug if stream.path.startswith(_QUIET) else log.info
            log_call(
                "call.ended",
                method=stream.path,
                status=status,
                caller=stream.caller.name,
                peer=line.peer.address,
                ms=round(took_s * 1000, 1),
            )

    async def _run(
        self, stream: CallStream, method: GrpcMethod, headers: GrpcHeaders, line: CallConnection
    ) -> None:
        """Run the handler; what goes wrong leaves as a `GRPCError`, as cancellation, or as h2's `gone`."""
        limit: asyncio.Timeout | None = None
        try:
            seconds = timeout_of(headers)
            stream.deadline = None if seconds is None else Deadline.from_timeout(seconds)
            stream.metadata = metadata = metadata_of(headers)
            authorization = metadata.get("authorization")
            is_forwarded = is_forwarding(name.encode("latin-1") for name, _ in headers)
            if is_forwarded:
                line.place.distrust()
            authenticate = partial(
                self._gate.caller,
                line.peer,
                authorization if isinstance(authorization, str) else None,
                is_forwarded=is_forwarded,
            )
            stream.caller = authenticate()
            stream.address = line.peer.address
            stream.set_inline_reply = line.set_inline_reply
            rules.authorize(method.access, stream.caller)
            if stream.caller.role is not None:
                line.place.recognize()
            if method.access.scope is rules.AccessScope.NAMESPACED:
                stream.namespace = namespaces.grpc_namespace(
                    stream.caller.scope, metadata.getall(namespaces.METADATA, [])
                )
            async with asyncio.timeout(seconds) as limit:
                if authorization is not None and method.handler.cardinality.server_streaming:
                    # Connections of certificates that are revoked are ended whole, by the server.
                    await race(method.handler.func(stream), until_refused(authenticate))
                else:
                    await method.handler.func(stream)
            if stream.lacks_reply:
                raise RuntimeError(f"the handler of {stream.path} ended without a reply")
        except asyncio.CancelledError:
            if line.is_stopping:
                raise GRPCError(Status.UNAVAILABLE, "the server is stopping; call again") from None
            raise
        except (GRPCError, ProtocolError):
            raise
        except errors.SkerryError as error:
            raise self._grpc_error(error, stream) from None
        except Exception as error:
            if limit is not None and limit.expired() and isinstance(error, TimeoutError):
                raise GRPCError(Status.DEADLINE_EXCEEDED, "the deadline of the call has passed") from None
            log.error("call.failed", method=stream.path, caller=stream.caller.name, exc_info=error)
            raise _fault(stream) from None

    def _grpc_error(self, error: errors.SkerryError, stream: CallStream) -> GRPCError:
        status = next(GRPC_STATUS[kind] for kind in type(error).__mro__ if kind in GRPC_STATUS)
        is_fault = status is Status.INTERNAL
        (log.error if is_fault else log.info)(
            "call.refused",
            method=stream.path,
            status=status.name,
            caller=stream.caller.name,
            error=error.message,
            detail=error.detail,
        )
        return _fault(stream) if is_fault else GRPCError(status, error.message)

    def _request_id(self, offered: str) -> str:
        return offered if ids.is_request_id(offered) else ulid.new_id(self._clock.now())


def refusal_of(fields: Mapping[str, str], *, is_served: bool) -> RejectedCall | None:
    """Why a request is no call of ours, if it is none."""
    if fields.get(":method") != "POST":
        return RejectedCall(405, Status.UNKNOWN, "gRPC calls are sent with POST")
    if not _CONTENT_TYPE.fullmatch(fields.get("content-type", "")):
        return RejectedCall(415, Status.UNKNOWN, "gRPC calls have the content-type application/grpc")
    if not is_served:
        path = fields.get(":path", "")[:200]
        return RejectedCall(
            200, Status.UNIMPLEMENTED, f"{path} is not served here; server reflection lists what is"
        )
    return None


def timeout_of(headers: GrpcHeaders) -> float | None:
    """Seconds the client gives the call, None if it sets no limit."""
    texts = [value for name, value in headers if name == "grpc-timeout"]
    if not texts:
        return None
    match = _TIMEOUT.fullmatch(texts[-1])
    if match is None:
        raise GRPCError(
            Status.INVALID_ARGUMENT, "grpc-timeout must be one to eight digits and a unit out of HMSmun"
        )
    return int(match[1]) * _UNIT_S[match[2]]


def metadata_of(headers: GrpcHeaders) -> _Metadata:
    try:
        return decode_metadata(headers)
    except ValueError:
        raise GRPCError(Status.INVALID_ARGUMENT, "a header that ends in -bin must hold base64") from None


async def _turn_away(wire: protocol.Stream, refusal: RejectedCall) -> None:
    await wire.send_headers(
        [
            (":status", str(refusal.http)),
            ("content-type", "application/grpc"),
            ("grpc-status", str(refusal.status.value)),
            ("grpc-message", encode_grpc_message(refusal.text)),
        ],
        end_stream=True,
    )
    if wire.closable:
        wire.reset_nowait()


def _fault(stream: CallStream) -> GRPCError:
    return GRPCError(
        Status.INTERNAL, f"a fault of the server; its log has more under request id {stream.request_id}"
    )
