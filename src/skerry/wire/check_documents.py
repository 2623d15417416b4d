"""Health checks and metrics of instances, as documents write them in JSON.

A check comes as an object, or as the short text of `skerry.model.health_checks.parse`, which is a readiness
check. Pure; used by `skerry.wire.spec_documents`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import health_checks
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.workloads import MetricSource


class CheckInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A health check; fields that are left out have their defaults."""

    role: CheckRole = CheckRole.READINESS
    method: CheckMethod
    port: Annotated[int, Meta(description="Of the instance; not of `exec`")] = 0
    path: Annotated[str, Meta(description="Of `http`")] = "/"
    service: Annotated[str, Meta(description="Of `grpc`; empty: the server as a whole")] = ""
    command: Annotated[list[str], Meta(description="Of `exec`")] = []
    interval_s: float = 5.0
    timeout_s: float = 2.0
    healthy_after: Annotated[int, Meta(description="Passes in a row")] = 1
    unhealthy_after: Annotated[int, Meta(description="Failures in a row")] = 3
    grace_s: Annotated[float, Meta(description="After a start, in which failures do not count")] = 0.0


class CheckDocument(msgspec.Struct, frozen=True):
    """A health check in answers."""

    role: CheckRole
    method: CheckMethod
    port: int
    path: str
    service: str
    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    healthy_after: int
    unhealthy_after: int
    grace_s: float


class MetricInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric that the program serves in Prometheus' text format; several series are added up."""

    name: str
    port: int
    path: str = "/metrics"


def checks_of(given: Iterable[str | CheckInput]) -> tuple[HealthCheck, ...]:
    """The checks; raises `Invalid` for one that is not valid."""
    return tuple(health_checks.parse(one) if isinstance(one, str) else _check(one) for one in given)


def check_documents(checks: Iterable[HealthCheck]) -> tuple[CheckDocument, ...]:
    return tuple(CheckDocument(*msgspec.structs.astuple(check)) for check in checks)


def metric_of(given: MetricInput | None) -> MetricSource | None:
    return None if given is None else MetricSource(given.name, given.port, given.path)


def _check(given: CheckInput) -> HealthCheck:
    fields = msgspec.structs.asdict(given)
    return HealthCheck(**{**fields, "command": tuple(given.command)})
