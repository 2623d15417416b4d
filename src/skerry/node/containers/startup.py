"""Starting a container: its root, its address and its process, as much as possible side by side.

`Containers` holds the lock of the container. A start is acknowledged by the cell's record of the process:
until then everything it did is undone if it fails, or by the next agent if this one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.cells import CellOwner, Executable, ExecutableState, RuntimeCommand
from skerry.model.containers import NetworkMode
from skerry.model.images import Image
from skerry.model.workloads import UserNamespaceMode
from skerry.node.containers import init_programs
from skerry.node.containers.etc_files import EtcFiles, write_files
from skerry.node.containers.oci_config import command, host_name, make_config
from skerry.node.containers.records import RunRecord
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.state import (
    MAIN,
    ContainerDeps,
    ContainerEntry,
    cell_name,
    check_disk,
    command_text,
    no_guests,
    users_of,
)
from skerry.node.containers.users import ContainerUser, resolve_user
from skerry.node.containers.writable_layers import OpenLayer
from skerry.node.network.network import Attachment
from skerry.node.user_namespaces import UserNamespace

log = structlog.get_logger(__name__)

_LOST = "what it had written before was lost when the machine went down"


class _Root(NamedTuple):
    """The files of a container, laid out for a start."""

    identity: ContainerUser  # as its own files know the user
    files: EtcFiles
    was_lost: bool  # what it had written before


class ContainerStartup:
    """Starts containers that do not run."""

    def __init__(self, deps: ContainerDeps, teardown: RunTeardown) -> None:
        self._deps = deps
        self._teardown = teardown

    async def start(
        self, container: ContainerEntry, *, when_begun: Callable[[], None] = lambda: None
    ) -> None:
        """`when_begun` is called as soon as the runtime works: what it does runs beside that."""
        check_disk(self._deps, container.record.spec)
        image = self._image(container)
        await self._clear(container)
        try:
            state, reason = await self._start(container, image, when_begun)
            run = RunRecord(self._deps.boot, state.started_at, reason=reason)
            self._deps.records.set_run(container.name, run)
            self._deps.reached("start.recorded")
        except BaseException:
            await self._undo(container)
            raise
        container.run = run
        container.pid = state.pid
        container.ended = asyncio.get_running_loop().create_future()

    def _image(self, container: ContainerEntry) -> Image:
        try:
            return self._deps.images.get(container.record.image)
        except errors.NotFound:
            raise errors.FailedPrecondition(
                f"the image of container {container.name!r} is gone from this node; remove the container, "
                f"and create it again from {container.record.spec.image!r}"
            ) from None

    async def _clear(self, container: ContainerEntry) -> None:
        """What the last run left must be gone; and there must be a cell, which there is not any more if the
        machine was restarted or somebody removed its groups."""
        if container.has_leftovers:
            await self._undo(container)
        if container.has_leftovers:
            raise errors.Unavailable(
                f"what the last run of container {container.name!r} held cannot be given back; "
                "the log says why; start it again later"
            )
        await self._rename_cell(container)
        await self._deps.cells.ensure(container.record.cell)

    async def _rename_cell(self, container: ContainerEntry) -> None:
        """A version before this one may have called its cell otherwise."""
        deps, record = self._deps, container.record
        name = cell_name(deps.cells, record.spec)
        if record.cell.name == name:
            return
        with suppress(errors.NotFound):
            if deps.cells.get(record.cell.name).cell == record.cell:
                await deps.cells.free(record.cell.name, grace_s=0, owner=CellOwner.CONTAINER)
        container.record = replace(record, cell=replace(record.cell, name=name, owner=CellOwner.CONTAINER))
        deps.records.replace(container.record)

    async def _start(
        self, container: ContainerEntry, image: Image, when_begun: Callable[[], None]
    ) -> tuple[ExecutableState, str]:
        opening = asyncio.create_task(self._open_layer(container))
        try:
            attachment = await self._attach(container)
            container.users = await self._enter_users(container, attachment)
        finally:
            # Whoever undoes this finds nothing that is still being done.
            await asyncio.gather(opening, return_exceptions=True)
        root = await self._lay_out(container, image, attachment, opening.result())
        await self._forget_last(container)
        is_begun = asyncio.Event()
        publishing = asyncio.create_task(self._publish(attachment, is_begun, when_begun))
        try:
            state = await self._run(container, root, attachment, is_begun)
        except BaseException:
            if not is_begun.is_set():
                publishing.cancel()
            # Whoever undoes this finds nothing that is still being done.
            await asyncio.gather(publishing, return_exceptions=True)
            raise
        await publishing
        return state, _LOST if root.was_lost else ""

    async def _attach(self, container: ContainerEntry) -> Attachment | None:
        spec = container.record.spec
        if spec.network is NetworkMode.NONE:
            return None
        attachment = await self._deps.network.attach(
            spec.name, spec.ports, is_apart=spec.is_apart, policy=container.record.policy
        )
        container.address = attachment.address
        self._deps.reached("start.attached")
        return attachment

    async def _enter_users(
        self, container: ContainerEntry, attachment: Attachment | None
    ) -> UserNamespace | None:
        """The user namespace of this run. One with a network was made with it, ahead of time."""
        spec, makes = container.record.spec, self._deps.users
        if attachment is None and makes is not None and spec.userns is UserNamespaceMode.PRIVATE:
            await asyncio.to_thread(makes.make, container.name)
        users = users_of(self._deps, container, attachment)
        if users is None and spec.is_apart:
            raise no_guests()
        return users

    async def _open_layer(self, container: ContainerEntry) -> OpenLayer:
        """Beside the network: one that has a limit is mounted first, which takes some milliseconds."""
        deps = self._deps
        arguments = container.place.layer, container.disk_limit, container.shared_disk
        has_limit = container.disk_limit is not None or container.shared_disk is not None
        opened = (
            await asyncio.to_thread(deps.disks.open, *arguments) if has_limit else deps.disks.open(*arguments)
        )
        container.disk_limit_kind = opened.kind
        deps.reached("start.layer_opened")
        return opened

    async def _lay_out(
        self, container: ContainerEntry, image: Image, attachment: Attachment | None, opened: OpenLayer
    ) -> _Root:
        deps, place, record = self._deps, container.place, container.record
        lowers = deps.images.layers(image)

        def lay_out() -> _Root:
            was_emptied = deps.overlays.mount(place.rootfs, lowers, layer=place.layer, users=container.users)
            was_lost = was_emptied or (opened.is_new and container.run is not None)
            files = write_files(
                place.folder,
                host_name=host_name(record.spec),
                address=attachment.address if attachment is not None else "",
                resolv_conf=deps.network.resolv_conf(record.spec.dns) if attachment is not None else "",
                extra_hosts=record.spec.extra_hosts,
            )
            if record.spec.init:
                files = replace(files, init=init_programs.require())
            user = record.spec.user or record.config.user
            return _Root(resolve_user(user, place.rootfs, container.ids), files, was_lost)

        # It is a few short calls, which a thread would take longer to be told of than to make; but what an
        # earlier boot left goes, which may be much.
        is_quick = container.run is None or container.run.boot == deps.boot
        root = lay_out() if is_quick else await asyncio.to_thread(lay_out)
        deps.reached("start.mounted")
        return root

    async def _forget_last(self, container: ContainerEntry) -> None:
        """The last run, with its output, makes room for the next."""
        try:
            await self._deps.cells.stop(container.cell, MAIN, grace_s=0, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            return
        self._deps.reached("start.forgotten")

    async def _run(
        self, container: ContainerEntry, root: _Root, attachment: Attachment | None, is_begun: asyncio.Event
    ) -> ExecutableState:
        deps, record, place, users = self._deps, container.record, container.place, container.users

        def prepare(cgroups_path: str) -> RuntimeCommand:
            config = make_config(
                record.spec,
                record.config,
                identity=root.identity,
                rootfs=rootfs,
                cgroups_path=cgroups_path,
                network_namespace=attachment.namespace if attachment is not None else None,
                files=root.files,
                users=users,
            )
            (place.folder / "config.json").write_bytes(
                json_codec.encode(config)
            )  # read at once, and never again
            deps.reached("start.bundled")
            is_begun.set()
            arguments = prepares(
                container.name, bundle=place.folder, pid_file=place.pid_file, log=place.runtime_log
            )
            return RuntimeCommand(
                arguments, str(place.pid_file), owner=users.first_id if users is not None else 0
            )

        async def release() -> None:
            await deps.runtime.start(container.name)

        # Under a small quota the runtime's own work takes seconds. So it is done before the quota is on, and
        # the program begins after; without a quota, one call of the runtime does both.
        has_quota = record.cell.limits.cpu_quota is not None
        prepares = deps.runtime.create_arguments if has_quota else deps.runtime.run_arguments
        place.pid_file.unlink(missing_ok=True)
        executable = Executable(MAIN, container.cell, command_text(command(record.spec, record.config)))
        with deps.overlays.reachable(place.rootfs, users) as rootfs:
            state = await deps.cells.start_container(executable, prepare, release if has_quota else None)
        deps.reached("start.running")
        return state

    async def _publish(
        self, attachment: Attachment | None, is_begun: asyncio.Event, when_begun: Callable[[], None]
    ) -> None:
        """Beside the runtime's work, which takes longer, and not before that has begun."""
        await is_begun.wait()
        when_begun()
        if attachment is not None and attachment.ports:
            await self._deps.network.publish(attachment.owner)
            self._deps.reached("start.published")

    async def _undo(self, container: ContainerEntry) -> None:
        """Leave nothing of a start that failed."""
        try:
            await self._deps.cells.stop(container.cell, MAIN, grace_s=0, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            pass
        except errors.SkerryError as error:
            log.warning("start.not_undone", container=container.name, error=error.message)
            container.has_leftovers = True  # what still runs has the root and the address
            return
        container.address, container.users = "", None
        await self._teardown.tidy(container)
