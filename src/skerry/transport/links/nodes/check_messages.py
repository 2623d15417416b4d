"""Health checks and metrics of instances, between `skerry.model` and the messages of `skerry.nodes.v1`.

Part of the translation in `skerry.transport.links.nodes.messages`. The model validates checks: one that is
not valid is `Invalid`.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.kit.field_copy import copy_fields
from skerry.model import errors
from skerry.model.health_checks import MAX_CHECKS, CheckMethod, CheckRole, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.transport.enum_values import decode_enum
from skerry.transport.proto import nodes_pb2 as pb


def encode_checks(checks: Sequence[HealthCheck]) -> list[pb.Check]:
    return [copy_fields(pb.Check, check) for check in checks]


def decode_checks(messages: Sequence[pb.Check]) -> tuple[HealthCheck, ...]:
    if len(messages) > MAX_CHECKS:
        raise errors.Invalid(f"an instance has at most {MAX_CHECKS} checks", field="checks")
    return tuple(
        copy_fields(
            HealthCheck,
            message,
            role=decode_enum(CheckRole, message.role, "checks.role"),
            method=decode_enum(CheckMethod, message.method, "checks.method"),
            command=tuple(message.command),
        )
        for message in messages
    )


def encode_metric(metric: MetricSource | None) -> pb.Metric | None:
    return None if metric is None else copy_fields(pb.Metric, metric)


def decode_metric(spec: pb.Spec) -> MetricSource | None:
    return copy_fields(MetricSource, spec.metric) if spec.HasField("metric") else None
