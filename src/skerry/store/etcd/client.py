"""The client of etcd: a channel per endpoint, failover, and translation of errors.

`EtcdClient.call` sends one request and, if that is safe, again to the next endpoint until the timeout. A
change without a response is not repeated otherwise; the error says that the outcome is unknown.
`skerry.store.etcd.store` makes the requests, `skerry.store.etcd.watch` the streams. Only these three modules
know grpcio, and only `skerry.store.factory` imports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import grpc as untyped_grpc  # type: ignore[import-untyped] # it ships no types
import structlog
from aetcd import rpc as untyped_rpc

from skerry.model import errors
from skerry.store.local.watches import closed

log = structlog.get_logger(__name__)

R = TypeVar("R")

grpc: Any = untyped_grpc
rpc: Any = untyped_rpc

# Between two rounds over all endpoints; a restarting etcd refuses connections at once.
_PAUSE_S = 0.1

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A dead connection is noticed. etcd does not accept pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Two stores in one process must not share a connection, or closing one would not end it.
    ("grpc.use_local_subchannel_pool", 1),
)

_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


class EtcdEndpoint:
    """One endpoint: its channel and its stubs."""

    def __init__(self, address: str, credentials: Any) -> None:
        self.address = address
        self.channel = (
            rpc.insecure_channel(address, options=_OPTIONS)
            if credentials is None
            else rpc.secure_channel(address, credentials, options=_OPTIONS)
        )
        self.kv = rpc.KVStub(self.channel)
        self.leases = rpc.LeaseStub(self.channel)
        self.watches = rpc.WatchStub(self.channel)
        self.maintenance = rpc.MaintenanceStub(self.channel)

    async def connects(self, within_s: float) -> bool:
        """Whether the endpoint can be reached; waits for a connection in progress."""
        try:
            async with asyncio.timeout(within_s):
                while (state := self.channel.get_state(try_to_connect=True)) not in (
                    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                    grpc.ChannelConnectivity.SHUTDOWN,
                ):
                    if state is grpc.ChannelConnectivity.READY:
                        return True
                    await self.channel.wait_for_state_change(state)
        except TimeoutError:
            pass  # connecting takes too long: the same as refused
        except grpc.aio.UsageError:
            pass  # the channel was closed under us
        return False


class Interruptible(Protocol):
    """A stream that must end when the links close."""

    def interrupt(self) -> None: ...


class EtcdClient:
    """All endpoints of one etcd cluster; `current` is the one that answered last."""

    def __init__(self, addresses: Sequence[str], credentials: Any, timeout_s: float) -> None:
        self.addresses = tuple(addresses)
        self.timeout_s = timeout_s
        self.is_closed = False
        self.streams: set[Interruptible] = set()
        self._links = [EtcdEndpoint(address, credentials) for address in addresses]
        self._current = 0
        self._calls = 0
        self._no_calls = asyncio.Event()
        self._no_calls.set()

    async def call(
        self,
        send: Callable[[EtcdEndpoint, float, int], Awaitable[R]],
        *,
        is_repeatable: bool = True,
        change: str = "",
    ) -> R:
        """`send(link, timeout_s, attempt)` to a reachable endpoint; again to the next if that is safe.

        `attempt` counts from 0: a later one may meet the effects of an earlier one whose response was lost.
        `change` names what the request changes; without a response its outcome is unknown.
        """
        if self.is_closed:
            raise closed()
        self._calls += 1
        self._no_calls.clear()
        try:
            return await self._call(send, is_repeatable, change)
        finally:
            self._calls -= 1
            if not self._calls:
                self._no_calls.set()

    async def ready(self, deadline: float) -> EtcdEndpoint:
        """A connected endpoint, the one in use first. Raises `Unavailable` if none is by `deadline`."""
        loop = asyncio.get_running_loop()
        while True:
            for _ in self.addresses:
                if self.is_closed:
                    raise closed()
                link = self._links[self._current]
                if await link.connects(min(self._share_s, deadline - loop.time())):
                    return link
                self.leave(link)
            if loop.time() + _PAUSE_S >= deadline:
                raise errors.Unavailable(
                    f"etcd at {', '.join(self.addresses)} cannot be reached;"
                    " start it, or check the address, the network and the certificates"
                )
            await asyncio.sleep(_PAUSE_S)

    def leave(self, link: EtcdEndpoint) -> None:
        """Begin with the next endpoint from now on, unless that has happened already."""
        if not self.is_closed and self._links[self._current] is link:
            self._current = (self._current + 1) % len(self.addresses)

    async def close(self) -> None:
        """End the streams, let the calls on their way finish, close the connections."""
        self.is_closed = True
        for stream in list(self.streams):
            stream.interrupt()
        await self._no_calls.wait()
        links, self._links = (
            self._links,
            [],
        )  # grpcio's poller thread ends with the last reference to a channel
        for link in links:
            await link.channel.close()

    @property
    def _share_s(self) -> float:
        """One endpoint's part of the time, so that one that hangs leaves some for the others."""
        return self.timeout_s / len(self.addresses)

    async def _call(
        self, send: Callable[[EtcdEndpoint, float, int], Awaitable[R]], is_repeatable: bool, change: str
    ) -> R:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        attempt = 0
        why = ""
        while True:
            try:
                link = await self.ready(deadline)
            except errors.Unavailable:
                if change and attempt:
                    raise unknown_outcome(change, why) from None
                raise
            left_s = max(deadline - loop.time(), _PAUSE_S)
            try:
                return await send(link, min(left_s, self._share_s) if is_repeatable else left_s, attempt)
            except rpc.AioRpcError as error:
                if not is_lost(error):
                    raise translate(error) from error
                why = f"{link.address}: {error.code().name}: {error.details()}"
                log.info("etcd.call_lost", address=link.address, change=change, error=error.details())
            self.leave(link)
            if not is_repeatable or loop.time() + _PAUSE_S >= deadline:
                if change:
                    raise unknown_outcome(change, why)
                raise errors.Unavailable(
                    f"etcd at {', '.join(self.addresses)} did not answer within {self.timeout_s:g} s;"
                    " check that a majority of its members is up",
                    detail=why,
                )
            attempt += 1
            await asyncio.sleep(_PAUSE_S)


async def request_response(stream: Any, request: Any) -> Any:
    """Send one request on a stream and read one response."""
    try:
        await stream.write(request)
    except asyncio.CancelledError:
        raise_if_cancelled()
        raise lost("the stream was closed") from None
    return await read(stream)


async def read(stream: Any) -> Any:
    """The next response. A stream that ended, or that was closed under its reader, is a lost one."""
    try:
        response = await stream.read()
    except asyncio.CancelledError:
        raise_if_cancelled()
        raise lost("the stream was closed") from None
    if response is grpc.aio.EOF:
        raise lost("the stream ended")
    return response


def raise_if_cancelled() -> None:
    """grpcio reports the end of a stream as if its reader had been cancelled: pass on only the real thing."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def lost(details: str) -> Exception:
    """An error like that of a broken connection."""
    error: Exception = rpc.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details
    )
    return error


def is_lost(error: Any) -> bool:
    """No answer came, or one that leaves open what happened: another try may meet a better endpoint."""
    return error.code() in _LOST


def unknown_outcome(change: str, why: str) -> errors.Unavailable:
    return errors.Unavailable(
        f"etcd did not answer, and the {change} may or may not have happened:"
        " read the state before you try again",
        detail=why,
    )


def out_of_space(what: str, details: str) -> errors.Unavailable:
    return errors.Unavailable(f"{what}; compact and defragment it, then disarm its alarm", detail=details)


def is_denied(error: Any) -> bool:
    """This client has no permission for that."""
    return error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def translate(error: Any) -> errors.SkerryError:
    """The error for an error of etcd."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return errors.NotFound("there is no such lease, or it has ended; grant a new one", detail=details)
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return errors.Compacted("that history is no longer kept; take a new snapshot", detail=details)
    if code is grpc.StatusCode.INVALID_ARGUMENT and "too large" in details:
        return errors.TooLarge(
            "etcd refuses a transaction of this size; split it, or raise its --max-request-bytes",
            detail=details,
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space" in details:
        return out_of_space("etcd has used up its space, and nothing was changed", details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.Unavailable(
            "etcd has too much to do, and nothing was changed; try later", detail=details
        )
    if is_denied(error):
        return errors.Unavailable(
            "etcd refuses this client; check the etcd_cert and etcd_key of the store settings", detail=details
        )
    return errors.Internal("etcd refused a request of ours", detail=f"{code}: {details}")
