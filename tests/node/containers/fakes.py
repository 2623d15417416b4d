"""A machine in memory, on which agents come and go: its cells, images, network, mounts and runtime."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.cells import (
    Cell,
    Executable,
    ExecutableState,
    Exit,
    Runtime,
    Stream,
    Usage,
    is_within,
)
from skerry.model.ids import CellName, Digest, ExecutableName
from skerry.model.images import Image, ImageConfig, ImageId, Platform, PullProgress
from skerry.model.ports import PortMapping
from skerry.node.cells.known import CellView
from skerry.node.containers.disks import LimitKind
from skerry.node.logs.readers import RingReader
from skerry.node.network.network import Attachment

SIGKILL = 9


@dataclass
class Process:
    """What a cell runs. It ends by SIGKILL, and by the signals that it does not ignore."""

    state: ExecutableState
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    signals: list[int] = field(default_factory=list)
    is_stubborn: bool = False
    is_unkillable: bool = False
    arguments: tuple[str, ...] = ()

    def exit(self, code: int | None = None, signal: int | None = None, *, oom: bool = False) -> None:
        if self.state.exit is None:
            how = Exit(at=self.state.started_at + 1, code=code, signal=signal, oom=oom)
            self.state = msgspec.structs.replace(self.state, exit=how)
            self.ended.set()


@dataclass
class Machine:
    """Everything that outlives an agent."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    cells: dict[CellName, Cell] = field(default_factory=dict)
    inits: set[CellName] = field(default_factory=set)  # of cells
    processes: dict[tuple[CellName, ExecutableName], Process] = field(default_factory=dict)
    attached: dict[str, Attachment] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    mounts: set[Path] = field(default_factory=set)
    claims: dict[str, ImageId] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    used: dict[Path, int] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)  # by the name of the call, once each
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))
    stubborn: bool = False  # what starts from now on does not end for being asked

    def __post_init__(self) -> None:
        self.add_image("web:1")

    def add_image(self, name: str, **config: object) -> Image:
        parts: dict[str, object] = {"command": ("serve",)}
        image = Image(
            id=ImageId("sha256:" + f"{len(self.images) + 1:x}" * 64),
            names=(name,),
            platform=Platform(),
            config=ImageConfig(**(parts | config)),  # type: ignore[arg-type]
            layers=(Digest("sha256:" + "a" * 64),),
            bytes=1000,
            pulled_at=1.0,
        )
        self.images[name] = image
        return image

    @property
    def runtime_folder(self) -> Path:
        return self.folder / "runtime"

    def main(self, name: str) -> Process:
        return self.processes[CellName(name), ExecutableName("main")]

    def maybe_fail(self, call: str) -> None:
        if (error := self.failing.pop(call, None)) is not None:
            raise error

    def held(self) -> list[str]:
        """What of any container is not on disk."""
        return [
            *(f"cell {name}" for name in self.cells),
            *(f"process {key}" for key in self.processes),
            *(f"address of {name}" for name in self.attached),
            *(f"ports of {name}" for name in self.published),
            *(f"mount {path}" for path in self.mounts),
            *(f"claim of {name}" for name in self.claims),
        ]


class FakeCells:
    """`skerry.node.cells.cells.Cells`, as far as containers use it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def _cell(self, name: CellName) -> Cell:
        try:
            return self._machine.cells[name]
        except KeyError:
            raise errors.NotFound(f"there is no cell {name!r}") from None

    def _process(self, cell: CellName, name: ExecutableName) -> Process:
        self._cell(cell)
        try:
            return self._machine.processes[cell, name]
        except KeyError:
            raise errors.NotFound(f"cell {cell!r} has no executable {name!r}") from None

    def _view(self, cell: Cell) -> CellView:
        inside = tuple(each.state for key, each in self._machine.processes.items() if key[0] == cell.name)
        return CellView(cell, 61184, 1.0, False, inside)

    def list(self) -> list[CellView]:
        return [self._view(cell) for cell in self._machine.cells.values()]

    def get(self, name: CellName) -> CellView:
        return self._view(self._cell(name))

    async def allocate(self, cell: Cell) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("allocate")
        if cell.name in self._machine.cells:
            raise errors.AlreadyExists(f"cell {cell.name!r} exists already")
        self._machine.cells[cell.name] = cell

    async def free(self, name: CellName, *, grace_s: float | None = None) -> None:
        self._cell(name)
        await asyncio.sleep(0)
        self._machine.maybe_fail("free")
        for key in [key for key in self._machine.processes if is_within(key[0], name)]:
            self._machine.processes.pop(key).exit(signal=SIGKILL)
        for cell in [cell for cell in self._machine.cells if is_within(cell, name)]:
            del self._machine.cells[cell]
            self._machine.inits.discard(cell)

    def is_idle(self, cell: Cell) -> bool:
        is_busy = any(
            key[0] == cell.name and not each.ended.is_set() for key, each in self._machine.processes.items()
        )
        return self._machine.cells.get(cell.name) == cell and cell.name in self._machine.inits and not is_busy

    async def rest(self, name: CellName) -> None:
        self._cell(name)
        await asyncio.sleep(0)
        self._machine.maybe_fail("rest")
        self._machine.inits.remove(name)

    def _begin(self, executable: Executable, arguments: tuple[str, ...]) -> ExecutableState:
        key = (executable.cell, executable.name)
        if key in self._machine.processes:
            raise errors.AlreadyExists("it runs already")
        self._machine.clock.advance(1)
        self._machine.inits.add(executable.cell)
        state = ExecutableState(
            name=executable.name,
            cell=executable.cell,
            command=executable.command,
            description="",
            pid=next(self._machine.pids),
            started_at=self._machine.clock.now(),
        )
        process = Process(state, is_stubborn=self._machine.stubborn, arguments=arguments)
        self._machine.processes[key] = process
        return state

    async def start_container(
        self, executable: Executable, runtime: Callable[[str], Runtime]
    ) -> ExecutableState:
        self._cell(executable.cell)
        await asyncio.sleep(0)
        command = runtime(f"/groups/{executable.cell}")
        container = executable.cell.rpartition("/")[2]  # it may be in a cell of others
        (self._machine.runtime_folder / container).mkdir(parents=True)
        self._machine.maybe_fail("start")
        return self._begin(executable, command.arguments)

    async def start_trusted(
        self, executable: Executable, arguments: tuple[str, ...], streams: tuple[int, int, int]
    ) -> ExecutableState:
        self._cell(executable.cell)
        await asyncio.sleep(0)
        self._machine.maybe_fail("start_trusted")
        return self._begin(executable, arguments)

    def signal(self, cell: CellName, name: ExecutableName, number: int) -> None:
        process = self._process(cell, name)
        if process.state.exit is not None:
            raise errors.NotFound("it has ended")
        process.signals.append(number)
        if not process.is_stubborn:
            process.exit(signal=number)

    async def kill(self, cell: CellName, name: ExecutableName) -> Exit:
        process = self._process(cell, name)
        await asyncio.sleep(0)
        if process.is_unkillable:
            raise errors.Unavailable("processes were killed and do not die: 7; stop it again later")
        process.exit(signal=SIGKILL)
        assert process.state.exit is not None
        return process.state.exit

    async def stop(self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None) -> Exit:
        how = await self.kill(cell, name)
        self._machine.processes.pop((cell, name), None)
        return how

    async def wait(self, cell: CellName, name: ExecutableName) -> Exit:
        process = self._process(cell, name)
        await process.ended.wait()
        assert process.state.exit is not None
        return process.state.exit

    def logs(self, cell: CellName, name: ExecutableName, stream: Stream) -> RingReader:
        self._process(cell, name)
        return RingReader(self._machine.folder / "logs", stream.value)

    def usage(self, name: CellName) -> Usage:
        self._cell(name)
        return Usage(cpu_ns=7, pids=2)


class FakeImages:
    """`skerry.node.images.images.Images`. A pull that `gate` holds back can be cancelled."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.gate: asyncio.Event | None = None
        self.guests = FakeGuestImages(self)

    async def ensure(
        self, reference: str, *, owner: str = "", on_progress: Callable[[PullProgress], None]
    ) -> Image:
        on_progress(PullProgress(reference, "pulling"))
        if self.gate is not None:
            await self.gate.wait()
        image = self.find(reference)
        self.claim(owner, image.id)
        return image

    def for_guests(self) -> FakeGuestImages:
        return self.guests

    def find(self, reference_or_id: str) -> Image:
        for image in self._machine.images.values():
            if reference_or_id in (*image.names, image.id):
                return image
        raise errors.NotFound(f"there is no image {reference_or_id!r}; pull it")

    def claim(self, owner: str, image: ImageId) -> None:
        self.find(image)
        self._machine.claims[owner] = image

    def release(self, owner: str) -> None:
        self._machine.claims.pop(owner, None)

    def layers(self, image: Image) -> tuple[Path, ...]:
        return tuple(Path("/layers") / layer for layer in image.layers)


class FakeGuestImages:
    """`skerry.node.images.guests.GuestImages`: remembers what it was asked for."""

    def __init__(self, images: FakeImages) -> None:
        self._images = images
        self.asked: list[str] = []
        self.tidied: list[ImageId] = []

    async def ensure(
        self, reference: str, *, owner: str = "", on_progress: Callable[[PullProgress], None]
    ) -> Image:
        self.asked.append(reference)
        return await self._images.ensure(reference, owner=owner, on_progress=on_progress)

    def tidy(self, image: ImageId) -> None:
        self.tidied.append(image)


class FakeNetwork:
    """`skerry.node.network.network.Network`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def attach(
        self, owner: str, ports: Sequence[PortMapping] = (), *, is_apart: bool = False
    ) -> Attachment:
        await asyncio.sleep(0)
        self._machine.maybe_fail("attach")
        if owner in self._machine.attached:
            raise errors.AlreadyExists(f"{owner!r} is attached already")
        taken = {port.source: each.owner for each in self._machine.attached.values() for port in each.ports}
        for port in ports:
            if port.source in taken:
                raise errors.Refused(f"port {port.source} is taken by {taken[port.source]!r}")
        number = next(n for n in range(2, 250) if f"10.0.0.{n}" not in self._addresses())
        attachment = Attachment(
            owner, f"/ns/{number}", f"10.0.0.{number}", 24, "10.0.0.1", tuple(ports), is_apart
        )
        self._machine.attached[owner] = attachment
        return attachment

    def _addresses(self) -> set[str]:
        return {each.address for each in self._machine.attached.values()}

    async def publish(self, owner: str) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("publish")
        assert owner in self._machine.attached
        self._machine.published.add(owner)

    async def detach(self, owner: str) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("detach")
        self._machine.attached.pop(owner, None)
        self._machine.published.discard(owner)

    def attachments(self) -> dict[str, Attachment]:
        return dict(self._machine.attached)

    async def keep_only(self, owners: set[str]) -> None:
        for owner in self._machine.attached.keys() - owners:
            await self.detach(owner)

    def resolv_conf(self) -> str:
        return "nameserver 10.0.0.1\n"


class FakeOverlays:
    """`skerry.node.containers.overlays.Overlays`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.loses = False  # a layer was lost when the machine went down

    def mount(self, target: Path, lowers: Sequence[Path], *, layer: Path | None) -> bool:
        self._machine.maybe_fail("mount")
        target.mkdir(exist_ok=True)
        assert layer is not None
        assert layer.is_dir()
        self._machine.mounts.add(target)
        return self.loses

    def unmount(self, target: Path) -> None:
        self._machine.maybe_fail("unmount")
        self._machine.mounts.discard(target)

    def mounted(self) -> list[Path]:
        return sorted(self._machine.mounts)


class FakeDisks:
    """`skerry.node.containers.disks.Disks`, of a kind that is told."""

    def __init__(self, machine: Machine, kind: LimitKind = LimitKind.MEASURED) -> None:
        self._machine = machine
        self.kind = kind

    def make(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        layer.mkdir(exist_ok=True)
        return self.limit(layer, limit_bytes)

    def limit(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        return LimitKind.NONE if limit_bytes is None else self.kind

    def used(self, layer: Path) -> int:
        return self._machine.used.get(layer, 0)

    def remove(self, layer: Path) -> None:
        self._machine.maybe_fail("remove layer")
        shutil.rmtree(layer, ignore_errors=True)


class FakeRuntime:
    """`skerry.node.containers.runtimes.OciRuntime`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.folder = str(machine.runtime_folder)

    def run_arguments(self, container: str, **paths: Path) -> tuple[str, ...]:
        return ("run", container)

    def exec_arguments(self, container: str, **paths: Path) -> tuple[str, ...]:
        return ("exec", container)

    async def delete(self, container: str) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("delete")
        shutil.rmtree(self._machine.runtime_folder / container, ignore_errors=True)
