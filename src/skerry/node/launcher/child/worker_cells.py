"""Cells of one worker each, in the launcher: their init is a program that only waits (`pause`).

The launcher makes such an init by a list of system calls, without a fork of the interpreter, forks the worker
into its namespaces, reports its exit to the agent, and attaches mounts. What outlives the launcher is killed
by the agent, by group.

Nobody reads a worker's output until there is some. Then the agent sends the folder of its logs and the groups
of the cell, and a fork of the launcher in these, the output process, moves it to the rings on disk: what a
function prints costs its own cell. When a worker ends, its last output is stored before that is reported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from skerry.node.kernel import syscalls
from skerry.node.launcher.child import (
    capabilities,
    cell_mounts,
    exec_setup,
    messages,
    output_pumps,
    pause,
    poll_loop,
    prepared_scripts,
    zygotes,
)
from skerry.node.launcher.child.cell_mounts import HostPaths
from skerry.node.launcher.child.cell_root import CellRoot
from skerry.node.launcher.child.exec_setup import ProgramSpec
from skerry.node.launcher.child.output_pumps import OutputPump
from skerry.node.launcher.child.prepared_scripts import PreparedScript, Slot, TextSlot
from skerry.node.launcher.child.syscall_scripts import ScriptMemory, SyscallScript

# Below, there is nothing that a child renumbers descriptors to; this one is the init's program.
_PROGRAM: Final = 9
_MOST_NAME: Final = 64  # of a host
_IGNORE: Final = struct.pack("=QQQQ", 1, 0, 0, 0)  # a signal
_MASK_BYTES: Final = 8
_AT_FDCWD: Final = -100
_SIOCSIFFLAGS: Final = 0x8914
_LOOPBACK_UP: Final = struct.pack("16sH22x", b"lo", 0x1)
_FIND_AGAIN_S: Final = 0.5
_STREAMS: Final = ("stdout", "stderr")
_DRAIN: Final = b"d"
_HIGH: Final = 1 << 10

Reply = Callable[[messages.MessageBody, list[int] | None], None]


class InitKind(NamedTuple):
    """What one list of calls for inits depends on."""

    groups: int
    has_network: bool
    tmp_mb: int
    paths: HostPaths


class WorkerKind(NamedTuple):
    """What one list of calls for workers depends on."""

    groups: int
    open_files: int
    folder: str


class LaunchedWorker:
    """A worker, from its start until its exit is reported and nothing more of its output can come."""

    __slots__ = ("cell", "ending", "has_requested", "key", "log_bytes", "output", "pid", "pipes", "watched")

    def __init__(self, cell: int, key: str, pipes: list[int], log_bytes: int) -> None:
        self.cell = cell  # the pid of its init
        self.key = key
        self.pipes = pipes  # until the output process has them
        self.watched: set[int] = set()
        self.has_requested = False  # the agent for the folder of its logs
        self.log_bytes = log_bytes
        self.pid = 0
        self.output: socket.socket | None = None  # the process that moves its output
        self.ending: dict[str, Any] = {}  # its exit, until that is reported


class ForkedWorker(NamedTuple):
    """A worker that may not be confined yet."""

    worker: LaunchedWorker
    pidfd: int
    status: int  # to be read when it is confined, or has failed


class WorkerCells:
    """The cells of workers that this launcher has made."""

    def __init__(
        self,
        root: CellRoot,
        system_calls: syscalls.SeccompFilter,
        stage: ScriptMemory,
        loop: poll_loop.PollLoop,
        reply: Reply,
    ) -> None:
        self._root = root
        self._system_calls = system_calls
        self._stage = stage
        self._loop = loop
        self._reply = reply
        self._inits: dict[int, int] = {}  # pidfds, by pid
        self._workers: dict[int, LaunchedWorker] = {}  # that run, by pid
        self._by_key: dict[tuple[int, str], LaunchedWorker] = {}
        self._unstored: dict[
            int, LaunchedWorker
        ] = {}  # that have ended with output that is not stored, by cell
        self.is_possible = _reserve_low_descriptors()
        if self.is_possible:
            prepared_scripts.load()
        self._paths = HostPaths.find()
        self._find_at = 0.0
        self._host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._home = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._no_folder = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # nothing can be stored in it
        self._init_script = functools.lru_cache(4)(self._make_init_script)
        self._worker_script = functools.lru_cache(4)(self._make_worker_script)

    def handle(self, message: messages.LauncherMessage) -> None:
        """A request whose `do` is one of ours. Raises OSError, LookupError, TypeError, ValueError."""
        {"launch": self._launch, "mount": self._mount, "output": self._move_output}[message.body["do"]](
            message
        )

    def ended(self, pid: int, status: int) -> None:
        """A child was reaped."""
        if (pidfd := self._inits.pop(pid, None)) is not None:
            os.close(pidfd)
            if (worker := self._unstored.pop(pid, None)) is not None:
                self._report(worker)  # its cell is being removed, and nobody sends a folder any more
        elif (worker := self._workers.pop(pid, None)) is not None:
            code = os.waitstatus_to_exitcode(status)
            ending = {"code": None, "signal": -code} if code < 0 else {"code": code, "signal": None}
            worker.ending = {**ending, "at": time.time()}
            if worker.output is not None:
                self._request_drain(worker)
            elif any(map(output_pumps.has_data, worker.pipes)):
                self._unstored[worker.cell] = worker
                self._request_log_folder(worker)
            else:
                self._report(worker)

    # Inits

    def _launch(self, message: messages.LauncherMessage) -> None:
        """Make an init, mount in its cell, and fork the worker into it: all or nothing."""
        body, descriptors = message.body, message.descriptors[:]
        init, spec = body["init"], body["worker"]
        if spec["uid"] == 0 or spec["capabilities"] != "none":
            raise ValueError("a worker has no privileges")
        end = descriptors.pop(0)
        network = descriptors.pop(0) if init["network"] else None
        mounts = [(descriptors.pop(0), path) for path in body["mounts"]]
        # Of the groups, some are the same for both, and of the others each has one.
        *shared, own_group, worker_group = descriptors
        groups = [*shared] if body["clone_into"] else [*shared, own_group]
        pid, pidfd = self._make_init(init, groups, network, own_group if body["clone_into"] else None)
        try:
            self._attach(pidfd, mounts)
            groups = [*shared] if body["clone_into"] else [*shared, worker_group]
            forked = self._fork(spec, pid, pidfd, end, groups, worker_group if body["clone_into"] else None)
        except BaseException:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise
        # Others are launched while this one is confined.
        self._loop.watch(forked.status, functools.partial(self._answer_launch, body["id"], forked))

    def _answer_launch(self, request: int, forked: ForkedWorker) -> None:
        """The worker is confined, or has failed or ended."""
        self._loop.forget(forked.status)
        worker = forked.worker
        init = self._inits.get(worker.cell)
        try:
            failure = zygotes.read_status(forked.status)
            if failure is None and init is not None:
                self._reply({"id": request, "pid": worker.cell, "worker": worker.pid}, [init, forked.pidfd])
                return
            if init is not None:
                signal.pidfd_send_signal(init, signal.SIGKILL)
            self._forget(worker)
            step, number = (failure.step, failure.errno) if failure else ("set up the cell", errno.ESRCH)
            self._reply({"id": request, "failed": step, "errno": number}, None)
        finally:
            _close(forked.status, forked.pidfd)

    def _make_init(
        self, body: messages.MessageBody, groups: list[int], network: int | None, clone_into: int | None
    ) -> tuple[int, int]:
        """Its pid and a pidfd, which stays open until it has ended."""
        self._root.refresh()
        kind = InitKind(len(groups), network is not None, body["tmp_mb"], self._host_paths())
        script = self._init_script(kind)
        name = body["host_name"].encode()
        script.set_text("name", name)
        script.set(length=len(name), **{f"group{at}": group for at, group in enumerate(groups)})
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
        if network is None:
            flags |= syscalls.CLONE_NEWNET
        else:
            script.set(network=network)
        with _naming_children(messages.INIT_NAME):
            pid, pidfd = script.spawn(self._stage, flags, clone_into)
        self._inits[pid] = pidfd
        return pid, pidfd

    def _host_paths(self) -> HostPaths:
        """Looked for again after a while: a driver that is loaded may add some."""
        now = time.monotonic()
        if now >= self._find_at:
            self._paths, self._find_at = HostPaths.find(), now + _FIND_AGAIN_S
        return self._paths

    def _make_init_script(self, kind: InitKind) -> PreparedScript:
        calls, step = SyscallScript(), "set up the cell"
        for at in range(kind.groups):
            calls.call("enter cgroup", "write", Slot(f"group{at}"), b"0", 1)
        if kind.has_network:
            calls.call("enter network", "setns", Slot("network"), syscalls.CLONE_NEWNET)
        calls.call(step, "setns", self._root.namespace, syscalls.CLONE_NEWNS)
        calls.call(step, "unshare", syscalls.CLONE_NEWNS)
        # Nothing has these numbers now but the program, of which nothing is left after it is executed.
        calls.call(step, "close_range", exec_setup.FIRST_PASSED, _PROGRAM - 1, 0)
        calls.call(step, "close_range", _PROGRAM + 1, syscalls.ALL, 0)
        calls.call(step, "setsid")
        calls.call(step, "umask", 0)
        calls.call("set host name", "sethostname", TextSlot("name", _MOST_NAME), Slot("length"))
        cell_mounts.add_file_systems(calls, kind.tmp_mb)
        cell_mounts.add_sysfs(calls)
        cell_mounts.cover(calls, kind.paths)
        if not kind.has_network:
            calls.call("set up loopback", "socket", socket.AF_INET, socket.SOCK_DGRAM, 0)
            first = exec_setup.FIRST_PASSED
            calls.call("set up loopback", "ioctl", first, _SIOCSIFFLAGS, _LOOPBACK_UP)
            calls.call("set up loopback", "close", first)
        calls.call(step, "openat", _AT_FDCWD, b"/dev/null", os.O_RDWR)
        for number in range(exec_setup.FIRST_PASSED):
            calls.call(step, "dup3", exec_setup.FIRST_PASSED, number, 0)
        calls.call(step, "close", exec_setup.FIRST_PASSED)
        calls.call(step, "rt_sigaction", 17, _IGNORE, 0, _MASK_BYTES)  # SIGCHLD: the kernel reaps
        for number in capabilities.out_of(0):
            calls.call("drop privileges", "prctl", syscalls.PR_CAPBSET_DROP, number, 0, 0, 0)
        calls.exec_file(_PROGRAM, messages.INIT_NAME)
        return PreparedScript(calls, is_program=True)

    def _mount(self, message: messages.LauncherMessage) -> None:
        body = message.body
        self._attach(self._inits[body["cell"]], [(message.descriptors[0], body["place"])])
        self._reply({"id": body["id"]}, None)

    def _attach(self, init: int, mounts: list[tuple[int, str]]) -> None:
        """Attach detached mounts in the cell of an init."""
        if not mounts:
            return
        syscalls.enter_namespace(init, syscalls.CLONE_NEWNS)
        try:
            for detached, path in mounts:
                syscalls.move_mount(detached, path)
        finally:
            self._return_home()

    def _return_home(self) -> None:
        try:
            syscalls.enter_namespace(self._host, syscalls.CLONE_NEWNS)
            os.fchdir(self._home)
            os.chroot(".")
        except OSError:
            os._exit(1)  # nothing that it makes from here on would be where it belongs

    # Workers

    def _fork(
        self,
        body: messages.MessageBody,
        cell: int,
        init: int,
        end: int,
        groups: list[int],
        clone_into: int | None,
    ) -> ForkedWorker:
        """A worker, whose descriptors belong to the caller."""
        environment = {_bytes(key): _bytes(value) for key, value in body["environment"].items()}
        script = self._worker_script(WorkerKind(len(groups), body["open_files"], body["folder"]))
        reading, writing = zip(os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC), strict=True)
        worker = LaunchedWorker(cell, body["key"], list(reading), body["log_bytes"])

        def make(status: int) -> PreparedScript:
            script.set(
                init=init,
                stdout=writing[0],
                stderr=writing[1],
                socket=end,
                status=status,
                uid=body["uid"],
                gid=body["gid"],
                **{f"group{at}": group for at, group in enumerate(groups)},
            )
            return script

        try:
            for pipe in reading:
                os.set_blocking(pipe, False)
            syscalls.enter_namespace(init, syscalls.CLONE_NEWPID)  # for children only
            try:
                with _naming_children(messages.WORKER_NAME):
                    worker.pid, pidfd, status = zygotes.fork_prepared(make, environment, clone_into)
            finally:
                syscalls.enter_namespace(self._processes, syscalls.CLONE_NEWPID)
        except BaseException:
            _close(*reading)
            raise
        finally:
            _close(*writing)
        self._workers[worker.pid] = worker
        self._by_key[worker.cell, worker.key] = worker
        for pipe in worker.pipes:
            worker.watched.add(pipe)
            self._loop.watch(pipe, functools.partial(self._request_output, worker, pipe))
        return ForkedWorker(worker, pidfd, status)

    def _make_worker_script(self, kind: WorkerKind) -> PreparedScript:
        program = ProgramSpec(
            arguments=[],
            environment={},
            folder=_bytes(kind.folder),
            uid=Slot("uid"),
            gid=Slot("gid"),
            capabilities="none",
            open_files=kind.open_files,
            is_trusted=False,
        )
        return PreparedScript(
            exec_setup.script(
                program,
                self._system_calls,
                (Slot("stdout"), Slot("stderr")),
                [Slot(f"group{at}") for at in range(kind.groups)],
                [Slot("socket"), Slot("status")],
                namespaces=Slot("init"),
            )
        )

    # Output

    def _request_output(self, worker: LaunchedWorker, pipe: int) -> None:
        """The worker has printed something, or closed a stream."""
        if not output_pumps.has_data(pipe):
            worker.watched.discard(pipe)
            self._loop.forget(pipe)
            return
        self._request_log_folder(worker)

    def _request_log_folder(self, worker: LaunchedWorker) -> None:
        self._forget_pipes(worker)
        if not worker.has_requested:
            worker.has_requested = True
            self._reply({"cell": worker.cell, "output": worker.key}, None)

    def _move_output(self, message: messages.LauncherMessage) -> None:
        """Store its output in the folder that came with the request, by a process in the groups that did, or
        if it has ended at once. Without a folder it is dropped."""
        body, entry_fds = message.body, message.descriptors[:]
        logs = entry_fds.pop(0) if body["has_logs"] else self._no_folder
        clone_into = entry_fds.pop(0) if body["clone_into"] else None
        worker = self._by_key.get((body["cell"], body["key"]))
        if worker is not None and worker.pipes and worker.ending:
            self._drain(worker, logs)
        elif worker is not None and worker.pipes:
            self._forget_pipes(worker)
            own, other = socket.socketpair()
            with other:
                pid, pidfd = syscalls.clone(0, clone_into)
                if pid == 0:
                    _serve_output(worker, logs, other, entry_fds)
            os.close(pidfd)
            _close(*worker.pipes)
            worker.pipes = []
            worker.output = own
            self._loop.watch(own.fileno(), functools.partial(self._read_output_end, worker))
        self._reply({"id": body["id"]}, None)

    def _request_drain(self, worker: LaunchedWorker) -> None:
        assert worker.output is not None
        try:
            worker.output.send(_DRAIN)
        except OSError:
            self._report(worker)  # it was killed with the cell

    def _read_output_end(self, worker: LaunchedWorker) -> None:
        """It has stored what there was at the end of the worker, or is gone."""
        assert worker.output is not None
        try:
            data = worker.output.recv(1)
        except OSError:
            data = b""
        if not data:
            self._loop.forget(worker.output.fileno())
            worker.output.close()
            worker.output = None
        if worker.ending:
            self._report(worker)

    def _drain(self, worker: LaunchedWorker, logs: int) -> None:
        """The worker has ended: store what nobody has read, and report its exit."""
        for pipe, stream in zip(worker.pipes, _STREAMS, strict=True):
            if output_pumps.has_data(pipe):
                pump = OutputPump(pipe, logs, stream, worker.log_bytes)
                pump.drain()
                pump.close()
        self._report(worker)

    def _report(self, worker: LaunchedWorker) -> None:
        self._forget(worker)
        self._reply({"cell": worker.cell, "exited": worker.key, **worker.ending}, None)

    def _forget(self, worker: LaunchedWorker) -> None:
        self._forget_pipes(worker)
        self._workers.pop(worker.pid, None)
        self._by_key.pop((worker.cell, worker.key), None)
        self._unstored.pop(worker.cell, None)
        _close(*worker.pipes)
        worker.pipes = []
        if worker.output is not None:
            self._loop.forget(worker.output.fileno())
            worker.output.close()  # it goes on with what others of the cell may still print
            worker.output = None

    def _forget_pipes(self, worker: LaunchedWorker) -> None:
        while worker.watched:
            self._loop.forget(worker.watched.pop())


@contextlib.contextmanager
def _naming_children(name: bytes) -> Iterator[None]:
    """Children have `name` from their birth on: so an agent knows what a launcher leaves that is killed right
    then."""
    syscalls.set_name(name)
    try:
        yield
    finally:
        syscalls.set_name(messages.LAUNCHER_NAME)


def _serve_output(worker: LaunchedWorker, folder: int, end: socket.socket, groups: list[int]) -> NoReturn:
    """The main function of an output process: until both streams have ended."""
    try:
        for group in groups:
            os.write(group, b"0")
        syscalls.set_name(messages.OUTPUT_NAME)
        control, logs, *pipes = _only(end.fileno(), folder, *worker.pipes)
        loop = poll_loop.PollLoop()
        pumps = [
            OutputPump(pipe, logs, stream, worker.log_bytes)
            for pipe, stream in zip(pipes, _STREAMS, strict=True)
        ]

        def move(pump: OutputPump) -> None:
            pump.move()
            if pump.has_ended:
                loop.forget(pump.pipe)

        def drain() -> None:
            if not os.read(control, 1):
                loop.forget(control)
                return
            for pump in pumps:
                if not pump.has_ended:
                    pump.drain()
            os.write(control, _DRAIN)

        loop.watch(control, drain)
        for pump in pumps:
            loop.watch(pump.pipe, functools.partial(move, pump))
        while not all(pump.has_ended for pump in pumps):
            loop.run_once()
    except BaseException:  # noqa: BLE001, S110 - it must not come back into the launcher's loop
        pass
    os._exit(0)


def _only(*retained: int) -> list[int]:
    """Close all descriptors but the standard ones and `retained`, whose new numbers are returned."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in retained]
    for number, each in enumerate(high, start=exec_setup.FIRST_PASSED):
        os.dup2(each, number, inheritable=False)
    syscalls.close_from(exec_setup.FIRST_PASSED + len(retained))
    return list(range(exec_setup.FIRST_PASSED, exec_setup.FIRST_PASSED + len(retained)))


def _reserve_low_descriptors() -> bool:
    """Occupy the numbers that children renumber to, and put the program of inits at its own. False where it
    cannot be had."""
    program = pause.open_program()
    while True:
        number = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        if number >= _PROGRAM:
            os.close(number)
            break
    if program is None:
        return False
    duplicate = fcntl.fcntl(program, fcntl.F_DUPFD_CLOEXEC, _PROGRAM)
    os.close(program)
    if duplicate != _PROGRAM:
        os.close(duplicate)
        return False
    return True


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
