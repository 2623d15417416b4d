"""What is requested of the launcher and of inits, and what they report.

Values only; `skerry.node.launcher.client` sends and receives them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from skerry.model.cells import RuntimeCommand, Sandbox

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the cell's own, and the one folder it can surely write to
    "LANG": "C.UTF-8",
}


class InitSpec(msgspec.Struct, frozen=True):
    """The namespaces of a cell."""

    host_name: str
    isolates_processes: bool = True  # own pid, mount, ipc and uts namespaces
    isolates_network: bool = False  # own network namespace, with loopback up
    tmp_mb: int = 64  # size of /tmp, of /var/tmp and of /dev/shm
    is_spare: bool = False  # created for any cell; until it enters one it ends with the launcher
    network: int | None = None  # descriptor of the network namespace to enter, instead of a new one


class StartSpec(msgspec.Struct, frozen=True):
    """An executable to start in a cell."""

    key: str  # its id in exit reports of the init
    command: str  # run by /bin/sh, unless the sandbox has arguments
    sandbox: Sandbox
    uid: int  # the cell's own, used where the sandbox has none
    gid: int
    log_bytes: int  # stored of each stream
    runtime: RuntimeCommand | None = None  # instead of the command: starts the executable and exits
    trusted: tuple[str, ...] = ()  # instead of the command: run as root, unconfined
    streams: tuple[int, ...] = ()  # stdin, stdout and stderr; none: the last two are logged
    socket: int | None = None  # a descriptor that it gets as number 3
    is_fork: bool = False  # instead of the command: a fork of the launcher's interpreter, without an exec
    logs: Path | None = None  # folder of its logs, if not its own


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """An executable whose program runs, or has run already."""

    pid: int  # on the node
    pidfd: int | None = field(repr=False)  # None: it has ended, and the pid may have been reused

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)


class ProcessExit(msgspec.Struct, frozen=True):
    """The main process of an executable ended; `exit.json` in its folder has the same, or will when the disk
    accepts it."""

    key: str
    at: float
    code: int | None
    signal: int | None


class RuntimeFailed(Exception):
    """The runtime exited with `code` without starting a container."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the runtime exited with {code}")
        self.code = code


class ZygoteSpec(msgspec.Struct, frozen=True):
    """What a launcher imports ahead, so that a process of a cell can be a fork of it without an exec."""

    interpreter: str  # of the same version as ours
    entry: str  # `module:function` that such a process runs, with the number of its socket
    preload: tuple[str, ...] = ()  # modules to import; missing ones are skipped
