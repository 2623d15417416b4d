"""Limits of a guest: its cell, the containers of its instances, its session config. Pure.

The buyer of a leased cell is untrusted, and chooses ids, specs and times freely. The node chooses the names
of its containers, so that none collides; a spec that would reach outside the cell raises `Invalid`.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellOwner, own_name, weight_of
from skerry.model.containers import GUEST_PREFIX, ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.node_messages import SessionConfig
from skerry.model.resources import Resources
from skerry.model.workloads import InstanceSpec, UserNamespaceMode, WorkloadKind
from skerry.node.agent.instances.container_specs import SpecTranslation, container_spec

_HASH_DIGITS = 40
_LONGEST_S = 86_400.0


def parent_cell(spec: ContainerSpec, *, pids: int) -> Cell:
    """The leased cell: exactly the resources that were bought, and `pids` processes. Raises Invalid."""
    if not (spec.resources.cpu and spec.resources.memory):
        raise errors.Invalid("a leased cell must have cpu and memory limits", field="room")
    limits = CellLimits(
        cpu_weight=weight_of(spec.resources.cpu),
        cpu_quota=spec.resources.cpu,
        memory=spec.resources.memory,
        pids=pids,
    )
    return Cell(own_name(spec.name), limits, isolates_processes=False, owner=CellOwner.CONTRACT)


class LeasedCapacity(NamedTuple):
    """What was bought with a leased cell: resources, and devices of the node by their names."""

    resources: Resources
    devices: tuple[str, ...] = ()


def translation(cell: str, leased: LeasedCapacity) -> SpecTranslation:
    """How instances of the guest in the leased `cell` become containers."""
    return SpecTranslation(partial(guest_name, cell), partial(guest_spec, cell, leased))


def guest_name(cell: str, instance: InstanceId) -> str:
    """`g-` and a hash of both. Names of leased cells contain no '/', so different pairs never hash the same
    text."""
    digest = hashlib.sha256(f"{cell}/{instance}".encode()).hexdigest()
    return f"{GUEST_PREFIX}{digest[:_HASH_DIGITS]}"


def guest_spec(cell: str, leased: LeasedCapacity, instance: InstanceId, spec: InstanceSpec) -> ContainerSpec:
    """Raises Invalid if a guest may not have that."""
    resources = leased.resources
    if spec.kind is WorkloadKind.CELL:
        raise errors.Invalid("a borrowed node cannot lease cells", field="kind")
    if spec.ports:
        raise errors.Invalid(
            "instances on a borrowed node cannot publish ports; run it on a node of your own", field="ports"
        )
    if spec.userns is not UserNamespaceMode.PRIVATE:
        raise errors.Invalid(
            "instances on a borrowed node always have a user namespace; leave userns out", field="userns"
        )
    if spec.secrets:
        raise errors.Invalid(
            "instances on a borrowed node have no secrets and configs, which its provider could read; run it "
            "on a node of your own",
            field="secrets",
        )
    if spec.mounts:
        raise errors.Invalid(
            "instances on a borrowed node have no volumes, and no other mounts; run it on a node of your own",
            field="volumes",
        )
    if shortfall := resources.shortfall(spec.resources):
        raise errors.Invalid(f"the borrowed node is too small: it {shortfall}", field="room")
    for request in spec.devices:
        if str(request) not in leased.devices:
            raise errors.Invalid(f"device {request} is not of this contract", field="devices")
    base = container_spec(instance, spec)
    return replace(
        base,
        name=guest_name(cell, instance),
        inside=cell,
        cpu_limit=base.cpu_limit and min(base.cpu_limit, resources.cpu),
        is_isolated=True,
        # The kernel limits all of them together to the cell's cpu, memory and disk.
        resources=replace(base.resources, disk=base.resources.disk or resources.disk),
        shared_disk=resources.disk,
        read_only=base.read_only or resources.disk == 0,
    )


def clamp_session_config(config: SessionConfig) -> SessionConfig:
    """`config`, with periods no shorter than a control plane of this node's own would use."""
    base_s = _within(config.restart_base_s, 0.1)
    return replace(
        config,
        report_s=_within(config.report_s, 0.5),
        restart_base_s=base_s,
        restart_cap_s=max(base_s, _within(config.restart_cap_s, 1.0)),
        restart_reset_s=_within(config.restart_reset_s, 1.0),
        silence_s=_within(config.silence_s, 1.0) if config.silence_s else 0.0,
    )


def _within(seconds: float, least_s: float) -> float:
    return min(max(seconds, least_s), _LONGEST_S) if math.isfinite(seconds) else _LONGEST_S
