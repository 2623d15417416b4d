"""Containers without a kernel: keepers that follow the contract, with real rings for output.

Nothing runs in a container here; what is executed in one is a plain process of this machine, so that its
pipes and terminals are real.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry.kit.fd_readiness import wait_readable
from skerry.model import errors
from skerry.model.cells import CellUsage, ExecutableState, ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerState, ContainerStats, ContainerView
from skerry.model.ids import CellName, Digest, ExecutableName
from skerry.model.images import (
    Image,
    ImageAccess,
    ImageConfig,
    ImageId,
    LayerProgress,
    Platform,
    PullProgress,
    check_path_access,
)
from skerry.node.containers.ports import OnPullProgress
from skerry.node.images import references
from skerry.node.logs.readers import RingReader
from skerry.wire.own.containers.service import ContainerService, ImageService
from tests.support.cells import Served, Started, listening
from tests.support.certificates import TestAuthority

ID = ImageId("sha256:" + "ab" * 32)
LAYERS = (Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64))


def an_image(*names: str, identity: ImageId = ID) -> Image:
    return Image(
        id=identity,
        names=names,
        platform=Platform(architecture="arm64", variant="v8"),
        config=ImageConfig(
            entrypoint=("/bin/sh",),
            command=("-c", "true"),
            environment=("A=1",),
            user="web",
            folder="/srv",
            stop_signal="SIGINT",
            ports=("80/tcp",),
            volumes=("/data",),
            labels={"made-by": "hand"},
        ),
        layers=LAYERS,
        bytes=3 << 20,
        pulled_at=1000.0,
        manifest=Digest("sha256:" + "c" * 64),
    )


def steps_of(reference: str) -> list[PullProgress]:
    """How a pull of two layers goes, one of which is here already."""
    first, second = LAYERS
    return [
        PullProgress(reference, "asking the registry"),
        *(
            PullProgress(
                reference,
                f"{count} of 2 layers",
                (LayerProgress(first, "present"), LayerProgress(second, state, bytes=got, total=2048)),
            )
            for count, state, got in ((1, "pulling", 1024), (1, "unpacking", 2048), (2, "done", 2048))
        ),
    ]


class FakeImages:
    """What `skerry.node.containers.ports.ImageStore` asks for, in memory."""

    def __init__(self) -> None:
        self.images: dict[str, Image] = {}
        self.pulled: list[str] = []
        self.used: set[str] = set()  # names of images that containers are made from
        self.go_on = asyncio.Event()  # a pull waits for it after its first step
        self.go_on.set()
        self.cancelled = 0
        self.fails: errors.SkerryError | None = None

    async def pull(self, reference: str, *, access: ImageAccess, on_progress: OnPullProgress) -> Image:
        references.parse(reference)
        check_path_access(reference, access)
        first, *rest = steps_of(reference)
        on_progress(first)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        for step in rest:
            on_progress(step)
        self.pulled.append(reference)
        self.images[reference] = an_image(reference)
        return self.images[reference]

    async def ensure(self, reference: str, *, access: ImageAccess, on_progress: OnPullProgress) -> Image:
        there = self.images.get(reference)
        return there or await self.pull(reference, access=access, on_progress=on_progress)

    def list(self) -> list[Image]:
        return list(self.images.values())

    def find(self, reference_or_id: str, *, access: ImageAccess) -> Image:
        try:
            return self.images[reference_or_id]
        except KeyError:
            raise errors.NotFound(
                f"there is no image {reference_or_id!r} here; `skerry image pull` fetches it"
            ) from None

    async def remove(self, reference_or_id: str, *, access: ImageAccess) -> int:
        image = self.find(reference_or_id, access=access)
        if reference_or_id in self.used:
            raise errors.FailedPrecondition("it is used by web")
        del self.images[reference_or_id]
        return image.bytes

    async def collect(self) -> int:
        return 5 << 20


class Session:
    """A process of this machine in place of one in a container."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int | None) -> None:
        self.process = process
        self.signals: list[int] = []
        self._pidfd = os.pidfd_open(process.pid)
        self._terminal = terminal

    async def exit_code(self) -> int:
        await wait_readable(self._pidfd)
        code = self.process.wait()
        return 128 - code if code < 0 else code

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def size(self) -> tuple[int, int]:
        """Of its terminal."""
        assert self._terminal is not None
        columns, rows = os.get_terminal_size(self._terminal)
        return rows, columns

    def signal(self, number: int) -> None:
        self.signals.append(number)
        self.process.send_signal(number)

    async def kill(self) -> None:
        self._kill()
        await wait_readable(self._pidfd)
        self.process.wait()

    def _kill(self) -> None:
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not begun its session yet
                self.process.kill()

    def close(self) -> None:
        self._kill()
        self.process.wait()
        os.close(self._pidfd)
        if self._terminal is not None:
            os.close(self._terminal)


@dataclass
class Execution:
    """What `exec` was asked for."""

    name: str
    arguments: tuple[str, ...]
    environment: tuple[str, ...]
    user: str
    folder: str
    tty: bool


class FakeContainers:
    """What `skerry.node.containers.ports.ContainerRuntime` asks for, in memory."""

    def __init__(self, folder: Path, images: FakeImages | None = None, *, log_bytes: int = 1 << 20) -> None:
        self._folder = folder
        self.images = images or FakeImages()
        self._log_bytes = log_bytes
        self._runs = iter(range(4242, 10_000))
        self.views: dict[str, ContainerView] = {}
        self.running: dict[str, Started] = {}
        self.on_start: Callable[[Started], None] = lambda started: None
        self.fails_to_start: BaseException | None = None
        self.graces: list[float | None] = []
        self.stubborn = False  # a stop with a grace takes for ever
        self.removed: list[tuple[str, bool]] = []
        self.executions: list[Execution] = []
        self.sessions: list[Session] = []

    async def create(
        self, spec: ContainerSpec, *, access: ImageAccess, starts: bool, on_progress: OnPullProgress
    ) -> ContainerView:
        if spec.name in self.views:
            raise errors.AlreadyExists(
                f"container {spec.name!r} exists already; remove it or choose another name"
            )
        image = await self.images.ensure(spec.image, access=access, on_progress=on_progress)
        self.views[spec.name] = view = ContainerView(
            spec=spec, image=image.id, state=ContainerState.CREATED, created_at=1000.0
        )
        if not starts:
            return view
        try:
            return await self.start(spec.name)
        except BaseException:
            await self.remove(spec.name, force=True)
            raise

    async def start(self, name: str) -> ContainerView:
        view = self.get(name)
        if self.fails_to_start is not None:
            raise self.fails_to_start
        if view.state is ContainerState.RUNNING:
            raise errors.FailedPrecondition(f"container {name!r} runs already")
        pid = next(self._runs)
        state = ExecutableState(ExecutableName("main"), CellName(name), "sh", "", pid, 2000.0)
        started = Started(state, None, self._folder / str(pid), self._log_bytes)
        if previous := self.running.get(name):
            previous.end(ExitStatus(at=0.0))
        self.running[name] = started
        self._change(
            name, state=ContainerState.RUNNING, pid=pid, address="10.86.0.2", started_at=2000.0, exit=None
        )
        self.on_start(started)
        return self.get(name)

    async def stop(self, name: str, *, grace_s: float | None = None) -> ContainerView:
        self.graces.append(grace_s)
        if self.stubborn and grace_s != 0:
            await self.wait(name)
        if name in self.running:
            self.running[name].end(ExitStatus(at=3000.0, signal=15 if grace_s != 0 else 9))
        return self.get(name)

    async def remove(self, name: str, *, force: bool = False) -> None:
        if self.get(name).state is ContainerState.RUNNING:
            if not force:
                raise errors.FailedPrecondition(
                    f"container {name!r} is running; stop it first, or use --force"
                )
            await self.stop(name, grace_s=0)
        self.removed.append((name, force))
        del self.views[name]
        self.running.pop(name, None)

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
    ) -> Session:
        if self.get(name).state is not ContainerState.RUNNING:
            raise errors.FailedPrecondition(f"container {name!r} is not running; start it first")
        self.executions.append(Execution(name, arguments, environment, user, folder, tty))
        terminal = os.dup(stdio[0]) if tty else None
        process = subprocess.Popen(
            ["setsid", *(["--ctty"] if tty else []), *arguments],
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            cwd=folder or None,
            env={"PATH": os.environ["PATH"], **dict(each.split("=", 1) for each in environment)},
        )
        session = Session(process, terminal)
        self.sessions.append(session)
        return session

    def list(self) -> list[ContainerView]:
        return [self.get(name) for name in self.views]

    def get(self, name: str) -> ContainerView:
        if name not in self.views:
            raise errors.NotFound(f"there is no container {name!r}")
        started = self.running.get(name)
        if started is not None and started.state.exit is not None:
            self._change(name, state=ContainerState.EXITED, pid=None, address="", exit=started.state.exit)
        return self.views[name]

    async def wait(self, name: str) -> ExitStatus:
        self.get(name)
        if name not in self.running:
            raise errors.FailedPrecondition(f"container {name!r} was never started")
        await self.running[name].ended.wait()
        how = self.running[name].state.exit
        assert how is not None
        return how

    def logs(self, name: str, stream: OutputChannel, *, previous: bool = False) -> RingReader:
        self.get(name)
        folder = self.running[name].folder if name in self.running else self._folder / "nothing"
        return RingReader(folder, stream)

    async def stats(self, name: str) -> ContainerStats:
        self.get(name)
        usage = CellUsage(cpu_ns=1_500_000_000, memory_bytes=3 << 20, pids=2, oom_kills=1)
        return ContainerStats(usage, disk_bytes=4096, disk_limit_bytes=1 << 30, disk_limit_kind="measured")

    def close(self) -> None:
        for started in self.running.values():
            started.end(ExitStatus(at=0.0))
        for session in self.sessions:
            session.close()

    def _change(self, name: str, **changes: object) -> None:
        self.views[name] = msgspec.structs.replace(self.views[name], **changes)


@dataclass
class ContainerServer(Served):
    """With the fakes behind it."""

    containers: FakeContainers
    images: FakeImages


@asynccontextmanager
async def container_server(
    folder: Path, authority: TestAuthority, containers: FakeContainers
) -> AsyncIterator[ContainerServer]:
    """The contract for containers over fakes, on a socket in `folder`."""
    images = containers.images
    services = [ImageService(images), ContainerService(containers, images)]
    async with listening(folder, authority, services) as path:
        yield ContainerServer(path, authority, containers, images)
