"""The interface of images and containers for the gRPC services.

`skerry.node.images.images.Images` and `skerry.node.containers.containers.Containers` implement it; tests use
fakes. The services use the node only through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.images import Image, ImageAccess, PullProgress
from skerry.node.logs.readers import RingReader

OnPullProgress = Callable[[PullProgress], None]


class ImageStore(Protocol):
    """The images of a node. Every method raises `skerry.model.errors` and leaves nothing half done."""

    async def pull(self, reference: str, *, access: ImageAccess, on_progress: OnPullProgress) -> Image: ...

    def list(self) -> Sequence[Image]: ...

    def find(self, reference_or_id: str, *, access: ImageAccess) -> Image: ...

    async def remove(self, reference_or_id: str, *, access: ImageAccess) -> int: ...

    async def collect(self) -> int: ...


class ExecHandle(Protocol):
    """A program that was started in a container."""

    async def exit_code(self) -> int: ...

    def resize(self, rows: int, columns: int) -> None: ...

    def signal(self, number: int) -> None: ...

    async def kill(self) -> None: ...


class ContainerRuntime(Protocol):
    """The containers of a node. Every method raises `skerry.model.errors` and leaves nothing half done."""

    async def create(
        self, spec: ContainerSpec, *, access: ImageAccess, starts: bool, on_progress: OnPullProgress
    ) -> ContainerView: ...

    async def start(self, name: str) -> ContainerView: ...

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView: ...

    async def remove(self, name: str, *, force: bool = False) -> None: ...

    async def exec(
        self,
        name: str,
        arguments: tuple[str, ...],
        *,
        environment: tuple[str, ...],
        user: str,
        folder: str,
        tty: bool,
        stdio: tuple[int, int, int],
    ) -> ExecHandle: ...

    def list(self) -> Sequence[ContainerView]: ...

    def get(self, name: str) -> ContainerView: ...

    async def wait(self, name: str) -> ExitStatus: ...

    def logs(self, name: str, stream: OutputChannel, *, previous: bool = False) -> RingReader: ...

    async def stats(self, name: str) -> ContainerStats: ...
