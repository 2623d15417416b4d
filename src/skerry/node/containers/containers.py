"""The containers of this node: create, start, stop, remove, exec, and what is known of each.

What `skerry.wire` calls, and the only door: it finds the container, takes its lock, and has the work done to
its end even if the caller goes away meanwhile. A container is the cell of its name (`skerry.node.cells`) with
an image's files, an address and an OCI runtime's process in it. Containers outlive the agent: `open` takes
over what an earlier one left, `close` leaves everything running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog

from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import Exit, Stream, Usage
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.images import Image, ImageId, PullProgress
from skerry.model.settings import NodeSettings
from skerry.node import host
from skerry.node.cells.cells import Cells
from skerry.node.containers import bundle
from skerry.node.containers.adoption import Adoption
from skerry.node.containers.disks import Disks
from skerry.node.containers.ending import Ending
from skerry.node.containers.execs import Execs, ExecSession
from skerry.node.containers.known import MAIN, Container, Means, cell_for, cell_name, make_container
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerRecord, Records, RunRecord
from skerry.node.containers.removing import Removing
from skerry.node.containers.runtimes import OciRuntime
from skerry.node.containers.starting import Starting
from skerry.node.containers.turns import Turns
from skerry.node.containers.upkeep import Upkeep
from skerry.node.images.images import Images
from skerry.node.logs.readers import RingReader
from skerry.node.network.network import Network

log = structlog.get_logger(__name__)

T = TypeVar("T")

_ALL = "all"  # beside what overlays and the runtime keep there, under names that a container may have
_CLOSE_S = 3.0
_AGAIN_S = 5.0  # until an end that could not be finished is tried again


class Containers:
    """Every container of this node."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._containers: dict[str, Container] = {}
        self._turns = Turns()
        self._ending = Ending(means)
        self._starting = Starting(means, self._ending)
        self._removing = Removing(means, self._ending)
        self._execs = Execs(means)
        self._upkeep = Upkeep(means, self._ending, self._turns, self._containers.values)

    @classmethod
    async def open(
        cls,
        folder: Path,
        cells: Cells,
        images: Images,
        network: Network,
        runtime: OciRuntime,
        settings: NodeSettings,
        clock: Clock,
        *,
        boot: str | None = None,
        overlays: Overlays | None = None,
        disks: Disks | None = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> Containers:
        """Take over what is in `folder`: finish or undo what an earlier agent left half done."""
        boot = host.boot_id() if boot is None else boot
        means = Means(
            records=Records(folder / _ALL),
            cells=cells,
            images=images,
            network=network,
            runtime=runtime,
            overlays=overlays or Overlays(folder, boot),
            disks=disks or Disks.open(folder),
            settings=settings,
            clock=clock,
            boot=boot,
            reached=reached,
        )
        containers = cls(means)
        try:
            await Adoption(
                means, containers._ending, containers._removing, containers._execs, containers._keep
            ).adopt()
        except BaseException:
            await containers.close()
            raise
        return containers

    async def create(
        self,
        spec: ContainerSpec,
        *,
        image: ImageId | None = None,
        on_progress: Callable[[PullProgress], None] = lambda progress: None,
    ) -> ContainerView:
        """Make a container, with its image pulled if it is not here; durable when this returns. With `image`
        it is made of that one, which is here, whatever its spec means now. Raises AlreadyExists, Invalid,
        NoRoom, and what pulling raises."""
        self._check_new(spec)
        turn = await self._turns.take(spec.name)
        try:
            self._check_new(spec)
            claimed = await self._claim(spec, image or spec.image, on_progress)
        except BaseException:
            turn.release()
            raise
        return await turn.finish(self._create(spec, claimed))

    async def _claim(
        self, spec: ContainerSpec, reference: str, on_progress: Callable[[PullProgress], None]
    ) -> Image:
        """The image, which will not go away. Until here a caller that goes away ends it all."""
        images = self._means.images
        try:
            # What a stranger's spec means is asked for as a stranger would.
            source = images.for_guests() if spec.is_apart and reference == spec.image else images
            image = await source.ensure(reference, owner=spec.name, on_progress=on_progress)
            bundle.command(spec, image.config)  # what can be known to be wrong is better told now
            bundle.stop_signal(spec, image.config)
        except BaseException:
            images.release(spec.name)
            raise
        return image

    async def _create(self, spec: ContainerSpec, image: Image) -> ContainerView:
        means, name = self._means, spec.name
        record = ContainerRecord(
            spec, image.id, image.config, cell_for(spec, means.settings), means.clock.now()
        )
        container = make_container(means, record)
        try:
            # The record comes before the cell, so that a cell of ours can always be found by its record.
            means.records.add(record)
            means.reached("create.recorded")
            on_disk = asyncio.create_task(asyncio.to_thread(self._put_on_disk, container))
            try:
                await means.cells.allocate(record.cell)
                means.reached("create.allocated")
            finally:
                await on_disk
        except BaseException as error:
            # If there was a cell already it is somebody's, and not to be touched.
            cell = None if isinstance(error, errors.AlreadyExists) else record.cell
            with contextlib.suppress(errors.Unavailable):  # why it failed matters more
                await self._removing.drop(name, cell)
            raise
        means.reached("create.synced")
        self._containers[name] = container
        log.info("container.created", container=name, image=image.id)
        return container.view()

    def _put_on_disk(self, container: Container) -> None:
        """Waits for the disk."""
        self._means.disks.make(container.place.layer, container.disk_limit)
        self._means.records.sync(container.name)

    def _check_new(self, spec: ContainerSpec) -> None:
        name, cell = spec.name, cell_name(spec)
        if name in self._containers:
            raise errors.AlreadyExists(
                f"container {name!r} exists already; remove it, or choose another name"
            )
        if any(view.cell.name == cell for view in self._means.cells.list()):
            raise errors.AlreadyExists(
                f"there is a cell {cell!r}, and a container is a cell; free it, or choose another name"
            )

    async def start(self, name: str) -> ContainerView:
        """Run it, from created or exited; it runs when this returns. Raises NotFound, Refused (it runs, is
        being removed, or the runtime cannot), AlreadyExists (a port), NoRoom."""
        return await self._work(name, self._start)

    async def _start(self, container: Container) -> ContainerView:
        self._check_stays(container)
        if container.is_running:
            raise errors.Refused(f"container {container.name!r} runs already")
        await self._starting.start(container)
        self._watch(container)
        log.info("container.started", container=container.name, pid=container.pid, address=container.address)
        return container.view()

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        """The stop signal to its main process, and after `grace_s` the end of all; it stays listed with its
        exit and its output. Nothing if it does not run. Raises NotFound, Unavailable."""
        grace_s = self._grace(self._container(name)) if grace_s is None else max(0.0, grace_s)
        self._ending.hurry(self._container(name), grace_s)  # before waiting for who stops it now

        async def stop(container: Container) -> ContainerView:
            if container.is_running:
                await self._ending.stop(container, grace_s)
            return container.view()

        return await self._work(name, stop)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Everything of it goes; with `force` it is stopped first if it runs. Raises NotFound, Refused (it
        runs), Unavailable."""

        async def remove(container: Container) -> None:
            if container.is_running and not force:
                raise errors.Refused(f"container {name!r} runs; stop it first, or force the removal")
            self._removing.mark(container)
            if container.is_running:
                await self._ending.stop(container, self._grace(container))
            await self._removing.remove(container)
            del self._containers[name]
            log.info("container.removed", container=name)

        await self._work(name, remove)

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
        container = self._container(name)
        self._check_stays(container)
        if not container.is_running:
            raise errors.Refused(f"container {name!r} does not run; start it first")
        return await self._execs.begin(
            container,
            arguments,
            environment=environment,
            user=user,
            folder=folder,
            tty=tty,
            stdio=stdio,
        )

    def logs(self, name: str, stream: Stream) -> RingReader:
        """What the last run has written to `stream`, and writes; nothing if there was none in this boot.
        Raises NotFound."""
        container = self._container(name)
        try:
            return self._means.cells.logs(container.cell, MAIN, stream)
        except errors.NotFound:
            return RingReader(container.place.folder, stream.value, ended=lambda: True)

    def usage(self, name: str) -> Usage:
        """What its processes use. Raises NotFound."""
        container = self._container(name)
        try:
            return self._means.cells.usage(container.cell)
        except errors.NotFound:  # it has no cell before the first start in this boot
            return Usage()

    async def stats(self, name: str) -> ContainerStats:
        """What it uses, its disk too. Raises NotFound."""
        container = self._container(name)
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=await asyncio.to_thread(self._means.disks.used, container.place.layer),
            disk_limit_bytes=container.disk_limit,
            disk_limit_kind=container.disk_limit_kind.value,
        )

    async def wait(self, name: str) -> Exit:
        """How its last run ended, once it has and its address and ports are free again. Raises NotFound,
        Refused (it was never started, or nobody knows how it ended)."""
        container = self._container(name)
        run = container.run
        if container.ended is not None:
            run = await asyncio.shield(container.ended)
        if run is None:
            raise errors.Refused(f"container {name!r} was never started")
        if run.exit is None:
            raise errors.Refused(f"container {name!r} has ended, but not by itself: {run.reason}")
        return run.exit

    def list(self) -> list[ContainerView]:
        """Every container, by name."""
        return [self._containers[name].view() for name in sorted(self._containers)]

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._container(name).view()

    async def run(self) -> None:
        """Watch the disk of containers where no quota does, and try again what could not be given back. For
        ever."""
        await self._upkeep.run()

    async def close(self) -> None:
        """The agent ends; the containers go on. What is being done is given a moment, and else is left half
        done: the next agent finishes or undoes it."""
        await self._execs.close()
        await self._turns.close(_CLOSE_S)
        watchers = [each.watcher for each in self._containers.values() if each.watcher is not None]
        await tasks.give_up(watchers)
        await self._turns.close(_CLOSE_S)  # what they had begun

    def _keep(self, container: Container) -> None:
        self._containers[container.name] = container
        if container.is_running:
            self._watch(container)

    def _watch(self, container: Container) -> None:
        """See to the end of a run, whoever or whatever ends it."""
        assert container.ended is not None
        container.watcher = asyncio.create_task(
            self._see_end(container, container.ended), name=f"watcher of {container.name}"
        )

    async def _see_end(self, container: Container, ended: asyncio.Future[RunRecord]) -> None:
        how = await self._means.cells.wait(container.cell, MAIN)

        async def finish() -> None:
            if container.ended is ended:  # else whoever had the turn before has seen to it
                await self._ending.finish(container, how)

        while container.ended is ended:
            try:
                await self._turns.do(container.name, finish)
            except errors.SkerryError as error:
                log.warning("container.not_ended", container=container.name, error=error.message)
                await asyncio.sleep(_AGAIN_S)

    async def _work(self, name: str, work: Callable[[Container], Coroutine[Any, Any, T]]) -> T:
        """Find the container and work on it, alone."""
        self._container(name)

        async def find_and_work() -> T:
            return await work(self._container(name))

        return await self._turns.do(name, find_and_work)

    def _container(self, name: str) -> Container:
        container = self._containers.get(name)
        if container is None:
            raise errors.NotFound(f"there is no container {name!r}")
        return container

    def _check_stays(self, container: Container) -> None:
        if container.is_removing:
            raise errors.Refused(
                f"container {container.name!r} was to be removed and could not be; remove it again"
            )

    def _grace(self, container: Container) -> float:
        grace_s = container.record.spec.stop_grace_s
        return self._means.settings.stop_grace_s if grace_s is None else grace_s
