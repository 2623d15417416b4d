"""The containers of this node: create, start, stop, remove, exec, list.

The entry point for `skerry.wire`: it finds the container, takes its lock, and runs the work to completion
even if the caller disconnects. A container is an internal cell (`skerry.node.cells`) with an image's files,
an address and a process of an OCI runtime. Containers outlive the agent: `open` adopts what an earlier one
left, `close` leaves everything running.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from skerry.kit import tasks
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.model.cells import Cell, CellOwner, CellUsage, ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.ids import CellName, Namespace
from skerry.model.images import Image, ImageAccess, ImageId, PullProgress
from skerry.model.network import OPEN_ACCESS, NetworkAccess
from skerry.node.cells.locks import PathLocks
from skerry.node.containers import oci_config
from skerry.node.containers.adoption import ContainerAdoption
from skerry.node.containers.execs import ExecManager, ExecSession
from skerry.node.containers.maintenance import ContainerMaintenance
from skerry.node.containers.records import ContainerRecord, RunRecord
from skerry.node.containers.removal import ContainerRemoval
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.start_slots import StartSlots
from skerry.node.containers.startup import ContainerStartup
from skerry.node.containers.state import (
    MAIN,
    ContainerDeps,
    ContainerEntry,
    cell_for,
    cell_name,
    check_disk,
    check_guests,
    make_container,
    takes_disk_limits,
)
from skerry.node.containers.writable_layers import DiskLimitKind
from skerry.node.guest_networks.networks import GuestNetworks
from skerry.node.logs.readers import RingReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLOSE_S = 3.0
_AGAIN_S = 5.0  # until a teardown that failed is retried


class Containers:
    """All containers of this node."""

    def __init__(self, deps: ContainerDeps) -> None:
        self._deps = deps
        self._containers: dict[str, ContainerEntry] = {}
        self._locks = PathLocks("containers")
        # Creations that come while the disk syncs share the next sync: file creation blocks meanwhile.
        self._syncs: Batcher[str] = Batcher(lambda names: deps.records.sync(names))
        self._teardown = RunTeardown(deps)
        self._startup = ContainerStartup(deps, self._teardown)
        self._preparing = StartSlots()
        self._removal = ContainerRemoval(deps, self._teardown)
        self._execs = ExecManager(deps)
        self._maintenance = ContainerMaintenance(deps, self._teardown, self._locks, self._containers.values)

    @property
    def guest_networks(self) -> GuestNetworks | None:
        """Networks of guests in the mesh of their buyers."""
        return self._deps.guest_networks

    async def open(self) -> Containers:
        """Load the records and adopt: finish or undo what an earlier agent left half done."""
        try:
            await ContainerAdoption(self._deps, self._teardown, self._removal, self._execs, self._add).adopt()
        except BaseException:
            await self.close()
            raise
        return self

    async def create(
        self,
        spec: ContainerSpec,
        *,
        image: ImageId | None = None,
        network: NetworkAccess = OPEN_ACCESS,
        access: ImageAccess = ImageAccess.REGISTRIES,
        starts: bool = False,
        on_progress: Callable[[PullProgress], None] = lambda progress: None,
    ) -> ContainerView:
        """Create a container, and pull its image if it is not on the node; durable on return. `image` is used
        instead of the spec's, and must be on the node; `access` is that of the spec's author. With `starts`
        it is started too, concurrently with the sync to disk; if that fails, or the caller is cancelled, it
        is removed. Raises AlreadyExists, Invalid, ResourcesExhausted, the errors of a pull and, with
        `starts`, of `start`."""
        self._check_new(spec)
        lock = await self._locks.lock([], spec.name)
        try:
            self._check_new(spec)
            claimed = await self._claim(spec, image, access, on_progress)
        except BaseException:
            lock.release()
            raise
        is_awaited = True

        async def create() -> ContainerView:
            prepared = await self._prepare(spec) if starts else None
            try:
                container = await self._create(spec, claimed, network, prepared)
            finally:
                if prepared is not None:
                    prepared()
            if starts and not is_awaited:
                await self._remove(container)
            return container.view()

        try:
            return await lock.finish(create())
        except asyncio.CancelledError:
            is_awaited = False
            raise

    async def _claim(
        self,
        spec: ContainerSpec,
        id: ImageId | None,
        access: ImageAccess,
        on_progress: Callable[[PullProgress], None],
    ) -> Image:
        """The image, protected from removal. A caller that is cancelled up to here leaves nothing."""
        images = self._deps.images
        try:
            if id is not None:
                image = images.get(id)
                images.claim(spec.name, id)
            else:
                # References of guests are resolved without this node's credentials.
                source = images.for_guests() if spec.is_isolated else images
                image = await source.ensure(
                    spec.image, access=access, owner=spec.name, on_progress=on_progress
                )
            oci_config.command(spec, image.config)  # fail early on an invalid command
            oci_config.stop_signal(spec, image.config)
        except BaseException:
            images.release(spec.name)
            raise
        return image

    async def _create(
        self,
        spec: ContainerSpec,
        image: Image,
        network: NetworkAccess,
        prepared: Callable[[], None] | None,
    ) -> ContainerEntry:
        """With `prepared` it is started too; that is called when the runtime works."""
        deps, name = self._deps, spec.name
        record = ContainerRecord(
            spec, image.id, image.config, cell_for(deps, spec), deps.clock.now()
        ).with_access(network)
        container = make_container(deps, record)
        starts = prepared is not None
        cell: Cell | None = record.cell
        syncing: asyncio.Task[None] | None = None

        def sync() -> None:
            nonlocal syncing
            if prepared is not None:
                prepared()
            syncing = asyncio.create_task(self._syncs.do(name))

        try:
            # The record comes before the cell, so that a cell of ours is always found by its record.
            deps.records.add(record)
            deps.failpoint("create.recorded")
            if not starts:
                sync()
            try:
                try:
                    # A start takes its layer from the pool, if there is one.
                    await (self._allocate(container) if starts else self._make_layer_and_cell(container))
                except errors.AlreadyExists:
                    cell = None  # it belongs to somebody else, and is not touched
                    raise
                if starts:
                    # File creation blocks while the disk syncs, so the sync waits until the runtime works,
                    # which creates
                    # few files.
                    await self._startup.start(container, is_new=True, when_begun=sync)
            finally:
                if syncing is not None:
                    await syncing
        except BaseException:
            with contextlib.suppress(errors.Unavailable):  # the first error matters more
                await self._removal.drop(name, cell, container.shared_disk)
            raise
        deps.failpoint("create.synced")
        self._containers[name] = container
        log.info("container.created", container=name, image=image.id)
        if starts:
            self._started(container)
        return container

    async def _make_layer_and_cell(self, container: ContainerEntry) -> None:
        arguments = container.paths.layer, container.disk_limit, container.shared_disk
        making = asyncio.create_task(asyncio.to_thread(self._deps.disks.make, *arguments))
        try:
            await self._allocate(container)
        finally:
            await making

    async def _allocate(self, container: ContainerEntry) -> None:
        await self._deps.cells.allocate(container.record.cell)
        self._deps.failpoint("create.allocated")

    def _check_new(self, spec: ContainerSpec) -> None:
        check_disk(self._deps, spec)
        name, cell = spec.name, cell_name(self._deps.cells, spec)
        if name in self._containers:
            raise errors.AlreadyExists(
                f"container {name!r} exists already; remove it, or choose another name"
            )
        with contextlib.suppress(errors.NotFound):
            self._deps.cells.get(cell)
            raise errors.AlreadyExists(
                f"there is a cell {cell!r} of another container already; choose another name"
            )

    def use_namespaces(self, namespace_of: Callable[[str], Namespace | None]) -> None:
        """`namespace_of` gives the namespace of the instance that a container is, if it is one: its short
        names are those of that namespace."""
        self._startup.namespace_of = namespace_of

    async def start(self, name: str) -> ContainerView:
        """Start it, created or exited; it is running on return. Raises NotFound, FailedPrecondition (it is
        running, being removed, or the runtime fails), AlreadyExists (a port), ResourcesExhausted."""
        return await self._work(name, self._start)

    async def _start(self, container: ContainerEntry) -> ContainerView:
        self._check_stays(container)
        if container.is_running:
            raise errors.FailedPrecondition(f"container {container.name!r} is already running")
        prepared = await self._prepare(container.record.spec)
        try:
            await self._startup.start(container, when_begun=prepared)
        finally:
            prepared()
        self._started(container)
        return container.view()

    async def _prepare(self, spec: ContainerSpec) -> Callable[[], None]:
        """Wait until few other starts are being prepared; returns what is called when this one is. Starts of
        guests may take long, and delay nobody."""
        return (lambda: None) if spec.is_isolated else await self._preparing.take()

    def _started(self, container: ContainerEntry) -> None:
        """Watch a container that was just started."""
        self._watch(container)
        if container.disk_limit_kind is DiskLimitKind.FILE_SYSTEM and container.shared_disk is None:
            self._maintenance.disk_opened()
        log.info("container.started", container=container.name, pid=container.pid, address=container.address)

    async def restrict(self, name: str, network: NetworkAccess) -> None:
        """Change what it may reach and who may reach it, running or not; durable on return. Raises NotFound,
        Unavailable."""

        async def restrict(container: ContainerEntry) -> None:
            record = container.record.with_access(network)
            # First the rules, then the record: an agent that finds the old record applies it again.
            await self._deps.networks.restrict(name, record.policy)
            self._deps.failpoint("restrict.ruled")
            self._deps.records.replace(record)
            await self._syncs.do(name)
            container.record = record
            log.info(
                "container.restricted",
                container=name,
                egress=network.egress,
                is_isolated=network.is_isolated,
            )

        await self._work(name, restrict)

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        """Send the stop signal to its main process, and kill everything after `grace_s`; its exit status and
        logs stay. Does nothing if it is not running. Raises NotFound, Unavailable."""
        grace_s = self._grace(self._container(name)) if grace_s is None else max(0.0, grace_s)
        self._teardown.shorten_grace(self._container(name), grace_s)  # before waiting for a stop in progress

        async def stop(container: ContainerEntry) -> ContainerView:
            if container.is_running:
                await self._teardown.stop(container, grace_s)
            return container.view()

        return await self._work(name, stop)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove it; with `force` it is stopped first. Raises NotFound, FailedPrecondition (it is running),
        Unavailable."""

        async def remove(container: ContainerEntry) -> None:
            if container.is_running and not force:
                raise errors.FailedPrecondition(
                    f"container {name!r} is running; stop it first, or force the removal"
                )
            await self._remove(container)

        await self._work(name, remove)

    async def _remove(self, container: ContainerEntry) -> None:
        self._removal.mark(container)
        if container.is_running:
            await self._teardown.stop(container, self._grace(container))
        await self._removal.remove(container)
        del self._containers[container.name]
        log.info("container.removed", container=container.name)

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
        """Run a command in it, with `stdio` as its stdin, stdout and stderr: ends of pipes, or with `tty`
        three times the slave of a terminal. The caller owns them, and may close them on return. Raises
        NotFound, FailedPrecondition (it is not running), Invalid."""
        container = self._container(name)
        self._check_stays(container)
        if not container.is_running:
            raise errors.FailedPrecondition(f"container {name!r} is not running; start it first")
        return await self._execs.begin(
            container,
            arguments,
            environment=environment,
            user=user,
            folder=folder,
            tty=tty,
            stdio=stdio,
        )

    def open_socket(self, name: str) -> asyncio.Future[socket.socket]:
        """An unconnected, non-blocking TCP socket in its network namespace. Raises NotFound,
        FailedPrecondition (it has no network now), OSError."""
        return self._deps.networks.open_socket(self._container(name).name)

    def logs(self, name: str, stream: OutputChannel, *, previous: bool = False) -> RingReader:
        """Logs of its last run, or of the one before that; empty if there was none in this boot. Raises
        NotFound, also if there was no previous run."""
        container = self._container(name)
        if previous:
            try:
                return self._deps.cells.previous_logs(container.cell, stream)
            except errors.NotFound:
                raise errors.NotFound(
                    f"container {name!r} has no previous run on this machine since its last boot; "
                    "request the logs of its last run"
                ) from None
        try:
            return self._deps.cells.logs(container.cell, MAIN, stream, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            return RingReader(container.paths.folder, stream.value, ended=lambda: True)

    def usage(self, name: str) -> CellUsage:
        """Usage of its processes. Raises NotFound."""
        container = self._container(name)
        try:
            return self._deps.cells.usage(container.cell)
        except errors.NotFound:  # it has no cell before the first start in this boot
            return CellUsage()

    async def stats(self, name: str) -> ContainerStats:
        """Its usage, including disk. Raises NotFound."""
        container = self._container(name)
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=await asyncio.to_thread(self._deps.disks.used, container.paths.layer),
            disk_limit_bytes=container.disk_limit,
            disk_limit_kind=container.disk_limit_kind.value,
        )

    @property
    def takes_disk_limits(self) -> bool:
        """True if containers with a disk limit can run here."""
        return takes_disk_limits(self._deps)

    def lacking(self) -> tuple[str, ...]:
        """What this node cannot do, and why, in sentences; ideally empty."""
        disks = self._deps.disks
        found = []
        if disks.kind is DiskLimitKind.MEASURED:
            verdict = "are only measured" if self.takes_disk_limits else "cannot be enforced, and are refused"
            found.append(f"disk limits of containers {verdict}, since {disks.no_images_reason}")
        if not disks.can_share:
            found.append(f"cells cannot be leased to buyers, since {disks.no_images_reason}")
        return tuple(found)

    def check_guests(self) -> None:
        """Raises FailedPrecondition if guest containers cannot run here."""
        check_guests(self._deps)

    def shared_disk_usage(self, cell: str) -> int:
        """Disk space that all guest containers in a cell occupy, including deleted files that are not yet
        reclaimed. Blocks for a short time."""
        return self._deps.disks.shared_usage(cell)

    async def wait(self, name: str) -> ExitStatus:
        """Wait for the end of its run, with its address and ports released; returns the exit status. Raises
        NotFound, FailedPrecondition (it was never started, or the exit status is unknown)."""
        container = self._container(name)
        run = container.run
        if container.ended is not None:
            run = await asyncio.shield(container.ended)
        if run is None:
            raise errors.FailedPrecondition(f"container {name!r} was never started")
        if run.exit is None:
            raise errors.FailedPrecondition(f"container {name!r} has ended: {run.reason}")
        return run.exit

    def list(self) -> list[ContainerView]:
        """Every container, by name."""
        return [self._containers[name].view() for name in sorted(self._containers)]

    def cell(self, name: str) -> CellName:
        """The name of its cell. Raises NotFound."""
        return self._container(name).cell

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._container(name).view()

    def address(self, name: str) -> str:
        """IPv4; empty if it has none of its own. Raises NotFound."""
        return self._container(name).address

    async def run(self) -> None:
        """Enforce measured disk limits, and retry releases that failed. Runs for ever."""
        await self._maintenance.run()

    async def close(self) -> None:
        """Stop the agent's part; the containers keep running. Work in progress gets a short time to finish;
        the next agent finishes or undoes the rest."""
        await self._execs.close()
        await self._locks.close(_CLOSE_S)
        watchers = [each.watcher for each in self._containers.values() if each.watcher is not None]
        await tasks.cancel_and_wait(watchers)
        await self._locks.close(_CLOSE_S)  # work that the watchers began
        if self._deps.move_lock is not None:
            await self._deps.move_lock.close()
        await asyncio.to_thread(self._deps.disks.close)

    def _add(self, container: ContainerEntry) -> None:
        self._containers[container.name] = container
        if container.is_running:
            self._watch(container)

    def _watch(self, container: ContainerEntry) -> None:
        """Watch for the end of a run, whatever causes it."""
        assert container.ended is not None
        container.watcher = asyncio.create_task(
            self._finish_on_exit(container, container.ended), name=f"watcher of {container.name}"
        )

    async def _finish_on_exit(self, container: ContainerEntry, ended: asyncio.Future[RunRecord]) -> None:
        status = await self._deps.cells.wait(container.cell, MAIN)

        async def finish() -> None:
            if container.ended is ended:  # else the previous holder of the lock has finished it
                await self._teardown.finish(container, status)

        while container.ended is ended:
            try:
                await self._locks.run_locked(container.name, finish)
            except errors.SkerryError as error:
                log.warning("container.not_ended", container=container.name, error=error.message)
                await asyncio.sleep(_AGAIN_S)

    async def _work(self, name: str, work: Callable[[ContainerEntry], Coroutine[Any, Any, T]]) -> T:
        """Find the container and work on it under its lock."""
        self._container(name)

        async def find_and_work() -> T:
            return await work(self._container(name))

        return await self._locks.run_locked(name, find_and_work)

    def _container(self, name: str) -> ContainerEntry:
        container = self._containers.get(name)
        if container is None:
            raise errors.NotFound(f"there is no container {name!r}")
        return container

    def _check_stays(self, container: ContainerEntry) -> None:
        if container.is_removing:
            raise errors.FailedPrecondition(
                f"container {container.name!r} could not be removed completely; remove it again"
            )

    def _grace(self, container: ContainerEntry) -> float:
        grace_s = container.record.spec.stop_grace_s
        return self._deps.settings.stop_grace_s if grace_s is None else grace_s
