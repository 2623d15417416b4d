"""The function service of a process: the registry, or a node's replica of it, with the workers and members
that must know of a change before it is acknowledged.

Both classes implement `skerry.wire.serverledge.ports.FunctionService`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from skerry.functions.continuum.code_replication import CodeCopies, CodeReplicator, ReplicationStatus
from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.invocation.invoker import Invoker
from skerry.functions.ports import LocalWorkerHost
from skerry.functions.registry import runtimes
from skerry.functions.registry.registry import FunctionRegistry, NewFunction
from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.members import ContinuumMember


class RegistryFunctionService:
    """The functions of a server, where they are registered."""

    def __init__(
        self,
        registry: FunctionRegistry,
        invoker: Invoker,
        host: LocalWorkerHost,
        member: ContinuumMember,
        replicator: CodeReplicator,
    ) -> None:
        self._registry = registry
        self._member = member
        self._replicator = replicator
        self._invoker = invoker
        self._host = host
        self.get = registry.get
        self.names = registry.names

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        async with self._provisional_image(new):
            return await self._registry.create(new, actor=actor, check=self._check)

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        async with self._provisional_image(new):
            function = await self._registry.update(new, actor=actor, check=self._check)
        await self._invoker.updated(function)
        return function

    async def delete(self, name: str, *, actor: str) -> Function:
        function = await self._registry.delete(name, actor=actor)
        await self._invoker.removed(function.name)
        self._host.forget(function.name)
        return function

    def _provisional_image(self, new: NewFunction) -> AbstractAsyncContextManager[None]:
        if new.runtime != CUSTOM or not new.image:
            return nullcontext()
        return self._host.provisional(new.name, new.image)

    async def _check(self, function: Function, code: Path | None) -> None:
        """Load it once, if that can be done here: one that fits only on a larger node is taken as it is. Then
        have its code on a second member."""
        member = self._member
        if function.memory <= member.memory and (function.cpu or 0) <= member.cpus * 1000:
            await self._invoker.validate(function, code)
        if function.code is not None:
            await self._replicator.replicate(function.code)

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)

    def copies(self, function: Function) -> CodeCopies | None:
        return None if function.code is None else self._replicator.copies(function.code)

    def replication(self) -> ReplicationStatus:
        return self._replicator.status


class FunctionReplicaService:
    """The functions of a node: they are called here, and registered at `server`."""

    def __init__(self, copies: FunctionReplica, invoker: Invoker, host: LocalWorkerHost, server: str) -> None:
        self._invoker = invoker
        self._host = host
        self._server = server
        self.get = copies.get
        self.names = copies.names
        copies.listen(self._changed)

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        raise self._elsewhere()

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        raise self._elsewhere()

    async def delete(self, name: str, *, actor: str) -> Function:
        raise self._elsewhere()

    def runs(self, function: Function) -> str:
        return self._host.describe(runtimes.find(function.runtime).kind)

    def copies(self, function: Function) -> CodeCopies | None:
        return None

    def replication(self) -> ReplicationStatus | None:
        return None

    async def _changed(self, before: Function | None, after: Function | None) -> None:
        """The control plane has changed it."""
        if before is not None and (after is None or after.name != before.name):
            await self._invoker.removed(before.name)
            self._host.forget(before.name)
        elif after is not None:
            await self._invoker.updated(after)

    def _elsewhere(self) -> errors.Unavailable:
        return errors.Unavailable(
            f"functions are registered at the server of this node, {self._server}; ask there"
        )
