"""A process in new namespaces that only waits, until they are set up and mounted somewhere.

Only a process with a single thread can move to a new user namespace, and the agent has many. It can create a
process that is in one from the beginning, though, and that need not run a program: the process shares the
memory of the agent, waits for the end of a pipe, and ends. It has no other descriptor, and ends with the
agent.

May be called in any thread: the interpreter lock is released meanwhile, since the kernel takes half a
millisecond to create a network.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from typing import Final

from skerry.node.kernel import call_lists
from skerry.node.kernel.syscalls import ALL, CLONE_PIDFD

_ARGUMENTS: Final = struct.Struct("=11Q")  # flags, pidfd, ..., the fifth: exit signal
_MEMORY_BYTES: Final = 1024
_ARGUMENTS_AT: Final = 512  # behind the calls
_RESULT_AT: Final = 768


@contextlib.contextmanager
def waiting_process(flags: int) -> Iterator[int]:
    """The id of a process that is in the new namespaces of `flags`, until the end of the block.

    Raises OSError if the kernel creates none.
    """
    memory = call_lists.map_memory(_MEMORY_BYTES)  # of the process, too, until it has ended
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            pid, pidfd = _create(memory, flags, reading)
        finally:
            os.close(reading)
    except BaseException:
        os.close(writing)
        raise
    try:
        yield pid
    finally:
        os.close(writing)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)


def _create(memory: mmap.mmap, flags: int, pipe: int) -> tuple[int, int]:
    base = call_lists.address_of(memory)
    # It closes its copies of our descriptors: with the writing end in it the pipe would never end.
    calls = (
        ("close_range", 0, pipe - 1, 0),
        ("close_range", pipe + 1, ALL, 0),
        ("read", pipe, base + _RESULT_AT, 1),  # returns when the pipe ends
        ("exit_group", 0, 0, 0),
    )
    end = base + (len(calls) - 1) * call_lists.CALL.size
    for at, (name, *values) in enumerate(calls):
        call_lists.CALL.pack_into(
            memory,
            at * call_lists.CALL.size,
            call_lists.number_of(name),
            *values,
            *(0, 0),
            call_lists.NO_RESULT,
            end,
        )
    flags |= call_lists.SHARED_MEMORY | CLONE_PIDFD
    _ARGUMENTS.pack_into(
        memory, _ARGUMENTS_AT, flags, base + _RESULT_AT, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0
    )
    pid = _instructions()(base + _ARGUMENTS_AT, _ARGUMENTS.size, base)
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    (pidfd,) = struct.unpack_from("=i", memory, _RESULT_AT)
    return pid, pidfd


@functools.cache
def _instructions() -> ctypes._FuncPointer:
    code, address = call_lists.map_instructions()
    function = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(address)
    function.memory = code  # type: ignore[attr-defined]  # stays mapped with the function
    return function
