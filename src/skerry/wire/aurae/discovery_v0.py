"""`aurae.discovery.v0.DiscoveryService`: whether this process is ready, and which version of Skerry it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from grpclib.server import Stream

from skerry import __version__
from skerry.transport.proto.aurae_discovery_grpc import DiscoveryServiceBase
from skerry.transport.proto.aurae_discovery_pb2 import DiscoverRequest, DiscoverResponse


class DiscoveryServiceV0(DiscoveryServiceBase):
    """Serves `aurae.discovery.v0.DiscoveryService`; `is_ready` is the readiness that the health service
    reports."""

    def __init__(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._is_ready = is_ready

    async def Discover(self, stream: Stream[DiscoverRequest, DiscoverResponse]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        await stream.send_message(DiscoverResponse(healthy=await self._is_ready(), version=__version__))
