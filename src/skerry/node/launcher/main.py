"""The launcher: a small process of one thread that forks the inits of cells, and nothing else.

The agent starts it, speaks to it over an inherited socket, and may start another one at any time: no cell
depends on it. It ends when the agent does. Forking here and not in the agent keeps the agent's threads,
sockets and secrets out of every cell, and costs no start of an interpreter per cell. One that is a zygote has
imported what the workers of functions begin with, which are forks of it as the inits are.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import sys
from typing import NoReturn

from skerry.node.launcher import capabilities, init, kernel, loops, messages, seccomp, zygotes
from skerry.node.launcher.scripts import Stage

_OWN = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS


def main(descriptor: str, entry: str = "", *preload: str) -> NoReturn:
    """Serve the agent at the other end of the socket that was inherited as `descriptor`; with an `entry`, as
    a zygote."""
    gc.disable()
    if entry:
        zygotes.prepare(entry, preload)
    loops.take_default_signals()
    loops.block_signals()
    loops.listen_to_children()
    kernel.set_name(b"skerry-launcher")
    kernel.set_subreaper(True)  # what a cell without namespaces leaves behind when its init is gone
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    capabilities.begin()
    os.setgroups(())
    launcher = Launcher(socket.socket(fileno=int(descriptor)), kernel.Filter(seccomp.default_filter()))
    gc.freeze()  # no collection ever touches, and so copies, a page that the inits share
    launcher.run()


class Launcher:
    """The loop. One request is handled at a time, and takes about a millisecond."""

    def __init__(self, agent: socket.socket, system_calls: kernel.Filter) -> None:
        self._agent = agent
        self._system_calls = system_calls
        self._stage = Stage()
        self._self = os.pidfd_open(os.getpid())
        self._loop = loops.Loop()
        self._loop.watch(agent.fileno(), self._hear)
        self._loop.watch_children(_reap)

    def run(self) -> NoReturn:
        self._agent.setblocking(True)  # answers are small and the agent reads them; requests are waited for
        self._answer({"ready": True})
        while True:
            self._loop.turn()

    def _hear(self) -> None:
        try:
            message = messages.receive(self._agent)
        except messages.Garbled:
            return
        except OSError:
            message = None
        if message is None:
            _reap()  # what is dead by now would be left to whoever adopts our children
            sys.exit(0)
        try:
            self._make_init(message)
        except OSError as error:
            step = getattr(error, "step", "make an init")
            self._answer({"id": message.body.get("id"), "failed": step, "errno": error.errno or errno.EIO})
        except (LookupError, TypeError, ValueError) as error:
            self._answer({"id": message.body.get("id"), "failed": repr(error), "errno": errno.EINVAL})
        finally:
            message.close()

    def _make_init(self, message: messages.Message) -> None:
        body = message.body
        agent_end, own_end, *entrance = message.descriptors
        network = entrance.pop(0) if body["network"] else None
        clone_into = entrance.pop(0) if body["clone_into"] else None
        flags = _OWN if body["isolates_processes"] else 0
        if body["isolates_network"] and network is None:
            flags |= kernel.CLONE_NEWNET
        pid, pidfd = kernel.clone(flags, clone_into)
        if pid == 0:
            ends = agent_end, own_end
            init.begin(body, self._self, ends, network, entrance, self._system_calls, self._stage)
        try:
            self._answer({"id": body["id"], "pid": pid}, [pidfd])
        finally:
            os.close(pidfd)

    def _answer(self, body: messages.Body, descriptors: list[int] | None = None) -> None:
        messages.send(self._agent, messages.encode(body), descriptors)


def _reap() -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
