"""Starting a container: its root, its address and its process, as much as possible side by side.

`Containers` holds the lock of the container. A start is acknowledged by the cell's record of the process:
until then everything it did is undone if it fails, or by the next agent if this one dies.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from skerry.kit import jsonio
from skerry.model import errors
from skerry.model.cells import Executable, ExecutableState, Runtime
from skerry.model.containers import NetworkMode
from skerry.model.images import Image
from skerry.node.containers.bundle import command, host_name, make_config
from skerry.node.containers.ending import Ending
from skerry.node.containers.files import Files, write_files
from skerry.node.containers.known import MAIN, Container, Means, in_words
from skerry.node.containers.records import RunRecord
from skerry.node.containers.users import Identity, resolve_user
from skerry.node.network.network import Attachment

log = structlog.get_logger(__name__)

_LOST = "what it had written before was lost when the machine went down"


class _Root(NamedTuple):
    """The files of a container, laid out for a start."""

    identity: Identity  # as its own files know the user
    files: Files
    was_lost: bool  # what it had written before


class Starting:
    """Starts containers that do not run."""

    def __init__(self, means: Means, ending: Ending) -> None:
        self._means = means
        self._ending = ending

    async def start(self, container: Container) -> None:
        image = self._image(container)
        await self._clear(container)
        try:
            state, reason = await self._start(container, image)
            run = RunRecord(self._means.boot, state.started_at, reason=reason)
            self._means.records.set_run(container.name, run)
            self._means.reached("start.recorded")
        except BaseException:
            await self._undo(container)
            raise
        container.run = run
        container.pid = state.pid
        container.ended = asyncio.get_running_loop().create_future()

    def _image(self, container: Container) -> Image:
        try:
            return self._means.images.find(container.record.image)
        except errors.NotFound:
            raise errors.Refused(
                f"the image of container {container.name!r} is gone from this node; remove the container, "
                f"and create it again from {container.record.spec.image!r}"
            ) from None

    async def _clear(self, container: Container) -> None:
        """What the last run left must be gone; and there must be a cell, which the last boot's is not."""
        if container.has_leftovers:
            await self._undo(container)
        if container.has_leftovers:
            raise errors.Unavailable(
                f"what the last run of container {container.name!r} held cannot be given back; "
                "the log says why; start it again later"
            )
        try:
            cell = self._means.cells.get(container.cell)
        except errors.NotFound:
            await self._means.cells.allocate(container.record.cell)
            return
        if cell.cell != container.record.cell:
            raise errors.AlreadyExists(
                f"the cell {container.cell!r} is not the one of the container of that name; free it first"
            )

    async def _start(self, container: Container, image: Image) -> tuple[ExecutableState, str]:
        # First, since here a port that another has is found out before anything is made.
        attachment = await self._attach(container)
        root = await self._lay_out(container, image, attachment)
        await self._forget_last(container)
        is_begun = asyncio.Event()
        publishing = asyncio.create_task(self._publish(attachment, is_begun))
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

    async def _attach(self, container: Container) -> Attachment | None:
        spec = container.record.spec
        if spec.network is NetworkMode.NONE:
            return None
        attachment = await self._means.network.attach(spec.name, spec.ports, is_apart=spec.is_apart)
        container.address = attachment.address
        self._means.reached("start.attached")
        return attachment

    async def _lay_out(self, container: Container, image: Image, attachment: Attachment | None) -> _Root:
        means, place, record = self._means, container.place, container.record
        lowers = means.images.layers(image)

        def lay_out() -> _Root:
            container.disk_limit_kind = means.disks.make(place.layer, container.disk_limit)
            was_lost = means.overlays.mount(place.rootfs, lowers, layer=place.layer)
            files = write_files(
                place.folder,
                host_name=host_name(record.spec),
                address=attachment.address if attachment is not None else "",
                resolv_conf=means.network.resolv_conf() if attachment is not None else "",
            )
            return _Root(resolve_user(record.spec.user or record.config.user, place.rootfs), files, was_lost)

        # It is a few short calls, which a thread would take longer to be told of than to make; but what an
        # earlier boot left in the layer goes first, and that may be much.
        is_quick = container.run is None or container.run.boot == means.boot
        root = lay_out() if is_quick else await asyncio.to_thread(lay_out)
        means.reached("start.mounted")
        return root

    async def _forget_last(self, container: Container) -> None:
        """The last run, with its output, makes room for the next."""
        try:
            await self._means.cells.stop(container.cell, MAIN, grace_s=0)
        except errors.NotFound:
            return
        self._means.reached("start.forgotten")

    async def _run(
        self, container: Container, root: _Root, attachment: Attachment | None, is_begun: asyncio.Event
    ) -> ExecutableState:
        means, record, place = self._means, container.record, container.place

        def prepare(cgroups_path: str) -> Runtime:
            config = make_config(
                record.spec,
                record.config,
                identity=root.identity,
                rootfs=place.rootfs,
                cgroups_path=cgroups_path,
                network_namespace=attachment.namespace if attachment is not None else None,
                files=root.files,
            )
            (place.folder / "config.json").write_bytes(jsonio.encode(config))  # read at once, and never again
            means.reached("start.bundled")
            is_begun.set()
            arguments = means.runtime.run_arguments(
                container.name, bundle=place.folder, pid_file=place.pid_file, log=place.runtime_log
            )
            return Runtime(arguments, str(place.pid_file))

        place.pid_file.unlink(missing_ok=True)
        executable = Executable(MAIN, container.cell, in_words(command(record.spec, record.config)))
        state = await means.cells.start_container(executable, prepare)
        means.reached("start.running")
        return state

    async def _publish(self, attachment: Attachment | None, is_begun: asyncio.Event) -> None:
        """Beside the runtime's work, which takes longer, and not before that has begun."""
        await is_begun.wait()
        if attachment is not None and attachment.ports:
            await self._means.network.publish(attachment.owner)
            self._means.reached("start.published")

    async def _undo(self, container: Container) -> None:
        """Leave nothing of a start that failed."""
        try:
            await self._means.cells.stop(container.cell, MAIN, grace_s=0)
        except errors.NotFound:
            pass
        except errors.SkerryError as error:
            log.warning("start.not_undone", container=container.name, error=error.message)
            container.has_leftovers = True  # what still runs has the root and the address
            return
        container.address = ""
        await self._ending.tidy(container)
