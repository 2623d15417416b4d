"""Runs one check, or reads one metric, of a container on this node, in its own network namespace.

Whatever goes wrong is a result as well: a check never raises. `skerry.node.health.monitor` decides when each
runs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import structlog

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.health_checks import CheckMethod, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health import exec_probe, grpc_probe, http_probe, metric_text
from skerry.node.health.connections import ProbeConnection, ProbeTarget
from skerry.node.health.decisions import CheckResult
from skerry.node.health.http_probe import HttpResponseReader, ProbeFailed
from skerry.node.health.monitor import CheckDone, MetricDone, RunningProbe
from skerry.node.health.socket_probe import ReadBatch, SocketProbe, no_answer, result_of_error

log = structlog.get_logger(__name__)

MAX_METRICS_PAGE: Final = 1024 * 1024
_METRIC_S: Final = 5.0

T = TypeVar("T")


class ProbedContainers(exec_probe.ExecStarter, Protocol):
    """Containers that can be checked; all of it raises NotFound for what is not there."""

    def address(self, name: str) -> str:
        """IPv4; empty if it has none of its own."""
        ...

    def open_socket(self, name: str) -> asyncio.Future[socket.socket]:
        """A TCP socket in its network namespace, which does not block. Raises OSError."""
        ...


class ContainerProbes:
    """Checks of containers, by name."""

    def __init__(self, containers: ProbedContainers) -> None:
        self._containers = containers
        self._batch = ReadBatch()
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, name: str, check: HealthCheck, done: CheckDone) -> RunningProbe:
        """Begin `check`; `done` is called later with what it finds within its timeout."""
        match check.method:
            case CheckMethod.HTTP:
                return self._begin_socket_probe(name, check, HttpResponseReader(check.path), done)
            case CheckMethod.TCP:
                return self._begin_socket_probe(name, check, None, done)
            case CheckMethod.GRPC:
                return self._begin_task(self._check(self._check_grpc(name, check), check.timeout_s), done)
            case CheckMethod.EXEC:
                running = exec_probe.check(self._containers, name, check.command)
                return self._begin_task(self._check(running, check.timeout_s), done)

    def begin_metric(self, name: str, source: MetricSource, done: MetricDone) -> RunningProbe:
        """Begin to read a metric; `done` is called later with the number, or None if it cannot be had."""
        return self._begin_task(self._read_metric(name, source), done)

    async def close(self) -> None:
        """Wait until nothing is left of the probes that were cancelled."""
        await cancel_and_wait(list(self._tasks))

    def _begin_socket_probe(
        self, name: str, check: HealthCheck, reader: HttpResponseReader | None, done: CheckDone
    ) -> SocketProbe:
        target = ProbeTarget((), check.port)
        try:
            target = self._target(name, check.port)
            opening = self._containers.open_socket(name)
        except errors.SkerryError as error:
            opening = asyncio.get_running_loop().create_future()
            opening.set_exception(error)
        return SocketProbe(opening, target, reader, check.timeout_s, self._batch, done)

    def _begin_task(self, running: Coroutine[Any, Any, T], done: Callable[[T], None]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                done(task.result())

        task.add_done_callback(ended)
        return task

    async def _check(self, running: Coroutine[Any, Any, CheckResult], timeout_s: float) -> CheckResult | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await running
        except TimeoutError:
            return no_answer(timeout_s)
        except Exception as error:  # noqa: BLE001 - a fault of ours is logged there
            return result_of_error(error)

    async def _check_grpc(self, name: str, check: HealthCheck) -> CheckResult:
        async with self._connect(name, check.port) as connection:
            return await grpc_probe.check(connection, check.service)

    async def _read_metric(self, name: str, source: MetricSource) -> float | None:
        try:
            async with asyncio.timeout(_METRIC_S), self._connect(name, source.port) as connection:
                answer = await http_probe.get(connection, source.path, MAX_METRICS_PAGE)
        except (ProbeFailed, OSError, errors.SkerryError) as error:
            log.debug("metric.not_read", container=name, error=str(error))
            return None
        if answer.status != 200 or not answer.is_whole:
            log.debug("metric.not_read", container=name, status=answer.status, whole=answer.is_whole)
            return None
        return metric_text.read_metric(answer.body, source.name)

    def _connect(self, name: str, port: int) -> ProbeConnection:
        target = self._target(name, port)
        return ProbeConnection(self._containers.open_socket(name), target)

    def _target(self, name: str, port: int) -> ProbeTarget:
        return ProbeTarget.of(self._containers.address(name), port)
