"""The agent's side of the launcher and of cell inits.

What goes over the sockets is built and read here; what happens at the other ends is `skerry.node.launcher`.
`skerry.node.cells` decides when an init is made and what is started in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

from skerry.model.cells import Sandbox


class Entrance(Protocol):
    """The way into a cgroup, as open descriptors that stay the caller's."""

    @property
    def clone_into(self) -> int | None:
        """A folder of the v2 tree to be born in."""
        ...

    @property
    def procs(self) -> tuple[int, ...]:
        """`cgroup.procs` of other hierarchies, which the new process writes itself into before all else."""
        ...


@dataclass(frozen=True, slots=True)
class InitSpec:
    """The namespaces of a cell."""

    host_name: str
    isolates_processes: bool = True  # own pid, mount, ipc and uts namespaces
    isolates_network: bool = False  # own network namespace, with loopback up
    hidden: tuple[str, ...] = ()  # existing paths that nothing in the cell may see
    tmp_mb: int = 64  # size of /tmp, of /var/tmp and of /dev/shm


@dataclass(frozen=True, slots=True)
class StartSpec:
    """An executable to start in a cell."""

    key: str  # what the init calls it when it tells of its end
    command: str  # run by /bin/sh, unless the sandbox has arguments
    sandbox: Sandbox
    uid: int  # the cell's own, used where the sandbox names none
    gid: int
    log_bytes: int  # kept of each stream


@dataclass(frozen=True, slots=True)
class Started:
    """An executable whose program runs, or has run already."""

    pid: int  # as the node sees it
    start_time: int  # in ticks since boot: with the pid, a name that is not used again
    pidfd: int = field(repr=False)

    def close(self) -> None:
        os.close(self.pidfd)


@dataclass(frozen=True, slots=True)
class Exited:
    """The main process of an executable ended; `exit.json` in its folder says the same."""

    key: str
    at: float
    code: int | None
    signal: int | None
