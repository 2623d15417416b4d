"""Starts a container: its root, its address and its process, as concurrently as possible.

`Containers` holds the lock of the container. A start is acknowledged by the cell's record of the process:
until then a failed start is undone, by the next agent if this one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.cells import CellOwner, Executable, ExecutableState, RuntimeCommand
from skerry.model.containers import ContainerSpec, NetworkMode
from skerry.model.ids import Namespace
from skerry.model.images import Image
from skerry.model.secrets import SecretRef
from skerry.model.workloads import UserNamespaceMode
from skerry.node.containers import device_edits, init_programs, runtimes
from skerry.node.containers.etc_files import EtcFiles, write_files
from skerry.node.containers.mounts import OpenMounts, check_links
from skerry.node.containers.oci_config import command, host_name, make_config
from skerry.node.containers.overlays import OpenRoot
from skerry.node.containers.records import RunRecord
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.runtime_namespace import RuntimeView
from skerry.node.containers.start_slots import StartSlots
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
from skerry.node.secrets.secret_files import FileOwner
from skerry.node.user_namespaces import UserNamespace

log = structlog.get_logger(__name__)

_CONFIG = "config.json"
_FORKED_S = 0.001
_LAYER_LOST = "its writable layer was lost when the machine was restarted"


class _Root(NamedTuple):
    """The mounted root of a container and its files."""

    opened: OpenRoot
    identity: ContainerUser  # by the container's own /etc/passwd
    files: EtcFiles
    is_layer_lost: bool  # the previous content of the writable layer


class ContainerStartup:
    """Starts containers that are not running."""

    def __init__(self, deps: ContainerDeps, teardown: RunTeardown) -> None:
        self._deps = deps
        self._teardown = teardown
        self._slots = StartSlots()
        self.namespace_of: Callable[[str], Namespace | None] = lambda container: None

    async def start(
        self,
        container: ContainerEntry,
        *,
        is_new: bool = False,
        when_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_new`: its cell was allocated just now. `when_begun` is called as soon as the runtime works, for
        work that is done concurrently."""
        check_disk(self._deps, container.record.spec)
        image = self._image(container)
        if not is_new:
            await self._clear(container)
        try:
            state, reason = await self._start(container, image, when_begun)
            run = RunRecord(self._deps.boot, state.started_at, reason=reason)
            self._deps.records.set_run(container.name, run)
            self._deps.failpoint("start.recorded")
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
                f"the image of container {container.name!r} is no longer on this node; remove the container, "
                f"and create it again from {container.record.spec.image!r}"
            ) from None

    async def _clear(self, container: ContainerEntry) -> None:
        """Release what the last run left, and create the cell again if it was lost in a reboot or its groups
        were removed."""
        if container.has_leftovers:
            await self._undo(container)
        if container.has_leftovers:
            raise errors.Unavailable(
                f"resources of the last run of container {container.name!r} cannot be released; "
                "the log says why; start it again later"
            )
        await self._rename_cell(container)
        await self._deps.cells.ensure(container.record.cell)

    async def _rename_cell(self, container: ContainerEntry) -> None:
        """An older version may have chosen another cell name."""
        deps, record = self._deps, container.record
        name = cell_name(deps.cells, record.spec)
        if record.cell.name == name:
            return
        with contextlib.suppress(errors.NotFound):
            if deps.cells.get(record.cell.name).cell == record.cell:
                await deps.cells.free(record.cell.name, grace_s=0, owner=CellOwner.CONTAINER)
        container.record = replace(record, cell=replace(record.cell, name=name, owner=CellOwner.CONTAINER))
        deps.records.replace(container.record)

    async def _start(
        self, container: ContainerEntry, image: Image, when_begun: Callable[[], None]
    ) -> tuple[ExecutableState, str]:
        mounts = OpenMounts(container.record.spec.mounts)
        try:
            return await self._start_with(container, image, mounts, when_begun)
        finally:
            mounts.close()

    async def _start_with(
        self,
        container: ContainerEntry,
        image: Image,
        mounts: OpenMounts,
        when_begun: Callable[[], None],
    ) -> tuple[ExecutableState, str]:
        values = await self._secret_values(container)
        opening = asyncio.create_task(self._open_layer(container))
        mounting = asyncio.create_task(self._open_mounts(container, mounts))
        try:
            attachment = await self._attach(container)
            container.users = await self._enter_users(container, attachment)
        finally:
            # The undo must not run concurrently with this work.
            await asyncio.gather(opening, mounting, return_exceptions=True)
        mounting.result()
        # The runtime of a guest works under the quota of its buyer, and may take long: it has no slot.
        is_guest = container.record.spec.is_isolated
        async with contextlib.nullcontext() if is_guest else self._slots.hold():
            root = await self._lay_out(container, image, attachment, opening.result(), values)
            try:
                await self._remove_last_run(container)
                state = await self._run_and_publish(container, root, attachment, mounts, when_begun)
            finally:
                # In a thread, for which nobody waits.
                asyncio.get_running_loop().run_in_executor(None, root.opened.close)
        return state, _LAYER_LOST if root.is_layer_lost else ""

    async def _run_and_publish(
        self,
        container: ContainerEntry,
        root: _Root,
        attachment: Attachment | None,
        mounts: OpenMounts,
        when_begun: Callable[[], None],
    ) -> ExecutableState:
        is_begun = asyncio.Event()
        publishing = asyncio.create_task(self._publish(container.name, attachment, is_begun, when_begun))
        try:
            try:
                state = await self._run(container, root, attachment, mounts, is_begun)
            except BaseException:
                if not is_begun.is_set():
                    publishing.cancel()
                # The undo must not run concurrently with this work.
                await asyncio.gather(publishing, return_exceptions=True)
                raise
            await publishing
        finally:
            if self._deps.move_lock is not None:
                self._deps.move_lock.end(container.name)
        return state

    async def _secret_values(self, container: ContainerEntry) -> Mapping[SecretRef, bytes]:
        spec, supply = container.record.spec, self._deps.secrets
        if not spec.secrets:
            return {}
        if supply is None:
            raise errors.FailedPrecondition("this node takes no secrets")
        if any(use.variable for use in spec.secrets) and self._deps.runtime.name == "crun":
            # It keeps a copy of the configuration, with the environment, on disk.
            raise errors.FailedPrecondition(
                "secrets in environment variables need runc on the node; use files, or set node.runtime"
            )
        return await supply.of_container(spec)

    def _resolv_conf(self, spec: ContainerSpec, attachment: Attachment | None) -> str:
        if attachment is None:
            return ""
        tenant = self.namespace_of(spec.name) or ""
        return self._deps.networks.resolv_conf(attachment, spec.dns, tenant=tenant)

    async def _attach(self, container: ContainerEntry) -> Attachment | None:
        spec = container.record.spec
        if spec.network is NetworkMode.NONE:
            return None
        attachment = await self._deps.networks.attach(spec, container.record.policy)
        container.address, container.address6 = attachment.address, attachment.address6
        self._deps.failpoint("start.attached")
        return attachment

    async def _enter_users(
        self, container: ContainerEntry, attachment: Attachment | None
    ) -> UserNamespace | None:
        """The user namespace of this run. With a network, the two were created together, ahead of use."""
        spec, makes = container.record.spec, self._deps.users
        if attachment is None and makes is not None and spec.userns is UserNamespaceMode.PRIVATE:
            await asyncio.to_thread(makes.make, container.name)
        users = users_of(self._deps, container, attachment)
        if users is None and spec.is_isolated:
            raise no_guests()
        return users

    async def _open_layer(self, container: ContainerEntry) -> OpenLayer:
        """Concurrently with the network: a layer with a limit is mounted first, which takes some
        milliseconds."""
        deps = self._deps
        arguments = container.paths.layer, container.disk_limit, container.shared_disk
        has_limit = container.disk_limit is not None or container.shared_disk is not None
        opened = (
            await asyncio.to_thread(deps.disks.open, *arguments) if has_limit else deps.disks.open(*arguments)
        )
        container.disk_limit_kind = opened.kind
        deps.failpoint("start.layer_opened")
        return opened

    async def _open_mounts(self, container: ContainerEntry, mounts: OpenMounts) -> None:
        """Concurrently with the network, too."""
        spec = container.record.spec
        if not spec.mounts:
            return
        volumes = self._deps.volumes
        if volumes is not None:
            for mount in spec.mounts:
                if mount.is_volume and mount.volume:
                    await volumes.ready(mount.volume)
        await asyncio.to_thread(mounts.open, volumes)
        self._deps.failpoint("start.mounts_opened")

    async def _lay_out(
        self,
        container: ContainerEntry,
        image: Image,
        attachment: Attachment | None,
        opened: OpenLayer,
        values: Mapping[SecretRef, bytes],
    ) -> _Root:
        deps, paths, record = self._deps, container.paths, container.record
        lowers, users = deps.images.layers(image), container.users
        mounts_privately = self._mounts_privately(container)

        def lay_out() -> _Root:
            if paths.own_bundle is not None:
                paths.own_bundle.mkdir(mode=0o700, exist_ok=True)
            if mounts_privately:
                root = deps.overlays.open(paths.rootfs, lowers, layer=paths.layer, users=users)
            else:
                was_emptied = deps.overlays.mount(paths.rootfs, lowers, layer=paths.layer, users=users)
                root = OpenRoot(paths.rootfs, was_emptied)
            try:
                return prepare(root)
            except BaseException:
                root.close()
                raise

        def prepare(root: OpenRoot) -> _Root:
            check_links(record.spec.mounts, root.path)
            is_layer_lost = root.was_emptied or (opened.is_new and container.run is not None)
            files = write_files(
                paths.bundle,
                host_name=host_name(record.spec),
                address=attachment.address if attachment is not None else "",
                resolv_conf=self._resolv_conf(record.spec, attachment),
                extra_hosts=record.spec.extra_hosts,
            )
            if record.spec.init:
                files = replace(files, init=init_programs.require())
            user = record.spec.user or record.config.user
            identity = resolve_user(user, root.path, container.ids)
            if deps.secrets is not None:
                first_id = 0 if users is None else users.first_id
                owner = FileOwner(identity.uid, identity.gid, first_id)
                files = replace(files, secrets=deps.secrets.write(record.spec, values, owner))
            return _Root(root, identity, files, is_layer_lost)

        # A few short calls, which take less time than handing them to a thread; but discarding the layer of
        # an earlier boot may take long.
        is_old = container.run is not None and container.run.boot != deps.boot
        is_quick = deps.overlays.is_quick and not is_old
        root = lay_out() if is_quick else await asyncio.to_thread(lay_out)
        deps.failpoint("start.mounted")
        return root

    def _mounts_privately(self, container: ContainerEntry) -> bool:
        """Whether the root is mounted for the runtime and the container alone."""
        deps, spec = self._deps, container.record.spec
        # What these use is mounted on the node itself.
        is_plain = not (spec.mounts or spec.secrets or spec.devices)
        return deps.runtime_mounts is not None and is_plain and deps.cells.enters_mounts(container.cell)

    async def _remove_last_run(self, container: ContainerEntry) -> None:
        """Remove the last run; its logs are kept as those of the previous one."""
        try:
            await self._deps.cells.stop(
                container.cell, MAIN, grace_s=0, owner=CellOwner.CONTAINER, keeps_logs=True
            )
        except errors.NotFound:
            return
        self._deps.failpoint("start.forgotten")

    async def _run(
        self,
        container: ContainerEntry,
        root: _Root,
        attachment: Attachment | None,
        mounts: OpenMounts,
        is_begun: asyncio.Event,
    ) -> ExecutableState:
        deps, record, paths, users = self._deps, container.record, container.paths, container.users

        def prepare(cgroups_path: str) -> RuntimeCommand:
            config = make_config(
                record.spec,
                record.config,
                identity=root.identity,
                rootfs=view.rootfs,
                cgroups_path=cgroups_path,
                network_namespace=attachment.namespace if attachment is not None else None,
                files=root.files,
                users=users,
            )
            if record.spec.devices:
                edits = deps.devices.edits(record.spec.devices)
                devices = device_edits.prepare(paths.folder, edits, users)
                config = device_edits.apply(config, devices, ids=container.ids)
            # Last: nothing of ours is created in a volume.
            config["mounts"] = [*config["mounts"], *staged]
            for namespace in config["linux"]["namespaces"]:
                if "path" in namespace:
                    namespace["path"] = view.path_of(namespace["path"])
            _write_config(paths.bundle, config, root.files.secrets.folder)  # read at once, and only then
            deps.failpoint("start.bundled")
            is_begun.set()
            arguments = prepares(
                container.name, bundle=paths.bundle, pid_file=paths.pid_file, log=paths.runtime_log
            )
            return RuntimeCommand(
                arguments,
                str(paths.pid_file),
                owner=users.first_id if users is not None else 0,
                environment=runtimes.ENVIRONMENT,
                mounts=view.mounts,
            )

        async def release() -> None:
            await deps.runtime.start(container.name)

        # Under a small quota the runtime's own work takes seconds. So that is done before the quota is set,
        # and the
        # program starts after; without a quota, one command of the runtime does both.
        has_quota = record.cell.limits.cpu_quota is not None
        prepares = deps.runtime.create_arguments if has_quota else deps.runtime.run_arguments
        paths.pid_file.unlink(missing_ok=True)
        mounts.give_empty_ones_to(root.identity.uid, root.identity.gid)
        executable = Executable(MAIN, container.cell, command_text(command(record.spec, record.config)))
        with (
            self._view(root.opened, paths.rootfs, users) as view,
            mounts.attached(users, paths.folder) as staged,
        ):
            state = await deps.cells.start_container(executable, prepare, release if has_quota else None)
        if (memory := root.files.secrets.folder) is not None:
            (memory / _CONFIG).unlink(missing_ok=True)
        deps.failpoint("start.running")
        return state

    @contextlib.contextmanager
    def _view(self, root: OpenRoot, target: Path, users: UserNamespace | None) -> Iterator[RuntimeView]:
        """How the runtime sees `root`, whose path on the node would be `target`, while it starts."""
        if root.mounted is None:
            with self._deps.overlays.reachable(target, users) as rootfs:
                yield RuntimeView(rootfs)
            return
        assert self._deps.runtime_mounts is not None, "else it is mounted"
        with self._deps.runtime_mounts.view(root.mounted, target, users) as view:
            yield view

    async def _publish(
        self,
        name: str,
        attachment: Attachment | None,
        is_begun: asyncio.Event,
        when_begun: Callable[[], None],
    ) -> None:
        """Concurrently with the runtime's work, which takes longer, and not before that has begun."""
        await is_begun.wait()
        when_begun()
        if self._deps.move_lock is not None:
            # The runtime has been forked by then, into its group, which would wait for the lock too.
            await asyncio.sleep(_FORKED_S)
            await self._deps.move_lock.begin(name)
        if attachment is not None and attachment.ports:
            await self._deps.networks.publish(attachment.owner)
            self._deps.failpoint("start.published")

    async def _undo(self, container: ContainerEntry) -> None:
        """Undo a start that failed."""
        try:
            await self._deps.cells.stop(container.cell, MAIN, grace_s=0, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            pass
        except errors.SkerryError as error:
            log.warning("start.not_undone", container=container.name, error=error.message)
            container.has_leftovers = True  # what is still running uses the root and the address
            return
        container.address, container.address6, container.users = "", "", None
        await self._teardown.tidy(container)


def _write_config(bundle: Path, config: dict[str, Any], memory: Path | None) -> None:
    """Write the configuration for the runtime; one with secrets in its environment to the folder `memory`,
    which is on no disk."""
    path = bundle / _CONFIG
    path.unlink(missing_ok=True)  # it may be a link of an earlier run
    if memory is None:
        path.write_bytes(json_codec.encode(config))
        return
    descriptor = os.open(memory / _CONFIG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(json_codec.encode(config))
    path.symlink_to(memory / _CONFIG)
