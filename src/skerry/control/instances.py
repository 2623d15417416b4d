"""Instances as callers see them: wishes taken durably, what is known told from memory.

(signatures; see the module's final form)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from skerry.control.events import Told
from skerry.model.ids import InstanceId, NodeId, WorkloadId
from skerry.model.orders import Order, Report
from skerry.model.room import Room
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Instance, Kind, Spec


class Instances:
    async def ready(self) -> None: ...
    async def run(self) -> None:
        """Follow the store for ever; for `Keeper.forever(critical=True)`."""

    async def create(
        self, what: Spec | str, *, actor: str, id: str | None = None, idempotency_key: str | None = None
    ) -> tuple[Instance, bool]:
        """`what`: a spec, or a workload's id or name. The flag says whether it is new."""
        raise NotImplementedError

    def get(self, id: str) -> Instance: raise NotImplementedError  # NotFound
    def revision(self, id: str) -> int: raise NotImplementedError  # for ETag and if_match
    def usage(self, id: str) -> Room: raise NotImplementedError  # as last reported to this server
    def list(self, *, limit: int = 100, offset: int = 0, cursor: str | None = None, kind: Kind | None = None,
             states: frozenset[Status] = frozenset(), node: NodeId | None = None,
             workload: WorkloadId | None = None) -> "Page[Instance]": raise NotImplementedError
    async def start(self, id: str, *, actor: str) -> Instance: raise NotImplementedError
    async def stop(self, id: str, *, actor: str) -> Instance: raise NotImplementedError
    async def destroy(self, id: str, *, actor: str) -> Instance:
        """The instance as DESTROYING, or TERMINATED if there was nothing left to do and it is gone."""
        raise NotImplementedError
    async def change(self, id: str, *, actor: str, desired: Desired | None = None,
                     merge: Callable[[Spec], Spec] | None = None, workload: str | None = None,
                     if_match: int | None = None) -> Instance: raise NotImplementedError
    async def events(self, id: str) -> list[Told]: raise NotImplementedError
    def explain(self, id: str) -> "list[Verdict]": raise NotImplementedError
    def watch(self, id: str) -> AsyncIterator[Instance]: raise NotImplementedError  # async generator: aclose it

    # for sessions with nodes
    def orders(self, node: NodeId) -> list[Order]: raise NotImplementedError
    def listen(self, changed: "Callable[[Instance | None, Instance | None], None]") -> Callable[[], None]:
        """`changed(before, after)` for every change, None: not there; the result ends that."""
        raise NotImplementedError
    async def reported(self, node: NodeId | None, reports: Sequence[Report]) -> "list[Outcome]":
        """One outcome per report, in order: Outcome(instance, verdict, message); verdict: Verdict enum
        applied | repeated | outdated (an older generation; ignored) | stale (not bound to this node: stop it)
        | refused (the state machine forbids it; message says why).
        node None: told by somebody who is no node (Kudo's setInstanceStatus); generation 0: unsaid."""
        raise NotImplementedError
