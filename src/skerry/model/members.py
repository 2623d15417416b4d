"""Members of the continuum: processes of one cloud that take calls of functions.

A node sends this when it connects to the control plane, which sends it to all members. It changes rarely;
members exchange what changes with every call, such as free memory, with each other
(`skerry.functions.continuum`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import NodeId
from skerry.model.resources import Megabytes, Millicores, Resources


class ContinuumMember(msgspec.Struct, frozen=True):
    """Who takes calls, where it is, and what its workers may take at most."""

    node: NodeId
    name: str
    area: str
    remote_area: str = ""  # where it sends calls that its own area has no capacity for; empty: nowhere
    address: str = ""  # of its listener for neighbours, HOST:PORT; empty: it has none
    memory: int = 0  # MB for workers; 0: it runs none, and only passes calls on
    cpus: float = 0.0
    is_server: bool = False

    def __post_init__(self) -> None:
        ids.check_id(self.node, "node")
        for field in ("name", "area", "remote_area", "address"):
            ids.check_display_text(getattr(self, field), field)
        if not 0 <= self.memory < 2**53 or not 0.0 <= self.cpus < 2**53:
            raise errors.Invalid("memory and cpus of a member must be numbers from 0 on", field="memory")


def max_worker_resources(members: Sequence[ContinuumMember]) -> Resources:
    """The largest worker that any of them could have."""
    return Resources(
        Millicores(max((int(member.cpus * 1000) for member in members), default=0)),
        Megabytes(max((member.memory for member in members), default=0)),
    )


class MemberStatus(msgspec.Struct, frozen=True):
    """Another member, as one member sees it at this moment."""

    member: ContinuumMember
    is_up: bool  # it answered the last request
    rtt_s: float | None  # round trip, measured, or else predicted by coordinates
    heard_s: float | None  # since its last message; None: none yet
    memory_free: int = 0
    cpus_free: float = 0.0
    waiting: int = 0  # calls in its queue
    done: int = 0  # calls that it answered for us
    refused: int = 0
    lost: int = 0
