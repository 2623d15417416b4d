"""A machine in memory, on which agents come and go: its cells, images, network, mounts and runtime."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.cells import (
    OWN_MARK,
    Cell,
    CellOwner,
    CellUsage,
    Executable,
    ExecutableState,
    ExitStatus,
    OutputChannel,
    RuntimeCommand,
    is_within,
    own_name,
)
from skerry.model.ids import CellName, Digest, ExecutableName
from skerry.model.images import Image, ImageAccess, ImageConfig, ImageId, Platform, PullProgress
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping
from skerry.node.cells.state import CellView
from skerry.node.containers.writable_layers import DiskLimitKind, OpenLayer, SharedDisk
from skerry.node.logs.readers import RingReader
from skerry.node.network.network import Attachment
from skerry.node.user_namespaces import UserNamespace

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
            how = ExitStatus(at=self.state.started_at + 1, code=code, signal=signal, oom=oom)
            self.state = msgspec.structs.replace(self.state, exit=how)
            self.ended.set()


@dataclass
class Machine:
    """Everything that outlives an agent."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    cells: dict[CellName, Cell] = field(default_factory=dict)
    ungrouped: set[CellName] = field(default_factory=set)  # cells whose groups somebody removed
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
    released: list[str] = field(default_factory=list)  # containers whose programs were begun by themselves
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
        return self.processes[own_name(name), ExecutableName("main")]

    def unmark(self, *, has_owners: bool) -> None:
        """Have cells as a version made them that did not mark the names of its own, nor perhaps say whose
        they are."""

        def old(name: CellName) -> CellName:
            return CellName(name.removeprefix(OWN_MARK))

        changes: dict[str, object] = {} if has_owners else {"owner": None}
        cells = [
            msgspec.structs.replace(cell, name=old(cell.name), **changes) for cell in self.cells.values()
        ]
        self.cells = {cell.name: cell for cell in cells}
        self.inits = {old(name) for name in self.inits}
        self.processes = {(old(cell), name): each for (cell, name), each in self.processes.items()}

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

    async def ensure(self, cell: Cell) -> bool:
        if (there := self._machine.cells.get(cell.name)) not in (None, cell):
            raise errors.AlreadyExists(f"another cell is called {cell.name!r}")
        if there is not None and self.is_whole(cell.name):
            return False
        if there is not None:
            await self.free(cell.name)
        await self.allocate(cell)
        return True

    def is_whole(self, name: CellName) -> bool:
        return name in self._machine.cells and name not in self._machine.ungrouped

    def own_cell_name(self, path: str) -> CellName:
        unmarked = self._machine.cells.get(CellName(path))
        is_ours = unmarked is not None and unmarked.owner is not None
        return CellName(path) if is_ours else own_name(path)

    def claim(self, cell: Cell, owner: CellOwner) -> None:
        if self._machine.cells.get(cell.name) == cell and cell.owner is None:
            self._machine.cells[cell.name] = msgspec.structs.replace(cell, owner=owner)

    async def free(
        self, name: CellName, *, grace_s: float | None = None, owner: CellOwner | None = None
    ) -> None:
        self._cell(name)
        await asyncio.sleep(0)
        self._machine.maybe_fail("free")
        for key in [key for key in self._machine.processes if is_within(key[0], name)]:
            self._machine.processes.pop(key).exit(signal=SIGKILL)
        for cell in [cell for cell in self._machine.cells if is_within(cell, name)]:
            del self._machine.cells[cell]
            self._machine.ungrouped.discard(cell)
            self._machine.inits.discard(cell)

    def is_idle(self, cell: Cell) -> bool:
        is_busy = any(
            key[0] == cell.name and not each.ended.is_set() for key, each in self._machine.processes.items()
        )
        return self._machine.cells.get(cell.name) == cell and cell.name in self._machine.inits and not is_busy

    async def end_idle_init(self, name: CellName) -> None:
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
        self,
        executable: Executable,
        runtime: Callable[[str], RuntimeCommand],
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> ExecutableState:
        self._cell(executable.cell)
        await asyncio.sleep(0)
        command = runtime(f"/groups/{executable.cell}")
        # It may be in a cell of others.
        container = executable.cell.rpartition("/")[2].removeprefix(OWN_MARK)
        (self._machine.runtime_folder / container).mkdir(parents=True)
        self._machine.maybe_fail("start")
        if release is not None:
            await release()
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

    def executable(self, cell: CellName, name: ExecutableName) -> ExecutableState:
        return self._process(cell, name).state

    async def kill(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        process = self._process(cell, name)
        await asyncio.sleep(0)
        if process.is_unkillable:
            raise errors.Unavailable("processes were killed and do not exit: 7; stop it again later")
        process.exit(signal=SIGKILL)
        assert process.state.exit is not None
        return process.state.exit

    async def stop(
        self,
        cell: CellName,
        name: ExecutableName,
        *,
        grace_s: float | None = None,
        owner: CellOwner | None = None,
        keeps_logs: bool = False,
    ) -> ExitStatus:
        how = await self.kill(cell, name)
        self._machine.processes.pop((cell, name), None)
        return how

    async def wait(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        process = self._process(cell, name)
        await process.ended.wait()
        assert process.state.exit is not None
        return process.state.exit

    def logs(
        self, cell: CellName, name: ExecutableName, stream: OutputChannel, *, owner: CellOwner | None = None
    ) -> RingReader:
        self._process(cell, name)
        return RingReader(self._machine.folder / "logs", stream.value)

    def usage(self, name: CellName) -> CellUsage:
        self._cell(name)
        return CellUsage(cpu_ns=7, pids=2)


class FakeImages:
    """`skerry.node.images.images.Images`. A pull that `gate` holds back can be cancelled."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.gate: asyncio.Event | None = None
        self.guests = FakeGuestImages(self)

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess,
        owner: str = "",
        on_progress: Callable[[PullProgress], None],
    ) -> Image:
        on_progress(PullProgress(reference, "pulling"))
        if self.gate is not None:
            await self.gate.wait()
        image = self.find(reference)
        self.claim(owner, image.id)
        return image

    def for_guests(self) -> FakeGuestImages:
        return self.guests

    def get(self, image: ImageId) -> Image:
        return self.find(image)

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
    """`skerry.node.images.images.GuestImages`: remembers what it was asked for."""

    def __init__(self, images: FakeImages) -> None:
        self._images = images
        self.requested: list[str] = []
        self.tidied: list[ImageId] = []

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess,
        owner: str = "",
        on_progress: Callable[[PullProgress], None],
    ) -> Image:
        self.requested.append(reference)
        return await self._images.ensure(reference, access=access, owner=owner, on_progress=on_progress)

    def tidy(self, image: ImageId) -> None:
        self.tidied.append(image)


class FakeNetwork:
    """`skerry.node.network.network.Network`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def attach(
        self,
        owner: str,
        ports: Sequence[PortMapping] = (),
        *,
        is_isolated: bool = False,
        policy: NetworkPolicy = OPEN_POLICY,
    ) -> Attachment:
        await asyncio.sleep(0)
        self._machine.maybe_fail("attach")
        if owner in self._machine.attached:
            raise errors.AlreadyExists(f"{owner!r} is attached already")
        taken = {port.source: each.owner for each in self._machine.attached.values() for port in each.ports}
        for port in ports:
            if port.source in taken:
                raise errors.FailedPrecondition(f"port {port.source} is taken by {taken[port.source]!r}")
        number = next(n for n in range(2, 250) if f"10.0.0.{n}" not in self._addresses())
        attachment = Attachment(
            owner,
            f"/ns/{number}",
            f"10.0.0.{number}",
            24,
            "10.0.0.1",
            tuple(ports),
            is_isolated,
            users=UserNamespace(f"/users/{number}", number * 65_536) if is_isolated else None,
            policy=policy,
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

    async def restrict(self, owner: str, policy: NetworkPolicy) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("restrict")
        if (attachment := self._machine.attached.get(owner)) is not None:
            self._machine.attached[owner] = msgspec.structs.replace(attachment, policy=policy)

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

    def resolv_conf(self, attachment: Attachment, servers: Sequence[str] = (), *, tenant: str = "") -> str:
        return "nameserver 10.0.0.1\n"


class FakeUserNamespaces:
    """`skerry.node.user_namespaces.UserNamespaces`."""

    def make(self, owner: str) -> None:
        """What is without a network here stays without a namespace."""

    def get(self, owner: str) -> None:
        return None

    def remove(self, owner: str) -> None:
        pass

    def keep_only(self, owners: Iterable[str]) -> None:
        pass


class FakeOverlays:
    """`skerry.node.containers.overlays.Overlays`."""

    is_quick = True

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.loses = False  # a layer was lost when the machine went down

    def mount(
        self,
        target: Path,
        lowers: Sequence[Path],
        *,
        layer: Path | None,
        users: UserNamespace | None = None,
    ) -> bool:
        self._machine.maybe_fail("mount")
        target.mkdir(exist_ok=True)
        assert layer is not None
        assert layer.is_dir()
        self._machine.mounts.add(target)
        return self.loses

    @contextlib.contextmanager
    def reachable(self, target: Path, users: UserNamespace | None) -> Iterator[Path]:
        yield target

    def unmount(self, target: Path) -> None:
        self._machine.maybe_fail("unmount")
        self._machine.mounts.discard(target)

    def has_mounts(self, *folders: Path) -> bool:
        return any(mount.is_relative_to(folder) for mount in self.mounted() for folder in folders)

    def mounted(self) -> list[Path]:
        return sorted(self._machine.mounts)


class FakeDisks:
    """`skerry.node.containers.writable_layers.WritableLayers`, of a kind that is told."""

    def __init__(self, machine: Machine, kind: DiskLimitKind = DiskLimitKind.FILE_SYSTEM) -> None:
        self._machine = machine
        self.kind = kind
        self.no_images_reason = "there are no loop devices"
        self.given_back: list[Path] = []
        self.opened_in: set[str] = set()  # names of threads
        self.shared: dict[SharedDisk, set[str]] = {}

    @property
    def can_share(self) -> bool:
        return self.kind is not DiskLimitKind.MEASURED

    def make(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        layer.mkdir(exist_ok=True)
        if shared is not None:
            self.shared.setdefault(shared, set())

    def open(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> OpenLayer:
        self.opened_in.add(threading.current_thread().name)
        self.make(layer, limit_bytes, shared)
        if shared is not None:
            self.shared[shared].add(layer.parent.name)
        return OpenLayer(self.limit(layer, limit_bytes))

    def limit(self, layer: Path, limit_bytes: int | None) -> DiskLimitKind:
        if any(layer.parent.name in members for members in self.shared.values()):
            return DiskLimitKind.FILE_SYSTEM
        return DiskLimitKind.NONE if limit_bytes is None else self.kind

    def used(self, layer: Path) -> int:
        return self._machine.used.get(layer, 0)

    def shared_usage(self, name: str) -> int:
        layers = {
            member for shared, members in self.shared.items() if shared.name == name for member in members
        }
        return sum(size for layer, size in self._machine.used.items() if layer.parent.name in layers)

    def discard_unused(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        self.given_back.append(layer)

    def remove_shared(self, layer: Path, shared: SharedDisk) -> None:
        members = self.shared.pop(shared, set()) - {layer.parent.name}  # the last may have gone already
        if members:
            self.shared[shared] = members

    def keep_only(self, names: Set[str]) -> None:
        self.shared = {shared: each for shared, each in self.shared.items() if shared.name in names}

    def close(self) -> None:
        pass

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

    def create_arguments(self, container: str, **paths: Path) -> tuple[str, ...]:
        return ("create", container)

    async def start(self, container: str) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("release")
        assert (self._machine.runtime_folder / container).exists()
        self._machine.released.append(container)

    def exec_arguments(self, container: str, **paths: Path) -> tuple[str, ...]:
        return ("exec", container)

    async def delete(self, container: str) -> None:
        await asyncio.sleep(0)
        self._machine.maybe_fail("delete")
        shutil.rmtree(self._machine.runtime_folder / container, ignore_errors=True)
