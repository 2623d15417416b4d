"""The process: it locks its data folder, starts its role, writes the ready file, and stops in time.

`skerry.cli.commands.daemon` calls `run` with the settings. `skerry.daemon.roles` has the parts; this module
knows only how a process starts and stops.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog
import uvloop

from skerry import __version__
from skerry.daemon import roles
from skerry.kit import disk_monitor, disk_reserve, fd_limit, files, json_codec, logs
from skerry.kit.clock import SystemClock
from skerry.kit.disk_reserve import DiskReserve
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.model.invitations import JoinCredentials
from skerry.model.settings import Settings

log = structlog.get_logger(__name__)

# Beyond the bound on a clean stop; after that the process ends itself, clean or not.
_OTHER_DESCRIPTORS = 512  # files, pipes, links; what is open beside connections
_LAST_RESORT_S = 2.0


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
    announce: Callable[[ReadyDocument], None],
) -> int:
    """Be the daemon of `role` until a signal or a failure; the exit code.

    Raises a `SkerryError` with a plain message if it cannot start.
    """
    logs.setup(settings.log.level, settings.log.style)
    _provide_descriptors(settings)
    kept = DiskReserve(folder, settings.disk_reserve_mb << 20)
    missing = disk_monitor.START_BYTES - disk_monitor.free_bytes(folder)
    if missing > kept.held:  # logged before anything is created
        raise errors.ResourcesExhausted(
            f"{disk_monitor.full(folder)}. Skerry needs {disk_monitor.START_BYTES >> 20} MB to start; "
            "another data folder is chosen with --data."
        )
    with disk_reserve.installed(kept), _plain_disk_errors(folder), _held(folder):
        if missing > 0:
            kept.release(missing)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_live(role, settings, folder, ready_file, admission, announce))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The data folder is this process's alone."""
    lock = files.FolderLock(_prepared(folder))
    try:
        lock.acquire()
    except files.FolderLocked as held:
        raise errors.AlreadyExists(
            f"The data folder {folder} is in use by process {held.pid or '(starting)'}. "
            "Stop that one first, or give this one a folder of its own with --data."
        ) from None
    try:
        yield
    finally:
        lock.release()


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


async def _live(
    role: str,
    settings: Settings,
    folder: Path,
    ready_file: str | None,
    admission: JoinCredentials,
    announce: Callable[[ReadyDocument], None],
) -> int:
    stop = _stop_on_signals(settings.stop_timeout_s)
    ready_files = [folder / "ready.json", *([Path(ready_file)] if ready_file else [])]
    running = await race(
        roles.start(role, settings, folder, clock=SystemClock(), admission=admission), stop.wait()
    )
    if running is True:
        return 0  # stopped while starting: the cancellation has undone what had begun
    try:
        ready = ReadyDocument(
            pid=os.getpid(), role=role, version=__version__, data=str(folder), **running.addresses
        )
        for path in ready_files:
            files.write_atomically(path, json_codec.encode(ready) + b"\n")
        gc.freeze()  # present objects stay, and need not be scanned by the collector again
        log.info("process.ready", role=role, version=__version__, data=str(folder), **running.addresses)
        announce(ready)
        try:
            await race(running.failed(), stop.wait())
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing can go on without it
            log.error("process.failed", error=str(error))
            return 1
        return 0
    finally:
        for path in ready_files:
            with suppress(FileNotFoundError):
                path.unlink()
        await running.stop()
        log.info("process.stopped", role=role)


def _stop_on_signals(within_s: float) -> asyncio.Event:
    """An event set by the first SIGTERM or SIGINT; from then on the process has `within_s` to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def begin(name: str) -> None:
        if stop.is_set():
            log.warning("process.stopping_now", signal=name)
            os._exit(1)
        log.info("process.stopping", signal=name, within_s=within_s)
        stop.set()
        # A stop that hangs must not keep a service manager waiting. State is safe: it survives kill -9.
        timer = threading.Timer(within_s + _LAST_RESORT_S, os._exit, [1])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin, number.name)
    return stop
