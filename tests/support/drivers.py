"""Programs that tests have killed on the way, forked from one parent that has imported them already.

    done = drivers.run("tests.node.cells.driver", folder, root, "start.running", "1", text=script)
    assert done.returncode == -signal.SIGKILL

A driver is a module with `async def main(*arguments)`. It reads lines from standard input and writes what is
done to standard output; a `Death` kills it at a step of that, as `kill -9` would. It is in the network
namespace of whoever asks. Importing what an agent is made of takes longer than most of what it does here.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import structlog

from skerry.node.kernel import namespaces
from tests.support.waiting import PATIENCE_S

_REPOSITORY = Path(__file__).resolve().parents[2]
_MAX_REQUEST = 64 * 1024


class Death:
    """Counts one step, and dies of it."""

    def __init__(self, step: str, times: int) -> None:
        self.step = step
        self.left = times

    def __call__(self, step: str) -> None:
        self.left -= step == self.step
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Drivers:
    """The parent, and how it is asked for a child. Closing it ends it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=_REPOSITORY,
                pass_fds=[theirs.fileno()],
            )

    def run(self, module: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the driver `module` to its end; one at a time."""
        request = json.dumps([module, *arguments]).encode()
        with (
            open("/proc/thread-self/ns/net", "rb") as network,
            os.fdopen(os.memfd_create("script"), "r+") as script,
            os.fdopen(os.memfd_create("said"), "r+") as said,
        ):
            script.write(text)
            script.seek(0)
            socket.send_fds(self._control, [request], [script.fileno(), said.fileno(), network.fileno()])
            code = int(self._control.recv(_MAX_REQUEST))
            said.seek(0)
            return subprocess.CompletedProcess([module, *arguments], code, said.read())

    def close(self) -> None:
        self._control.close()
        self._parent.wait(PATIENCE_S)


def _serve(control: socket.socket) -> None:
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 3)
        if not request:
            return
        module, *arguments = json.loads(request)
        if module not in sys.modules:
            importlib.import_module(module)
            gc.freeze()  # collections in a fork leave alone what it shares
        pid = os.fork()
        if pid == 0:
            control.close()
            _be(module, arguments, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        control.send(str(os.waitstatus_to_exitcode(status)).encode())


def _be(module: str, arguments: list[str], script: int, said: int, network: int) -> NoReturn:
    if not os.path.sameopenfile(network, own := os.open("/proc/self/ns/net", os.O_RDONLY)):
        namespaces.enter_namespace(network)
    os.close(own)
    os.dup2(script, 0)
    os.dup2(said, 1)
    for descriptor in (script, said, network):
        os.close(descriptor)
    signal.alarm(int(2 * PATIENCE_S))  # if it neither dies nor ends
    try:
        asyncio.run(sys.modules[module].main(*arguments))
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        traceback.print_exc()
        os._exit(1)
    # Without taking apart what was imported, which takes longer than most drivers.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    # Logs would mix with what drivers say.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        _serve(asked)
