"""What a node enforces, as a part of its facts in the node session."""

from __future__ import annotations

import enum
from typing import Final, TypeVar

from skerry.model.enforcement import (
    ContainerNetwork,
    Isolation,
    LimitMeans,
    Limits,
    NodeEnforcement,
    RootFilesystem,
)
from skerry.model.nodes import MAX_WARNINGS
from skerry.transport.proto import nodes_pb2 as pb

E = TypeVar("E", bound=enum.StrEnum)

_MAX_REASON: Final = 1000
_MAX_PORT: Final = 65536  # none can be published
_LIMITS: Final = ("cpu", "memory", "processes", "disk")


def encode(enforcement: NodeEnforcement | None) -> pb.Enforcement | None:
    if enforcement is None:
        return None
    limits = enforcement.limits
    return pb.Enforcement(
        isolation=enforcement.isolation,
        cpu=limits.cpu,
        memory=limits.memory,
        processes=limits.processes,
        disk=limits.disk,
        network=enforcement.network,
        filesystem=enforcement.filesystem,
        user_ids=enforcement.user_ids,
        first_port=enforcement.first_port,
        has_mesh_links=enforcement.has_mesh_links,
        reasons=[_line(reason) for reason in enforcement.reasons[:MAX_WARNINGS]],
    )


def decode(facts: pb.Facts) -> NodeEnforcement | None:
    """None if it is not stated. What this version does not know counts as nothing enforced."""
    if not facts.HasField("enforcement"):
        return None
    message = facts.enforcement
    return NodeEnforcement(
        _known(Isolation, message.isolation, Isolation.NONE),
        Limits(*(_known(LimitMeans, getattr(message, name), LimitMeans.NONE) for name in _LIMITS)),
        _known(ContainerNetwork, message.network, ContainerNetwork.NONE),
        _known(RootFilesystem, message.filesystem, RootFilesystem.NONE),
        user_ids=min(message.user_ids, 1 << 32),
        first_port=min(message.first_port, _MAX_PORT),
        has_mesh_links=message.has_mesh_links,
        reasons=tuple(message.reasons),
    )


def _known(kind: type[E], text: str, otherwise: E) -> E:
    return kind(text) if text in set(kind) else otherwise


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_REASON])
