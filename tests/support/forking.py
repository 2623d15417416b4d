"""Skerry processes forked from one parent that has imported all of it.

    process = fork_server.start(["up", "--data", folder], environment, output=log.fileno())
    assert process.wait(10) == 0

Importing is most of what a start of Skerry takes, and the suite starts hundreds. The forked process runs what
`python -m skerry` runs, with the arguments, environment, working folder and network namespace of the caller.
It behaves as a `subprocess.Popen` does, and is a child of the parent here. Where it matters that a program is
executed (its user, its terminal, its very start) tests use `tests.support.skerry.COMMAND`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.waiting import PATIENCE_S

_REPOSITORY = Path(__file__).resolve().parents[2]
_MAX_REQUEST = 1024 * 1024
_CODE = struct.Struct("i")


class ForkedProcess:
    """One process; its exit code comes through `status`."""

    def __init__(self, arguments: Sequence[str], pid: int, status: int) -> None:
        self.args = list(arguments)
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit code, None while it runs; a signal as a negative number."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            data = os.read(self._status, _CODE.size)
            os.close(self._status)
            self.returncode = int(_CODE.unpack(data)[0])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The parent. It imports Skerry when it is first asked for a process."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._parent: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the parent; without this, the first `start` does."""
        atexit.register(self.close)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._control, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST)
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=_REPOSITORY,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        if self._control is not None and self._parent is not None:
            self._control.close()
            self._parent.wait(PATIENCE_S)
            self._control = self._parent = None

    @property
    def pid(self) -> int | None:
        """Of the parent; None while there is none."""
        return None if self._parent is None else self._parent.pid

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], *output: int) -> ForkedProcess:
        """`skerry ARGUMENTS`, with `output` as its standard output and error; standard input is empty."""
        if self._control is None:
            self.open()
        assert self._control is not None
        request = json.dumps([list(arguments), dict(environment), os.getcwd()]).encode()
        ours, theirs = os.pipe()
        try:
            with open("/proc/thread-self/ns/net", "rb") as network, self._lock:
                descriptors = [theirs, network.fileno(), output[0], output[-1]]
                socket.send_fds(self._control, [request], descriptors)
                pid = int(self._control.recv(64))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return ForkedProcess(["skerry", *arguments], pid, ours)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], timeout: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """`skerry ARGUMENTS` to its end, with what it wrote."""
        with (
            os.fdopen(os.memfd_create("stdout"), "r+") as stdout,
            os.fdopen(os.memfd_create("stderr"), "r+") as stderr,
        ):
            process = self.start(arguments, environment, stdout.fileno(), stderr.fileno())
            try:
                code = process.wait(timeout)
            except BaseException:
                process.kill()
                process.wait()
                raise
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(process.args, code, stdout.read(), stderr.read())


fork_server = ForkServer()


def _serve(control: socket.socket) -> None:
    statuses: dict[int, int] = {}  # where the exit code of a child is to be written
    codes: dict[int, int] = {}  # of children that ended before that was known

    def reap(*_: Any) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        for pid in codes.keys() & statuses.keys():
            status = statuses.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(status, _CODE.pack(codes.pop(pid)))
            os.close(status)

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    is_imported = False
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 4)
        if not request:
            return
        if not is_imported:
            _import_everything()
            is_imported = True
        status, *others = descriptors
        pid = os.fork()
        if pid == 0:
            _be(*json.loads(request), *others)
        for descriptor in others:
            os.close(descriptor)
        statuses[pid] = status
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        reap()  # not twice at once
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        control.send(str(pid).encode())


def _import_everything() -> None:
    """What servers, nodes and commands import when they start."""
    import importlib

    from skerry.cli.main import VERBS

    for module in sorted({verb.module for verb in VERBS.values()}):
        importlib.import_module(module)
    for module in ("skerry.daemon.process", "skerry.daemon.roles", "skerry.daemon.server_role", "rich.table"):
        importlib.import_module(module)
    gc.freeze()  # collections in a fork leave these alone, and with them the pages that it shares


def _be(
    arguments: list[str], environment: dict[str, str], folder: str, network: int, output: int, errors: int
) -> NoReturn:
    from skerry.cli.main import main
    from skerry.node.kernel import namespaces

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python begins
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if not os.path.sameopenfile(network, own):
        namespaces.enter_namespace(network)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["skerry", *arguments]
    try:
        main()
        code: Any = 0
    except SystemExit as ending:
        code = ending.code
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        traceback.print_exc()
        code = 1
    _exit(code)


def _exit(code: Any) -> NoReturn:
    """As the interpreter exits, except that it does not take apart what was imported: that writes to every
    page shared with the parent, and takes longer than most commands."""
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
