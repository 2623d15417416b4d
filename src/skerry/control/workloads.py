"""Workloads: signatures; see the module's final form."""

from __future__ import annotations

from collections.abc import Callable

from skerry.model.workloads import Rollout, Spec, Workload


class Workloads:
    async def create(
        self, spec: Spec, *, actor: str, id: str | None = None, idempotency_key: str | None = None
    ) -> tuple[Workload, bool]: raise NotImplementedError  # AlreadyExists if the name is taken
    def get(self, id_or_name: str) -> Workload: raise NotImplementedError
    def revision(self, id: str) -> int: raise NotImplementedError
    def list(self, *, limit: int = 100, offset: int = 0, cursor: str | None = None) -> "Page[Workload]": raise NotImplementedError
    async def change(self, id: str, merge: Callable[[Spec], Spec], *, actor: str, if_match: int | None = None,
                     rollout: Rollout = Rollout.NONE) -> Workload: raise NotImplementedError
    async def delete(self, id: str, *, actor: str, cascade: bool = True) -> None: raise NotImplementedError
