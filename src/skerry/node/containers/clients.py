"""The containers of a node for its clients: full access to their own containers only.

`skerry.wire.own.containers` gets this and not `Containers`, so that no client can reach a container in
somebody else's cell: that of a function, which is managed with `skerry fn`, or that of a buyer of the market,
whose logs are private. Such containers are listed, without their environment.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skerry.model import errors
from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import OWN_PREFIXES, ContainerSpec, ContainerStats, ContainerView
from skerry.model.images import ImageAccess, PullProgress
from skerry.node.containers.containers import Containers
from skerry.node.containers.execs import ExecSession
from skerry.node.logs.readers import RingReader


class ClientContainers:
    """The containers of a node, as clients may use them."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def create(
        self,
        spec: ContainerSpec,
        *,
        access: ImageAccess,
        starts: bool,
        on_progress: Callable[[PullProgress], None],
    ) -> ContainerView:
        if spec.name.startswith(OWN_PREFIXES):
            raise errors.Invalid(
                f"names of containers that begin with {', '.join(OWN_PREFIXES)} are reserved for instances, "
                "functions and buyers; choose another",
                field="name",
            )
        return await self._containers.create(spec, access=access, starts=starts, on_progress=on_progress)

    async def start(self, name: str) -> ContainerView:
        return await self._containers.start(self._own(name))

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        return await self._containers.stop(self._own(name), grace_s=grace_s)

    async def remove(self, name: str, *, force: bool = False) -> None:
        await self._containers.remove(self._own(name), force=force)

    async def exec(
        self,
        name: str,
        arguments: tuple[str, ...],
        *,
        environment: tuple[str, ...] = (),
        user: str = "",
        folder: str = "",
        tty: bool = False,
        stdio: tuple[int, int, int],
    ) -> ExecSession:
        return await self._containers.exec(
            self._own(name),
            arguments,
            environment=environment,
            user=user,
            folder=folder,
            tty=tty,
            stdio=stdio,
        )

    def logs(self, name: str, stream: OutputChannel, *, previous: bool = False) -> RingReader:
        return self._containers.logs(self._own(name), stream, previous=previous)

    def list(self) -> list[ContainerView]:
        return [_redacted(view) for view in self._containers.list()]

    def get(self, name: str) -> ContainerView:
        return _redacted(self._containers.get(name))

    async def wait(self, name: str) -> ExitStatus:
        return await self._containers.wait(name)

    async def stats(self, name: str) -> ContainerStats:
        return await self._containers.stats(name)

    def _own(self, name: str) -> str:
        """`name`; raises NotFound, and FailedPrecondition if the container is not a client's."""
        spec = self._containers.get(name).spec
        if spec.is_isolated:
            raise errors.FailedPrecondition(
                f"container {name!r} belongs to a contract of the market: only its buyer may use it; "
                "'skerry market contracts' lists what was sold"
            )
        if spec.inside:
            raise errors.FailedPrecondition(f"container {name!r} belongs to a function; use 'skerry fn'")
        return name


def _redacted(view: ContainerView) -> ContainerView:
    spec = view.spec
    if not spec.inside or not spec.environment:
        return view
    return msgspec.structs.replace(view, spec=msgspec.structs.replace(spec, environment=()))
