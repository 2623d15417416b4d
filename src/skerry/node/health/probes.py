"""Runs one check, or reads one metric, of a container on this node, in its own network namespace.

What comes of it is a result, also of whatever goes wrong: a check never raises. When to run which is
`skerry.node.health.monitor`'s to say.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import Final, Protocol

import structlog

from skerry.model import errors
from skerry.model.containers import ContainerView
from skerry.model.health_checks import CheckMethod, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health import exec_probe, grpc_probe, http_probe, metric_text
from skerry.node.health.connections import ProbeConnection
from skerry.node.health.decisions import CheckResult
from skerry.node.health.http_probe import ProbeFailed

log = structlog.get_logger(__name__)

MAX_METRICS_PAGE: Final = 1024 * 1024
_METRIC_S: Final = 5.0


class ProbedContainers(exec_probe.ExecStarter, Protocol):
    """Containers that can be checked; all of it raises NotFound for what is not there."""

    def get(self, name: str) -> ContainerView: ...

    def open_socket(self, name: str) -> Awaitable[socket.socket]:
        """A TCP socket in its network namespace, which does not block. Raises OSError."""
        ...


class ContainerProbes:
    """Checks of containers, by name."""

    def __init__(self, containers: ProbedContainers) -> None:
        self._containers = containers

    async def check(self, name: str, check: HealthCheck) -> CheckResult:
        """What `check` finds within its timeout."""
        try:
            async with asyncio.timeout(check.timeout_s):
                return await self._check(name, check)
        except TimeoutError:
            return CheckResult(False, f"no answer within {check.timeout_s:g} s")
        except ProbeFailed as error:
            return CheckResult(False, str(error))
        except OSError as error:
            return CheckResult(False, (error.strerror or str(error)).lower())
        except errors.SkerryError as error:  # it has just ended, or its node cannot run commands now
            return CheckResult(False, error.message)

    async def _check(self, name: str, check: HealthCheck) -> CheckResult:
        if check.method is CheckMethod.EXEC:
            return await exec_probe.check(self._containers, name, check.command)
        async with self._connect(name, check.port) as connection:
            match check.method:
                case CheckMethod.HTTP:
                    return await http_probe.check(connection, check.path)
                case CheckMethod.GRPC:
                    return await grpc_probe.check(connection, check.service)
                case CheckMethod.TCP:
                    return CheckResult(True)

    async def read_metric(self, name: str, source: MetricSource) -> float | None:
        """The number; None if it cannot be had."""
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
        address = self._containers.get(name).address
        return ProbeConnection(self._containers.open_socket(name), address, port)
