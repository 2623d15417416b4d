"""The services that every gRPC tool expects: health (grpc.health.v1) and server reflection (v1 and v1alpha).

`beside(services, checks)` is what the daemon gives to `skerry.transport.grpc.server`. Health follows the
readiness checks of the control plane; why a check fails goes to the log and to `/readyz`, never into an
answer here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
from grpclib._typing import IServable
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection
from grpclib.server import Stream

from skerry.transport.grpc.call_streams import request_of

log = structlog.get_logger(__name__)

ReadinessCheck = Callable[[], Awaitable[None]]
_HealthStream = Stream[HealthCheckRequest, HealthCheckResponse]

_CHECK_TIMEOUT_S: Final = 5.0
_FRESH_S: Final = 0.5  # an answer is good for this long
_WATCH_EVERY_S: Final = 2.0
_WHOLE_SERVER: Final = ""

_HEALTH: Final = "grpc.health.v1.Health"
_REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def with_health_and_reflection(
    services: Sequence[IServable],
    checks: Mapping[str, ReadinessCheck] | ReadinessChecks,
    *,
    empty_services: Collection[str] = (),
) -> list[IServable]:
    """`services` with health and reflection beside them, which also name `empty_services`: services without
    methods, which therefore have nothing to serve."""
    names = sorted({*map(_name_of, services), *empty_services, _HEALTH, *_REFLECTION})
    if not isinstance(checks, ReadinessChecks):
        checks = ReadinessChecks(checks)
    return [
        *services,
        HealthService(names, checks),
        ServerReflection(_service_names=names),
        ServerReflectionV1Alpha(_service_names=names),
    ]


class ReadinessChecks:
    """The checks of this process, with an answer that may be a moment old."""

    def __init__(self, checks: Mapping[str, ReadinessCheck], *, fresh_s: float = _FRESH_S) -> None:
        self._checks = dict(checks)
        self._fresh_s = fresh_s
        self._turn = asyncio.Lock()
        self._checked_at = -math.inf
        self._failing: frozenset[str] = frozenset()

    async def all_pass(self) -> bool:
        # Anybody may ask, so however many do, the checks run one round at a time and not all the time.
        now = asyncio.get_running_loop().time
        async with self._turn:
            if now() - self._checked_at > self._fresh_s:
                self._note(frozenset(await self._failing_checks()))
                self._checked_at = now()
        return not self._failing

    async def _failing_checks(self) -> list[str]:
        """The names of the checks that fail now."""
        passed = await asyncio.gather(*(self._passes(*check) for check in self._checks.items()))
        return [name for name, good in zip(self._checks, passed, strict=True) if not good]

    async def _passes(self, name: str, check: ReadinessCheck) -> bool:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever it raises means that it is not ready
            if name not in self._failing:
                log.warning("health.failing", check=name, error=repr(error))
            return False
        return True

    def _note(self, failing: frozenset[str]) -> None:
        for name in self._failing - failing:
            log.info("health.passing", check=name)
        self._failing = failing


class HealthService(HealthBase):
    """SERVING while every check passes, for the server (the empty name) and for each of its services."""

    def __init__(
        self, names: Collection[str], checks: ReadinessChecks, *, watch_every_s: float = _WATCH_EVERY_S
    ) -> None:
        self._names = {*names, _WHOLE_SERVER}
        self._checks = checks
        self._watch_every_s = watch_every_s

    async def Check(self, stream: _HealthStream) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        if request.service not in self._names:
            raise GRPCError(
                Status.NOT_FOUND, f"no service {request.service[:200]!r} here; server reflection lists them"
            )
        await stream.send_message(HealthCheckResponse(status=await self._status()))

    async def Watch(self, stream: _HealthStream) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        is_known = request.service in self._names
        sent = None
        while True:
            status = await self._status() if is_known else HealthCheckResponse.SERVICE_UNKNOWN
            if status != sent:
                await stream.send_message(HealthCheckResponse(status=status))
                sent = status
            await asyncio.sleep(self._watch_every_s)

    async def _status(self) -> HealthCheckResponse.ServingStatus.ValueType:
        is_ready = await self._checks.all_pass()
        return HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING


def _name_of(service: IServable) -> str:
    """The full name of a service, from the path of its first method."""
    return next(iter(service.__mapping__())).split("/")[1]
