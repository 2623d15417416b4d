"""What a guest may have: the cell it is held to, what its instances become, and what its word is worth. Pure.

Whoever borrows a cell is a stranger, and chooses ids, specs and times as it likes. Names of its containers
are ours to make, so that none is ever another's; a spec that would reach out of the cell is refused as
`Invalid`, with a sentence for the one who ordered it.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial

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
    """The cell that is lent: exactly the room that was bought, and `pids` processes. Raises Invalid."""
    if not (spec.resources.cpu and spec.resources.memory):
        raise errors.Invalid(
            "a cell that is lent must have some cpu and some memory, or nothing would hold it", field="room"
        )
    limits = CellLimits(
        cpu_weight=weight_of(spec.resources.cpu),
        cpu_quota=spec.resources.cpu,
        memory=spec.resources.memory,
        pids=pids,
    )
    return Cell(own_name(spec.name), limits, isolates_processes=False, owner=CellOwner.CONTRACT)


def translation(cell: str, resources: Resources) -> SpecTranslation:
    """What the instances of the guest in the lent `cell` become, which bought `resources`."""
    return SpecTranslation(partial(guest_name, cell), partial(guest_spec, cell, resources))


def guest_name(cell: str, instance: InstanceId) -> str:
    """`g-` and a hash of both: what a lent cell is asked for as has no '/', so no two pairs are one text."""
    digest = hashlib.sha256(f"{cell}/{instance}".encode()).hexdigest()
    return f"{GUEST_PREFIX}{digest[:_HASH_DIGITS]}"


def guest_spec(cell: str, resources: Resources, instance: InstanceId, spec: InstanceSpec) -> ContainerSpec:
    """Raises Invalid if a guest may not have that."""
    if spec.kind is WorkloadKind.CELL:
        raise errors.Invalid("what is borrowed cannot be lent on", field="kind")
    if spec.ports:
        raise errors.Invalid(
            "what runs in a borrowed cell publishes no ports; run it on a node of your own", field="ports"
        )
    if spec.userns is not UserNamespaceMode.PRIVATE:
        raise errors.Invalid(
            "what runs in a borrowed cell has a user namespace of its own; leave userns out", field="userns"
        )
    if shortfall := resources.shortfall(spec.resources):
        raise errors.Invalid(f"the borrowed cell is smaller than that: it {shortfall}", field="room")
    plain = container_spec(instance, spec)
    return replace(
        plain,
        name=guest_name(cell, instance),
        inside=cell,
        cpu_limit=plain.cpu_limit and min(plain.cpu_limit, resources.cpu),
        is_apart=True,
        # The kernel holds all of them together to the cell's cpu, memory and disk.
        resources=replace(plain.resources, disk=plain.resources.disk or resources.disk),
        shared_disk=resources.disk,
        read_only=plain.read_only or resources.disk == 0,
    )


def clamp_session_config(terms: SessionConfig) -> SessionConfig:
    """`terms` as far as they cost this machine no more than a control plane of its own would ask for."""
    base_s = _within(terms.restart_base_s, 0.1)
    return replace(
        terms,
        report_s=_within(terms.report_s, 0.5),
        restart_base_s=base_s,
        restart_cap_s=max(base_s, _within(terms.restart_cap_s, 1.0)),
        restart_reset_s=_within(terms.restart_reset_s, 1.0),
        silence_s=_within(terms.silence_s, 1.0) if terms.silence_s else 0.0,
    )


def _within(seconds: float, least_s: float) -> float:
    return min(max(seconds, least_s), _LONGEST_S) if math.isfinite(seconds) else _LONGEST_S
