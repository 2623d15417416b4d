"""The containers of this node: create, start, stop, remove, exec, and what is known of each.

What `skerry.wire` calls, and the only door. A container is the cell of its name with an image's files, an
address and an OCI runtime's process in it; it outlives the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skerry.kit.clock import Clock
from skerry.model.cells import Exit, Stream
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.images import PullProgress
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.containers.execs import ExecSession
from skerry.node.logs.readers import RingReader


class Containers:
    """Every container of this node."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        cells: Cells,
        images: object,
        network: object,
        runtime: object,
        settings: NodeSettings,
        clock: Clock,
        *,
        reached: Callable[[str], None] = lambda step: None,
    ) -> Containers:
        """Take over what is in `folder`: finish or undo what an earlier agent left half done."""
        raise NotImplementedError

    async def create(
        self, spec: ContainerSpec, *, on_progress: Callable[[PullProgress], None] = lambda progress: None
    ) -> ContainerView:
        """Make a container, with its image pulled if it is not here; durable when this returns. Raises
        AlreadyExists, Invalid, NoRoom, and what pulling raises."""
        raise NotImplementedError

    async def start(self, name: str) -> ContainerView:
        """Run it, from created or exited; it runs when this returns. Raises NotFound, Refused (it runs, is
        being removed, or the runtime cannot), AlreadyExists (a port), NoRoom."""
        raise NotImplementedError

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        """The stop signal to its main process, and after `grace_s` the end of all; it stays listed with its
        exit and its output. Nothing if it does not run. Raises NotFound, Unavailable."""
        raise NotImplementedError

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Everything of it goes. Raises NotFound, Refused (it runs and `force` is not given), Unavailable."""
        raise NotImplementedError

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
        """Run a command in it, with `stdio` as its three streams: ends of pipes, or three times the slave of
        a terminal with `tty`. They stay the caller's to close, which it may do as soon as this returns.
        Raises NotFound, Refused (it does not run), Invalid."""
        raise NotImplementedError

    def logs(self, name: str, stream: Stream) -> RingReader:
        """What the last run has written to `stream`, and writes. Raises NotFound."""
        raise NotImplementedError

    async def stats(self, name: str) -> ContainerStats:
        """What it uses. Raises NotFound."""
        raise NotImplementedError

    async def wait(self, name: str) -> Exit:
        """How its last run ended, once it has and its address and ports are free again. Raises NotFound,
        Refused (it was never started)."""
        raise NotImplementedError

    def list(self) -> list[ContainerView]:
        """Every container, by name."""
        raise NotImplementedError

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        raise NotImplementedError

    async def run(self) -> None:
        """Watch the disk of containers where no quota does, and try again what could not be tidied up. For
        ever."""
        raise NotImplementedError

    async def close(self) -> None:
        """The agent ends; the containers go on."""
        raise NotImplementedError
