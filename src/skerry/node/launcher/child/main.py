"""The launcher: a small single-threaded process that only forks the inits of cells.

The agent starts it, talks to it over an inherited socket, and may start another one at any time: no cell
depends on it. It ends with the agent. Forking here and not in the agent keeps the agent's threads, sockets
and secrets out of every cell, and saves starting an interpreter per cell. A zygote has also imported what
function workers need, which are forks of it as the inits are.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import socket
import sys
from typing import NoReturn

from skerry.node.kernel import syscalls
from skerry.node.launcher.child import capabilities, init, messages, poll_loop, seccomp, zygotes
from skerry.node.launcher.child.cell_root import CellRoot, HostView
from skerry.node.launcher.child.syscall_scripts import ScriptMemory
from skerry.node.launcher.child.worker_cells import WorkerCells

# And a mount namespace, which is a copy of the root's.
_OWN = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


def main(descriptor: str, view: str, entry: str = "", *preload: str) -> NoReturn:
    """Serve the agent at the other end of the socket `descriptor`, with cells that have the host view `view`,
    in JSON; with an `entry`, as a zygote."""
    gc.disable()
    if entry:
        zygotes.prepare(entry, preload)
    poll_loop.reset_signals()
    poll_loop.block_signals()
    poll_loop.enable_child_events()
    syscalls.set_name(messages.LAUNCHER_NAME)
    syscalls.set_subreaper(True)  # for processes of a cell without namespaces whose init is gone
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    capabilities.begin()
    host = HostView(**json.loads(view))
    root = None
    if not host.is_whole:
        _leave_groups()
        root = CellRoot(host)
    launcher = LauncherProcess(
        socket.socket(fileno=int(descriptor)),
        root,
        syscalls.SeccompFilter(seccomp.default_filter()),
        # Their inits have ids that only a node with all of them has.
        makes_workers=bool(entry) and host.users == HostView().users,
    )
    gc.freeze()  # no collection ever touches, and so copies, a page that the inits share
    launcher.run()


def _leave_groups() -> None:
    """Without ids of their own, users may give up no groups, and those that they have give nothing here."""
    with open("/proc/self/setgroups") as file:
        if file.read().strip() == "allow":
            os.setgroups(())


class LauncherProcess:
    """The event loop. One request is handled at a time, and takes about a millisecond. Without a `root`,
    inits and what they run are isolated by nothing."""

    def __init__(
        self,
        agent: socket.socket,
        root: CellRoot | None,
        system_calls: syscalls.SeccompFilter,
        *,
        makes_workers: bool,
    ) -> None:
        self._agent = agent
        self._root = root
        self._system_calls = system_calls
        self._stage = ScriptMemory()
        self._self = os.pidfd_open(os.getpid())
        self._loop = poll_loop.PollLoop()
        self._loop.watch(agent.fileno(), self._read)
        self._cells: WorkerCells | None = None
        if root is not None and makes_workers:
            self._cells = WorkerCells(root, system_calls, self._stage, self._loop, self._reply)
        self._loop.watch_children(self._reap)

    def run(self) -> NoReturn:
        self._agent.setblocking(True)  # replies are small and the agent reads them
        self._reply({"ready": True, "pauses": self._cells is not None and self._cells.is_possible})
        while True:
            self._loop.run_once()

    def _read(self) -> None:
        try:
            message = messages.receive(self._agent)
        except messages.MalformedMessage:
            return
        except OSError:
            message = None
        if message is None:
            self._reap()  # dead children would be left to whoever adopts ours
            sys.exit(0)
        try:
            if self._cells is not None and "do" in message.body:
                self._cells.handle(message)
            else:
                self._make_init(message)
        except OSError as error:
            step = getattr(error, "step", "make an init")
            self._reply({"id": message.body.get("id"), "failed": step, "errno": error.errno or errno.EIO})
        except (LookupError, TypeError, ValueError) as error:
            self._reply({"id": message.body.get("id"), "failed": repr(error), "errno": errno.EINVAL})
        finally:
            message.close()

    def _make_init(self, message: messages.LauncherMessage) -> None:
        body = message.body
        agent_end, own_end, *entry_fds = message.descriptors
        network = entry_fds.pop(0) if body["network"] else None
        clone_into = entry_fds.pop(0) if body["clone_into"] else None
        flags = 0
        root = self._root
        if root is None:
            body |= {"isolates_processes": False, "isolates_network": False, "is_unconfined": True}
        elif body["isolates_processes"]:
            flags = _OWN
            root.refresh()
        else:
            root = None
        if body["isolates_network"] and network is None:
            flags |= syscalls.CLONE_NEWNET
        pid, pidfd = syscalls.clone(flags, clone_into)
        if pid == 0:
            ends = agent_end, own_end
            init.begin(body, self._self, ends, network, root, entry_fds, self._system_calls, self._stage)
        try:
            self._reply({"id": body["id"], "pid": pid}, [pidfd])
        finally:
            os.close(pidfd)

    def _reply(self, body: messages.MessageBody, descriptors: list[int] | None = None) -> None:
        messages.send(self._agent, messages.encode(body), descriptors)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._cells is not None:
                self._cells.ended(pid, status)
