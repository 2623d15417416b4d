"""The process: it locks its data folder, starts its role, writes the ready file, and stops in time.

`skerry.cli.commands.daemon` calls `run` with the settings. `skerry.daemon.roles` has the parts; this module
knows only how a process starts and stops.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from skerry import __version__
from skerry.control.backup.restore_mark import UNFINISHED
from skerry.daemon import handover, roles, rootless, settings_check, socket_takeover
from skerry.daemon.handover import Handover, HandoverListener, Takeover
from skerry.daemon.role_parts import StepReport
from skerry.daemon.socket_takeover import SocketTakeover
from skerry.kit import (
    disk_monitor,
    disk_reserve,
    fd_limit,
    files,
    json_codec,
    listening_sockets,
    logs,
    thread_pool,
)
from skerry.kit.clock import SystemClock
from skerry.kit.collector import CollectorTuning
from skerry.kit.disk_reserve import DiskReserve
from skerry.kit.loop_monitor import LoopWatchdog
from skerry.kit.service_manager import ServiceManager
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.model.enforcement import Isolation, NodeEnforcement
from skerry.model.invitations import JoinCredentials
from skerry.model.settings import Settings
from skerry.store import data_stamp

log = structlog.get_logger(__name__)

# Beyond the bound on a clean stop; after that the process ends itself, clean or not.
_OTHER_DESCRIPTORS = 512  # files, pipes, links; what is open beside connections
_LAST_RESORT_S = 2.0
# Before a handover: clients get this long to leave their connections, each with an answer that says so.
_RETIRE_S = 1.0
_STEP_S = 120.0  # of a start under a service manager, which restarts what takes longer
AnyTakeover = Takeover | SocketTakeover


class StartObserver(Protocol):
    """Shows the start of a process to whoever started it."""

    def step(self, text: str) -> None: ...

    def ready(self, ready: ReadyDocument) -> None: ...


class ReadyDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the ready file: what is served where, also printed on a terminal."""

    pid: int
    role: str
    version: str
    data: str
    http: str = ""
    urls: tuple[str, ...] = ()  # of a node, for the devices of its network
    http_socket: str = ""  # of the same API
    web_socket: str = ""  # of web functions, for HAProxy
    plain: str = ""  # of buyers without credentials, if there is a listener for them: URL
    server: str = ""  # that a node joined: URL
    grpc: str = ""
    socket: str = ""
    ca: str = ""
    client_cert: str = ""
    client_key: str = ""
    node: str = ""
    name: str = ""  # of the node
    joined: str = ""  # how it became that node, in a sentence
    lacking: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def run(
    role: str,
    settings: Settings,
    folder: Path,
    *,
    ready_file: str | None,
    admission: JoinCredentials,
    screen: StartObserver,
    manager: ServiceManager,
    takes_over: bool = False,
) -> int:
    """Be the daemon of `role` until a signal or a failure; the exit code.

    `screen` and `manager` get the steps of the start, and what is served after it. With `takes_over` it
    continues for the process that has the data folder, if there is one.
    Raises a `SkerryError` with a plain message if it cannot start.
    """
    logs.setup(settings.log.level, settings.log.style)
    # Before anything is written, and before a process that serves is asked to hand over.
    data_stamp.check(folder)
    settings_check.check(role, settings, SystemClock())
    _provide_descriptors(settings)
    if manager.watchdog_s:
        faulthandler.enable()  # a blocked loop is aborted, and logs where it was blocked
    kept = DiskReserve(folder, settings.disk_reserve_mb << 20)
    missing = disk_monitor.START_BYTES - disk_monitor.free_bytes(folder)
    if missing > kept.held:  # logged before anything is created
        raise errors.ResourcesExhausted(
            f"{disk_monitor.full(folder)}. Skerry needs {disk_monitor.START_BYTES >> 20} MB to start; "
            "another data folder is chosen with --data."
        )
    with (
        disk_reserve.installed(kept),
        _plain_disk_errors(folder),
        _held(folder, role, screen, takes_over=takes_over, within_s=settings.stop_timeout_s) as (lock, taken),
        rootless.entered(
            role, folder, is_alone=taken is None, isolation=settings.node.isolation
        ) as enforcement,
    ):
        data_stamp.check(folder)  # again, now that no other process can change it
        if missing > 0:
            kept.release(missing)
        ready_files = [folder / "ready.json", *([Path(ready_file)] if ready_file else [])]
        daemon = _Daemon(role, settings, folder, lock, admission, screen, manager, ready_files, enforcement)
        with asyncio.Runner(loop_factory=thread_pool.new_event_loop) as runner:
            return runner.run(daemon.live(taken))


@contextmanager
def _held(
    folder: Path, role: str, screen: StartObserver, *, takes_over: bool, within_s: float
) -> Iterator[tuple[files.FolderLock, AnyTakeover | None]]:
    """The data folder is this process's alone; from the process before, if this one takes over from it."""
    lock = files.FolderLock(_prepared(folder))
    taken: AnyTakeover | None = None
    try:
        lock.acquire()
    except files.FolderLocked as held:
        if not takes_over:
            raise errors.AlreadyExists(
                f"The data folder {folder} is in use by process {held.pid or '(starting)'}. Stop that one "
                "first, take over from it with --takeover, or give this one a folder of its own with --data."
            ) from None
        screen.step(f"taking over from process {held.pid or '(starting)'}")
        taken = _take_over(folder, role, lock, held.pid, within_s)
    if taken is None:
        files.remove_unfinished(folder)
    try:
        if (folder / UNFINISHED).exists():
            raise errors.FailedPrecondition(
                f"A restore into {folder} was interrupted, and the folder is incomplete: run "
                "'skerry restore' again, or give this one a folder of its own with --data."
            )
        yield lock, taken
    finally:
        lock.release()
        if taken is not None:
            taken.close()


def _take_over(
    folder: Path, role: str, lock: files.FolderLock, pid: int, within_s: float
) -> AnyTakeover | None:
    """Get the folder and the sockets from process `pid`; None if it has ended and left none."""
    ready = socket_takeover.former_process(folder, pid)
    if ready is not None:
        stopped = socket_takeover.take_over(folder, ready, role, within_s=within_s)
        try:
            _acquire_soon(lock)
        except BaseException:
            stopped.close()
            raise
        listening_sockets.current().inherit(stopped.sockets, stopped.connections)
        return stopped
    taken = handover.request(folder, role)
    if taken is None:
        _acquire_soon(lock)  # it has ended by itself: nothing is left to take over
    else:
        lock.adopt(taken.lock)
        listening_sockets.current().inherit(taken.sockets)
    return taken


def _acquire_soon(lock: files.FolderLock) -> None:
    """Lock a folder whose owner is about to be gone."""
    deadline = time.monotonic() + _LAST_RESORT_S
    while True:
        try:
            return lock.acquire()
        except files.FolderLocked:
            if time.monotonic() > deadline:
                raise errors.Unavailable(
                    "The process that has the data folder did not hand it over; see its log, and try again."
                ) from None
            time.sleep(0.05)


@contextmanager
def _plain_disk_errors(folder: Path) -> Iterator[None]:
    """Raise a clear error for a failing disk, which is no fault of the program."""
    try:
        yield
    except OSError as error:
        if not disk_monitor.refuses(error):
            raise
        raise errors.Unavailable(disk_monitor.explain(error, folder), detail=repr(error)) from None


def _provide_descriptors(settings: Settings) -> None:
    available = fd_limit.raise_fd_limit()
    needed = 2 * (settings.http.max_connections + settings.grpc.max_connections) + _OTHER_DESCRIPTORS
    if available < needed:
        log.warning(
            "descriptors.short",
            available=available,
            needed=needed,
            fix="raise LimitNOFILE (ulimit -n), or lower http.max_connections and grpc.max_connections",
        )


def _prepared(folder: Path) -> Path:
    try:
        return files.private_folder(folder)
    except OSError as error:
        raise errors.Invalid(
            f"The data folder {folder} cannot be used: {error.strerror}. Choose another with --data."
        ) from None


class _Daemon(msgspec.Struct, frozen=True):
    """The process from its start to its end, which may be another's beginning."""

    role: str
    settings: Settings
    folder: Path
    lock: files.FolderLock
    admission: JoinCredentials
    screen: StartObserver
    manager: ServiceManager
    ready_files: list[Path]
    enforcement: NodeEnforcement

    async def live(self, taken: AnyTakeover | None) -> int:
        """Serve until the end; again, if a handover failed. `taken` is from the process before."""
        stop = _stop_on_signals(self.settings.stop_timeout_s, self.manager)
        while True:
            start = roles.start(
                self.role,
                self.settings,
                self.folder,
                clock=SystemClock(),
                admission=self.admission,
                report=_to_both(self.screen.step, self.manager),
                manager=self.manager,
                enforcement=self.enforcement,
            )
            running = await race(start, stop.wait())
            if running is True:
                return 0  # stopped while starting: the cancellation has undone what had begun
            sockets: dict[str, socket.socket] = {}
            outcome: Handover | int = 1
            try:
                outcome = await self._serve(running, stop, taken)
                if isinstance(outcome, Handover):
                    sockets = await _retire(stop, self.settings.takeover_wait_s)
            finally:
                # Clients find the next process by the ready file of this one, at the same addresses.
                if not isinstance(outcome, Handover):
                    self._remove_ready_files()
                with _ending_within(self.settings.stop_timeout_s):
                    await running.stop()
                log.info("process.stopped", role=self.role)
            if not isinstance(outcome, Handover):
                return outcome
            if await self._hand_over(outcome, sockets, stop):
                return 0
            data_stamp.check(self.folder)
            taken = None

    async def _serve(
        self, running: roles.RunningRole, stop: asyncio.Event, taken: AnyTakeover | None
    ) -> Handover | int:
        """Report that it is ready, and serve; the exit code, or the handover that ends this."""
        # Who reads that it is ready may take over at once: it listens before.
        with self._handovers() as handovers:
            self._report_ready(running, taken)
            try:
                with LoopWatchdog(asyncio.get_running_loop(), tuning=CollectorTuning()):
                    outcome = await race(running.failed(), stop.wait(), handovers())
            except Exception as error:  # noqa: BLE001 - whatever it was, nothing can go on without it
                log.error("process.failed", error=str(error))
                return 1
        return outcome if isinstance(outcome, Handover) else 0

    @contextmanager
    def _handovers(self) -> Iterator[Callable[[], Awaitable[object]]]:
        """Waits for a process that takes over; with a service manager, keeps that one informed instead."""
        if self.manager.is_present:
            # It has the sockets, so that its restart refuses nobody; a handover would end its service.
            yield self.manager.signal_alive
            return
        limits = self.settings
        within_s = _RETIRE_S + limits.takeover_wait_s + limits.stop_timeout_s + _LAST_RESORT_S
        with HandoverListener(self.folder, self.role, within_s=within_s) as listener:
            yield listener.requested

    def _report_ready(self, running: roles.RunningRole, taken: AnyTakeover | None) -> None:
        ready = ReadyDocument(
            pid=os.getpid(), role=self.role, version=__version__, data=str(self.folder), **running.addresses
        )
        for path in self.ready_files:
            files.write_atomically(path, json_codec.encode(ready) + b"\n")
        log.info(
            "process.ready", role=self.role, version=__version__, data=str(self.folder), **running.addresses
        )
        self.screen.ready(ready)
        unused = listening_sockets.current().end_sharing()
        if taken is not None:
            log.info("process.took_over", version=taken.version, unused=unused)
            taken.report_ready()
        weakened = ", isolation none" if self.enforcement.isolation is Isolation.NONE else ""
        self.manager.ready(f"{self.role} {__version__}, {ready.http or f'node of {ready.server}'}{weakened}")

    async def _hand_over(self, to: Handover, sockets: dict[str, socket.socket], stop: asyncio.Event) -> bool:
        """Pass on what the next process needs; False if it ended before it served, and this one goes on."""
        request = to.request
        to.send(sockets, self.lock.descriptor)
        succeeded = await race(to.succeeded(), stop.wait())
        to.close()
        if succeeded:
            log.info("process.handed_over", to=request.pid, version=request.version)
            self.lock.leave()
            for sock in sockets.values():
                sock.close()
            return True
        log.error("process.handover_failed", to=request.pid, version=request.version)
        self.lock.adopt(self.lock.descriptor)
        listening_sockets.current().inherit(sockets)
        return False

    def _remove_ready_files(self) -> None:
        for path in self.ready_files:
            with suppress(FileNotFoundError):
                path.unlink()


async def _retire(stop: asyncio.Event, wait_s: float) -> dict[str, socket.socket]:
    """Have clients leave their connections, and keep the listening sockets open beyond the stop. New requests
    are served, while those that run now have `wait_s` for their answers."""
    listening = listening_sockets.current()
    running = listening.retire()
    log.info("process.handing_over", requests=len(running), wait_s=wait_s)
    with suppress(TimeoutError):
        async with asyncio.timeout(_RETIRE_S):
            await stop.wait()
    if running and not stop.is_set():
        await race(asyncio.wait(running, timeout=wait_s), stop.wait())
    return listening.hold()


@contextmanager
def _ending_within(seconds: float) -> Iterator[None]:
    """A stop that takes longer ends the process."""
    timer = _exit_after(seconds + _LAST_RESORT_S)
    try:
        yield
    finally:
        timer.cancel()


def _exit_after(seconds: float) -> threading.Timer:
    """A stop that hangs must not keep a service manager waiting. State is safe: it survives kill -9."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()
    return timer


def _to_both(report: StepReport, manager: ServiceManager) -> StepReport:
    def step(text: str) -> None:
        report(text)
        manager.starting(text, _STEP_S)

    return step


def _stop_on_signals(within_s: float, manager: ServiceManager) -> asyncio.Event:
    """An event set by the first SIGTERM, SIGINT or SIGHUP; from then on the process has `within_s` to end.

    SIGHUP comes when the terminal is closed. One that is ignored, as after nohup, stays ignored.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def begin(name: str) -> None:
        if stop.is_set():
            log.warning("process.stopping_now", signal=name)
            os._exit(1)
        log.info("process.stopping", signal=name, within_s=within_s)
        stop.set()
        manager.stopping()
        _exit_after(within_s + _LAST_RESORT_S)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, begin, number.name)
    return stop
