"""Containers with real cells, mounts, addresses and a real runtime, on a machine of their own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from skerry.kit.clock import SystemClock
from skerry.kit.tasks import TaskSupervisor
from skerry.model.cells import OutputChannel
from skerry.model.containers import ContainerSpec
from skerry.model.image_settings import ImageSettings
from skerry.model.images import ImageAccess, Platform
from skerry.model.settings import NetworkSettings, NodeSettings
from skerry.node import host, user_namespaces
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.containers import overlays
from skerry.node.containers.boot_folder import BootFolder
from skerry.node.containers.containers import Containers
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerRecords
from skerry.node.containers.runtime_namespace import RuntimeNamespace
from skerry.node.containers.runtimes import find_runtime
from skerry.node.containers.state import ContainerDeps
from skerry.node.containers.writable_layers import WritableLayers
from skerry.node.devices.device_catalog import DeviceCatalog
from skerry.node.images.image_catalog import NameRecord
from skerry.node.images.images import Images
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.layers.unpacker_client import LayerUnpacker
from skerry.node.network.network import Network
from skerry.node.network.network_host import NetworkHost
from skerry.node.user_namespaces import UserNamespaces
from skerry.node.volumes.store import VolumeStore
from skerry.node.volumes.volumes import NodeVolumes
from tests.node.cells import real as cells_real
from tests.node.network import machines

_numbers = itertools.count()
KEY = "c0de0001"
SUBNET = "10.98.0.0/24"

needs_root = pytest.mark.root(tries=1)
needs_runc = pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed")


@dataclass
class Agent:
    """An agent that is up."""

    cells: Cells
    images: Images
    network: Network
    containers: Containers
    launcher: int
    volumes: NodeVolumes


def make_image(folder: Path) -> Path:
    """A root with busybox, under the names of what is used."""
    (folder / "bin").mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "tmp").mkdir(mode=0o1777)
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nguest:x:1000:1000::/home:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\nguest:x:1000:\n")
    shutil.copy("/bin/busybox", folder / "bin/busybox")
    for name in (
        "sh",
        "sleep",
        "cat",
        "echo",
        "true",
        "nc",
        "httpd",
        "id",
        "dd",
        "stty",
        "tty",
        "ls",
        "wget",
        "rm",
        "sync",
        "fallocate",
        "md5sum",
    ):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "unrunnable").write_text("no program")
    return folder


async def have_image(images: Images, folder: Path) -> None:
    """The root file system `folder`, as if it had come from a registry: so it is everybody's."""
    image = await images.ensure(f"rootfs:{folder}", access=ImageAccess.ALL)
    await images._catalogue.name(NameRecord(Ground.reference, image.id, ""))


VOLUME_GB = 32 * 1024**2  # bytes in a gigabyte of a volume, here


class Ground:
    """A machine and the data folder of its agent, which may be opened again and again."""

    reference: ClassVar[str] = ""

    def __init__(self, folder: Path, image: Path, root: str = "") -> None:
        self.root = root or f"skt-ctrs-{os.getpid()}-{next(_numbers)}"
        self.folder = folder
        self.image = image
        Ground.reference = "localhost/busybox:latest"
        self.groups = detect(self.root)
        self.boot = host.boot_id()
        self.settings = NodeSettings(stop_grace_s=5.0, free_timeout_s=30.0, disk_check_s=0.2)
        self.network = NetworkSettings(subnet=SUBNET, pool=2, dns=("10.98.0.1",))

    @contextlib.asynccontextmanager
    async def agent(
        self,
        failpoint: Callable[[str], None] = lambda step: None,
        *,
        has_userns: bool = True,
        has_runtime_mounts: bool = True,
    ) -> AsyncIterator[Agent]:
        clock = SystemClock()
        top = self.folder / "containers"
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as undo:
            boot_folder = BootFolder.open(top / "boot")
            assert boot_folder is not None
            undo.callback(boot_folder.close)
            launcher = await LauncherClient.start(view=HostView(hidden=(str(self.folder),)))
            undo.push_async_callback(launcher.stop)
            cells = await Cells.open(
                self.folder / "cells",
                self.groups,
                launcher,
                self.settings,
                clock,
                boot=self.boot,
                failpoint=lambda step: failpoint(f"cells.{step}"),
            )
            undo.push_async_callback(cells.close)
            network = await Network(
                boot_folder.folder_of_network(self.folder / "network"),
                self.network,
                clock,
                key=KEY,
                boot=self.boot,
                host=NetworkHost(self._users("network", failpoint) if has_userns else None),
                failpoint=lambda step: failpoint(f"network.{step}"),
            ).open()
            undo.push_async_callback(network.close)
            runtime = await find_runtime("", top, cgroup_root=self.root, boot_id=self.boot)
            state = boot_folder.state_of_runtime(Path(runtime.folder))
            images = await Images.open(
                self.folder / "images",
                ImageSettings(),
                clock,
                platform=Platform(host.system(), host.architecture()),
                unpacker=LayerUnpacker(),
            )
            undo.push_async_callback(images.close)
            await have_image(images, self.image)
            store = VolumeStore(self.folder / "volumes", now=clock.now, bytes_per_gb=VOLUME_GB)
            store.open()
            volumes = NodeVolumes(store)
            undo.push_async_callback(volumes.close)
            runtime_mounts = None
            if has_runtime_mounts:
                folders = top / "boot", user_namespaces.FOLDER, Path(runtime.path)
                runtime_mounts = await asyncio.to_thread(RuntimeNamespace.open, folders)
                assert runtime_mounts is not None
                undo.callback(runtime_mounts.close)
            parts = ContainerDeps(
                ContainerRecords(top, boot_folder.bundles),
                cells,
                images,
                network,
                msgspec.structs.replace(runtime, folder=str(state)),
                Overlays(top, self.boot),
                await asyncio.to_thread(WritableLayers.on, top, self.boot, has_userns=has_userns),
                self.settings,
                clock,
                boot=self.boot,
                devices=DeviceCatalog([self.folder / "cdi"]).open(),
                users=self._users("containers", failpoint) if has_userns else None,
                volumes=volumes,
                failpoint=failpoint,
                runtime_mounts=runtime_mounts,
            )
            containers = await Containers(parts).open()
            undo.push_async_callback(containers.close)
            loops = await undo.enter_async_context(TaskSupervisor("test", clock=clock))
            loops.forever("cells", cells.run)
            loops.forever("network", network.run)
            loops.forever("containers", containers.run)
            yield Agent(cells, images, network, containers, launcher.pid, volumes)

    def _users(self, part: str, failpoint: Callable[[str], None]) -> UserNamespaces:
        return UserNamespaces(f"{self.root}-{part}", failpoint=lambda step: failpoint(f"{part}.{step}"))

    def ranges(self) -> list[Path]:
        """Folders of ranges of ids that somebody here has claimed."""
        return user_namespaces.claimed_by(f"{self.root}-")

    def mounts(self) -> list[Path]:
        points = overlays.mount_points(Path("/proc/self/mountinfo").read_bytes())
        ours = (self.folder, *self.ranges())
        return [point for point in reversed(points) if any(point.is_relative_to(place) for place in ours)]

    def leftovers(self) -> list[str]:
        """Everything there is of any container: processes, groups, mounts, links, rules and files."""
        cells = cells_real.Ground.__new__(cells_real.Ground)
        cells.root, cells.folder = self.root, self.folder / "cells"
        files = [
            *(self.folder / "containers" / "all").glob("*"),
            *self.folder.glob("containers/boot/bundles/*"),
            *self.folder.glob("containers/boot/runtime/*"),
            *(self.folder / "containers" / "filesystems").glob("*"),
            *self.folder.glob("containers/boot/network/*/*"),
            *self.ranges(),
        ]
        return [
            *cells.leftovers(),
            *(f"mount {path}" for path in self.mounts()),
            *(f"loop device of {path}" for path in stuck_loops(self.folder)),
            *(f"link {name}" for name in links()),
            *machines.run("nft", "list", "tables").splitlines(),
            *map(str, files),
        ]

    async def reboot(self) -> None:
        """The machine goes down, and comes up under another name of its boot."""
        await self.clear()
        self.groups = detect(self.root)
        self.boot += "'"

    async def clear(self) -> None:
        """Whatever a failed test left goes; the machine takes links and rules with it."""
        for name in reversed(self.groups.cells()):
            self.groups.kill(name)
            await self.groups.emptied(name, within_s=10)
            self.groups.remove(name)
        self.groups.dispose()
        for path in self.mounts():
            machines.run("umount", "-l", str(path))
        for folder in self.ranges():
            shutil.rmtree(folder)


def stuck_loops(folder: Path) -> list[Path]:
    """Files below `folder` that are loop devices and would be for ever. Others go with their last mount, of
    which namespaces that have nothing to do with us may hold copies for as long as they like."""
    found = []
    for device in Path("/sys/block").glob("loop*/loop"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            path = Path((device / "backing_file").read_text().strip().removesuffix(" (deleted)"))
            if path.is_relative_to(folder) and (device / "autoclear").read_text().strip() != "1":
                found.append(path)
    return found


def links() -> list[str]:
    return [
        line.split(":")[1].strip()
        for line in machines.run("ip", "-o", "link").splitlines()
        if " lo:" not in line
    ]


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[machines.Machine]:
    """Be on a machine of our own: its ports, links and rules are nobody else's."""
    with machines.machine(folder) as here:
        yield here


def spec(name: str = "web", *arguments: str, **more: Any) -> ContainerSpec:
    """Of the image that the last ground was made for."""
    parts: dict[str, Any] = {"image": Ground.reference, "arguments": arguments or ("sleep", "1000")}
    return ContainerSpec(name, **(parts | more))


def printed(containers: Containers, name: str, stream: OutputChannel = OutputChannel.STDOUT) -> bytes:
    """What a container has written so far."""
    return b"".join(getattr(item, "data", b"<gap>") for item in containers.logs(name, stream).read())
