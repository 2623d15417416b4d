"""The agent's side of the launcher and of cell inits.

`LauncherClient` has an init made for a cell; `InitClient` has executables started by it and hears of their
ends. What happens at the other ends is `skerry.node.launcher.child`; `skerry.node.cells` decides when an init
is made and what is started in it, and keeps on disk what `InitClient.adopt` needs after a restart.

Nothing here kills: whoever gave an entrance to a cgroup empties that cgroup when a step has failed, which
gets at everything that was begun. Children of a dead launcher become ours and are reaped here; orphans of any
other kind that reach this process, as their subreaper, are the business of whoever started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

import skerry
from skerry.model import errors
from skerry.model.cells import RuntimeCommand, Sandbox
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.kernel import syscalls
from skerry.node.launcher import channel as launcher_channel
from skerry.node.launcher.child import messages
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.exec_barriers import ExecBarrier

log = structlog.get_logger(__name__)

WITHIN_S: Final = 10.0
_STOP_WITHIN_S: Final = 5.0
_QUIT_WITHIN_S: Final = 1.0
_STARTS: Final = 3  # of a launcher that is killed before it is ready
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the cell's own, and the one folder it can surely write to
    "LANG": "C.UTF-8",
}
# Without site-packages, the environment and the user's folders: quick to start, and nothing foreign in it.
_OPTIONS: Final = ("-I", "-S", "-X", "utf8", "-c")
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from skerry.node.launcher.child.main import main; main(*sys.argv[2:])"
)
_NO_MORE: Final = HostView()
# Steps that fail for what was asked, not for what we are.
_ASKED: Final = {
    "limit open files": "ask for fewer open files",
    "change folder": "name a folder that the cell has and its user may enter",
    "exec": "name a program that is there for the user of the cell, which sees /usr and what the setting "
    "node.cell_paths names",
}


@dataclass(frozen=True, slots=True)
class InitSpec:
    """The namespaces of a cell."""

    host_name: str
    isolates_processes: bool = True  # own pid, mount, ipc and uts namespaces
    isolates_network: bool = False  # own network namespace, with loopback up
    tmp_mb: int = 64  # size of /tmp, of /var/tmp and of /dev/shm
    is_spare: bool = False  # made ahead for any cell; until it enters one it ends with the launcher
    network: int | None = None  # descriptor of the network namespace to be in, instead of a new one


@dataclass(frozen=True, slots=True)
class StartSpec:
    """An executable to start in a cell."""

    key: str  # what the init calls it when it tells of its end
    command: str  # run by /bin/sh, unless the sandbox has arguments
    sandbox: Sandbox
    uid: int  # the cell's own, used where the sandbox names none
    gid: int
    log_bytes: int  # kept of each stream
    runtime: RuntimeCommand | None = None  # instead of the command: starts the executable and ends
    trusted: tuple[str, ...] = ()  # instead of the command: run as root, unconfined
    streams: tuple[int, ...] = ()  # descriptors for input, output and error; none: the last two are logged
    socket: int | None = None  # a descriptor that it has as its number 3
    is_fork: bool = (
        False  # instead of the command: what the launcher's interpreter has ready, without an exec
    )
    logs: Path | None = None  # where its output is kept, if not in its folder


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """An executable whose program runs, or has run already."""

    pid: int  # as the node sees it
    pidfd: int | None = field(repr=False)  # None: it has ended, and its number may be another's by now

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The main process of an executable ended; `exit.json` in its folder says the same, or will when the disk
    takes it."""

    key: str
    at: float
    code: int | None
    signal: int | None


class RuntimeFailed(Exception):
    """The runtime ended with `code`, and there is no container that it started."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the runtime ended with {code}")
        self.code = code


class InitClient:
    """A cell's init, as long as this agent knows it. The init does not care whether anybody does."""

    control_fd: Final = messages.AGENT_END  # to be kept on disk with pid and start time

    def __init__(self, pid: int, start_time: int, pidfd: int, control: socket.socket) -> None:
        """Owns `pidfd` and `control`; use `LauncherClient.make_init` or `adopt`."""
        self.pid = pid
        self.start_time = start_time
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[errors.SkerryError | None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._exits: asyncio.Queue[ProcessExit | None] = asyncio.Queue()
        self._is_closed = False
        self._channel = launcher_channel.LauncherChannel(control, on_told=self._told, on_end=self._cut_off)
        self._loop.add_reader(pidfd, self._over)

    @classmethod
    def adopt(cls, pid: int, start_time: int, control_fd: int) -> InitClient | None:
        """The init that another agent made, or None if it is gone. Needs a running loop.

        Read the exit records after this, not before: later exits are told, earlier ones are on disk, and
        those that the disk refused are told again.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            # Only now is the pid pinned, so that what is read is about the process behind the pidfd.
            if start_time_of(pid) != start_time:
                raise ProcessLookupError(errno.ESRCH, "another process has the pid by now")
            control = _socket_of(pidfd, control_fd)
        except PermissionError as error:
            os.close(pidfd)
            raise errors.Unavailable(
                "the init of a cell cannot be taken over: allow this process CAP_SYS_PTRACE, and tracing by "
                "root (kernel.yama.ptrace_scope below 3)",
                detail=str(error),
            ) from error
        except OSError:
            os.close(pidfd)
            return None
        handle = cls(pid, start_time, pidfd, control)
        handle._ready.set_result(None)
        handle._channel.tell({"do": "repeat"})
        return handle

    async def start(
        self,
        spec: StartSpec,
        folder: Path,
        entrance: CgroupEntryFds,
        *,
        before_exec: Callable[[], None] | None = None,
        within_s: float = WITHIN_S,
    ) -> StartedProcess:
        """Run an executable; its output and its exit record go to `folder`. `before_exec` is called when the
        process is confined and before its program begins, which it does not if that raises.

        Returns once its program runs. Raises FailedPrecondition (what was asked is impossible), TooLarge,
        Internal, TimedOut, Unavailable (the init is gone), RuntimeFailed, and what `before_exec` raises; the
        caller then empties the cgroup, since a step may still be under way.
        """
        body = _start_request(spec, has_clone_into=entrance.clone_into is not None)
        with contextlib.ExitStack() as opened:
            folders = [folder] if spec.logs is None else [folder, spec.logs]
            passed = [_open_folder(each, opened) for each in folders]
            passed += [*spec.streams, *(() if spec.socket is None else (spec.socket,))]
            passed += _descriptors(entrance)
            if entrance.outside is not None:
                body["has_outside"] = True
                passed.insert(-1, entrance.outside)  # before the group that is inside
            barrier = None
            if before_exec is not None:
                barrier = opened.enter_context(ExecBarrier(before_exec))
                body["has_barrier"] = True
                passed.append(barrier.descriptor)
            answer = await self._ask(body, passed, within_s)
        if "failed" in answer.body:
            answer.close()
            if barrier is not None:
                barrier.check()
            if "code" in answer.body:
                raise RuntimeFailed(answer.body["code"])
            raise _not_started(spec, answer.body["failed"], answer.body["errno"])
        pidfd = answer.descriptors[0] if answer.descriptors else None
        return StartedProcess(answer.body.get("pid", answer.process), pidfd)

    async def mount(self, detached: int, place: str, *, within_s: float = WITHIN_S) -> None:
        """Put a mount that is nowhere yet, open as `detached`, at `place` of the cell.

        Raises Internal, TimedOut, Unavailable.
        """
        answer = await self._ask({"do": "mount", "place": place}, [detached], within_s)
        answer.close()
        if "failed" in answer.body:
            raise _not_set_up(answer.body["failed"], answer.body["errno"])

    async def _ask(
        self, body: messages.MessageBody, descriptors: list[int], within_s: float
    ) -> messages.LauncherMessage:
        try:
            async with asyncio.timeout(within_s):
                return await self._channel.ask(body, descriptors)
        except launcher_channel.ChannelClosed as error:
            raise errors.Unavailable("the cell's init is gone; free the cell and allocate it anew") from error
        except TimeoutError as error:
            raise errors.TimedOut(f"the cell's init did not start it within {within_s} s") from error
        except messages.MessageTooLarge as error:
            raise errors.TooLarge(
                f"command, arguments and environment are too long together: {error}"
            ) from error

    async def exits(self) -> AsyncIterator[ProcessExit]:
        """Executables that ended, as they do, until the init itself ends; for one listener."""
        while (exited := await self._exits.get()) is not None:
            yield exited
        self._exits.put_nowait(None)

    async def ended(self) -> None:
        """Wait until the init is gone, and with it all that ran in its cell."""
        await asyncio.shield(self._ended)

    async def ready(self, within_s: float) -> None:
        """Wait until the cell is set up."""
        try:
            async with asyncio.timeout(within_s):
                failure = await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise errors.TimedOut(f"the cell was not set up within {within_s} s") from error
        if failure is not None:
            raise failure

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def enter(self, host_name: str, entrance: CgroupEntryFds) -> None:
        """Make a spare the init of a cell; what it is asked next, it does there. If it cannot, it ends.
        `host_name` is empty for one that has the host's.

        Raises Unavailable if it could not even be told; it is no cell's init then, and starts nothing.
        """
        body = {"do": "enter", "host_name": host_name, "has_cpu": entrance.has_cpu}
        if not self._channel.tell(body, entrance.procs):
            raise errors.Unavailable(
                "an init that was made ahead could not be told to enter the cell; try again"
            )

    def kill(self) -> None:
        """End it, and with it all that runs in its cell."""
        if not self._is_closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def quit(self) -> None:
        """Ask it to end at its next turn."""
        self._channel.tell({"do": "quit"})

    def close(self) -> None:
        """Know it no more; the init and its cell go on."""
        if self._is_closed:
            return
        self._is_closed = True
        self._channel.close()
        self._loop.remove_reader(self._pidfd)
        _reap(os.P_PIDFD, self._pidfd)
        os.close(self._pidfd)
        self._exits.put_nowait(None)

    def _told(self, message: messages.LauncherMessage) -> None:
        message.close()
        body = message.body
        if "exited" in body:
            self._exits.put_nowait(ProcessExit(body["exited"], body["at"], body["code"], body["signal"]))
        elif "ready" in body:
            self._settle(None)
        elif "failed" in body:
            self._settle(_not_set_up(body["failed"], body["errno"]))

    def _cut_off(self) -> None:
        self._settle(errors.Internal("the cell's init died while it was set up"))

    def _settle(self, failure: errors.SkerryError | None) -> None:
        if not self._ready.done():
            self._ready.set_result(failure)

    def _over(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _reap(os.P_PIDFD, self._pidfd)
        self._channel.read_all()
        self._exits.put_nowait(None)
        if not self._ended.done():
            self._ended.set_result(None)


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """What a launcher has ready, so that a process of a cell can be a fork of it and need no exec."""

    interpreter: str  # of the same version as ours
    entry: str  # `module:function` of ours that such a process runs, given the number of its socket
    preload: tuple[str, ...] = ()  # modules that it has imported; those that cannot be had are passed over


class LauncherClient:
    """The process that forks inits; one that died is replaced when it is needed again."""

    def __init__(
        self, spawned: _Spawned, was_subreaper: bool, view: HostView, zygote: ZygoteSpec | None
    ) -> None:
        self.view = view
        self._spawned = spawned
        self._was_subreaper = was_subreaper
        self._zygote = zygote
        self._spawning = asyncio.Lock()

    @classmethod
    async def start(cls, zygote: ZygoteSpec | None = None, *, view: HostView = _NO_MORE) -> LauncherClient:
        """Start it; its cells see `view` of the host. From now on orphaned descendants of this process become
        its children.

        Stop several in the reverse order. Raises Unavailable.
        """
        was_subreaper = syscalls.set_subreaper(True)
        try:
            return cls(await _spawn(view, zygote), was_subreaper, view, zygote)
        except BaseException:
            syscalls.set_subreaper(was_subreaper)
            raise

    @property
    def pid(self) -> int:
        return self._spawned.process.pid

    async def make_init(
        self, spec: InitSpec, entrance: CgroupEntryFds, *, within_s: float = WITHIN_S
    ) -> InitClient:
        """An init in new namespaces, inside the cgroup from its first instruction, ready to start things.

        Raises Internal, TimedOut, Unavailable. What was begun then ends by itself; the caller waits until the
        cgroup is empty, or empties it.
        """
        for is_last in (False, True):
            spawned = await self._alive()
            try:
                return await _make_init(spawned.channel, spec, entrance, within_s)
            except launcher_channel.ChannelClosed as error:
                if is_last:
                    raise errors.Unavailable("the launcher keeps dying; its log says why") from error
        raise AssertionError("unreachable")

    async def failed(self) -> None:
        """Wait until the launcher dies by itself. Cells go on; the next `make_init` starts another."""
        await self._spawned.died.wait()

    async def stop(self) -> None:
        """End the launcher; inits go on."""
        await self._spawned.stop()
        syscalls.set_subreaper(self._was_subreaper)

    async def _alive(self) -> _Spawned:
        async with self._spawning:
            if not self._spawned.channel.is_open:
                log.warning("launcher.died", pid=self.pid)
                await self._spawned.stop()
                self._spawned = await _spawn(self.view, self._zygote)
            return self._spawned


class _Spawned:
    """One launcher process."""

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket) -> None:
        self.process = process
        self.died = asyncio.Event()
        self.ready = asyncio.Event()
        self.channel = launcher_channel.LauncherChannel(
            end, on_told=lambda _: self.ready.set(), on_end=self._end
        )

    def _end(self) -> None:
        self.died.set()
        self.ready.set()

    async def stop(self) -> None:
        self.channel.close()
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        _reap_inits()


async def _spawn(view: HostView, zygote: ZygoteSpec | None) -> _Spawned:
    """One that is ready. That one is killed while it starts says nothing of this machine: another is started.
    Raises Unavailable."""
    for _ in range(_STARTS):
        spawned = await _begin(view, zygote)
        try:
            async with asyncio.timeout(WITHIN_S):
                await spawned.ready.wait()
            if not spawned.died.is_set():
                log.info("launcher.started", pid=spawned.process.pid)
                return spawned
        except BaseException:
            await asyncio.shield(spawned.stop())
            raise
        await asyncio.shield(spawned.stop())
        if (code := spawned.process.returncode) is None or code >= 0:
            break
        log.warning("launcher.killed", pid=spawned.process.pid, signal=-code)
    raise errors.Unavailable("the launcher of cells does not start; its output says why")


async def _begin(view: HostView, zygote: ZygoteSpec | None) -> _Spawned:
    ours, theirs = messages.pair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable if zygote is None else zygote.interpreter,
                *_OPTIONS,
                _PROGRAM,
                str(Path(skerry.__file__).parent.parent),
                str(theirs.fileno()),
                json.dumps(view._asdict()),
                *(() if zygote is None else (zygote.entry, *zygote.preload)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the agent
                cwd="/",
                env={},  # what the agent's environment holds is no business of cells
            )
        except BaseException:
            ours.close()
            raise
    return _Spawned(process, ours)


async def _make_init(
    channel: launcher_channel.LauncherChannel, spec: InitSpec, entrance: CgroupEntryFds, within_s: float
) -> InitClient:
    body = {
        "host_name": spec.host_name,
        "isolates_processes": spec.isolates_processes,
        "isolates_network": spec.isolates_network,
        "tmp_mb": spec.tmp_mb,
        "is_spare": spec.is_spare,
        "network": spec.network is not None,
        "clone_into": entrance.clone_into is not None,
        "has_cpu": entrance.has_cpu,
    }
    agent_end, init_end = messages.pair()
    try:
        with init_end:
            descriptors = [agent_end.fileno(), init_end.fileno()]
            descriptors += [*(() if spec.network is None else (spec.network,)), *_descriptors(entrance)]
            async with asyncio.timeout(within_s):
                answer = await channel.ask(body, descriptors)
    except BaseException as error:
        # There may be an init, or will be; it finds this in its socket and ends.
        with contextlib.suppress(OSError):
            messages.send(agent_end, messages.encode({"do": "quit"}))
        agent_end.close()
        if isinstance(error, TimeoutError):
            raise errors.TimedOut(f"the launcher did not make an init within {within_s} s") from error
        raise
    if "failed" in answer.body:
        agent_end.close()
        raise _not_set_up(answer.body["failed"], answer.body["errno"])
    (pidfd,) = answer.descriptors
    pid = answer.body["pid"]
    try:
        start_time = start_time_of(pid)
    except OSError:
        start_time = 0  # it is gone already; what it has to say of that is in its socket
    handle = InitClient(pid, start_time, pidfd, agent_end)
    try:
        await handle.ready(within_s)
    except BaseException:
        handle.quit()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIT_WITHIN_S):
                await handle.ended()
        handle.close()
        raise
    return handle


def _start_request(spec: StartSpec, *, has_clone_into: bool) -> messages.MessageBody:
    sandbox = spec.sandbox
    asked = dict(setting.split("=", 1) for setting in sandbox.environment)
    trusted = spec.trusted if spec.runtime is None else spec.runtime.arguments
    arguments = trusted or sandbox.arguments or ("/bin/sh", "-c", spec.command)
    return {
        "key": spec.key,
        "arguments": () if spec.is_fork else arguments,
        "environment": {**ENVIRONMENT, **asked},
        "folder": sandbox.folder,
        "uid": spec.uid if sandbox.uid is None else sandbox.uid,
        "gid": spec.gid if sandbox.gid is None else sandbox.gid,
        "capabilities": "default" if sandbox.root_capabilities else "none",
        "open_files": sandbox.open_files,
        "log_bytes": spec.log_bytes,
        "clone_into": has_clone_into,
        "is_trusted": bool(trusted),
        "streams": len(spec.streams),
        "has_socket": spec.socket is not None,
        "is_fork": spec.is_fork,
        "has_logs": spec.logs is not None,
        "pid_file": "" if spec.runtime is None else spec.runtime.pid_file,
        "owner": 0 if spec.runtime is None else spec.runtime.owner,
    }


def _open_folder(path: Path, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def _descriptors(entrance: CgroupEntryFds) -> list[int]:
    return [*(() if entrance.clone_into is None else (entrance.clone_into,)), *entrance.procs]


def _not_started(spec: StartSpec, step: str, number: int) -> errors.SkerryError:
    why = os.strerror(number)
    if step in _ASKED:
        what = spec.sandbox.folder if step == "change folder" else (spec.sandbox.arguments or ("/bin/sh",))[0]
        return errors.FailedPrecondition(f"cannot {step} ({what[:100]}): {why}; {_ASKED[step]}")
    if step == "clone" and number == errno.EAGAIN:
        return errors.FailedPrecondition("the cell has as many processes as it may; stop some or allow more")
    return errors.Internal(f"the executable could not be started: {step}: {why}")


def _not_set_up(step: str, number: int) -> errors.SkerryError:
    return errors.Internal(f"the cell could not be set up: {step}: {os.strerror(number)}")


def _socket_of(pidfd: int, number: int) -> socket.socket:
    taken = syscalls.descriptor_of(pidfd, number)
    try:
        return socket.socket(fileno=taken)
    except OSError:
        os.close(taken)
        raise


def _reap(kind: int, number: int) -> None:
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # the launcher's, or another agent's


def _reap_inits() -> None:
    """Reap inits that had ended, and that a launcher left unreaped when it ended itself."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for pid in (task / "children").read_text().split():
                if (Path("/proc") / pid / "comm").read_bytes() == messages.INIT_NAME + b"\n":
                    _reap(os.P_PID, int(pid))


def start_time_of(pid: int) -> int:
    """When a process began, in ticks since boot. Raises OSError if there is none of that pid."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
