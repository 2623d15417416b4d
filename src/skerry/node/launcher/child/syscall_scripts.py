"""A list of system calls that a new process runs between fork and exec, without an interpreter.

Between a fork and an exec an interpreter is slow: its page tables are copied, its pages are faulted in again
one by one, and every call goes through it. That is 1.5 ms for what the kernel does in 0.1 ms. So the child of
`SyscallScript.spawn` runs no Python. It shares the memory of its parent, which sleeps until the child has
executed its program or is gone, as with vfork, and a few machine instructions, the same for every list, make
one call after the other and store their results. Nothing else happens in the child, and when `spawn` returns
it is known whether all calls succeeded.

`perform` makes the same calls in the calling process, for a child that stays in Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final, NamedTuple

from skerry.node.kernel import call_lists, mount_flags, syscalls
from skerry.node.kernel.call_lists import CALL, NO_RESULT, number_of
from skerry.node.kernel.syscalls import StepFailed

_CLONE_VFORK: Final = 0x4000

RESULT: Final = struct.Struct("=q")
RESULT_AT: Final = 48
_FAILED_FROM: Final = -4095
_ALL: Final = (1 << 64) - 1
# After these, the rest of the PATH is still tried.
_NOT_HERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)

_MEMORY_BYTES: Final = 1024 * 1024  # more than any message can require
_POINTER: Final = struct.Struct("=Q")

Argument = int | bytes | tuple[bytes, ...]


class ScriptCall(NamedTuple):
    step: str
    number: int
    arguments: tuple[Argument, ...]
    is_last: bool  # if it succeeds, nothing comes after it; if not, the next is tried


EXIT: Final = number_of("exit_group")


class SyscallScript:
    """System calls in order. A text argument is passed as the address of a NUL-terminated copy, and several
    texts as that of their addresses."""

    def __init__(self) -> None:
        self.calls: list[ScriptCall] = []

    def call(self, step: str, name: str, *arguments: int | bytes) -> None:
        """One that must succeed; `step` names its purpose in a word or two."""
        self.calls.append(ScriptCall(step, number_of(name), arguments, False))

    def exec_file(self, file: int, name: bytes) -> None:
        """Execute the program that is open as `file`, with its name as the only argument. The end of a
        script, and only for `PreparedScript.spawn`."""
        number, flags = number_of("execveat"), mount_flags.AT_EMPTY_PATH
        self.calls.append(ScriptCall("exec", number, (file, b"", (name,), (), flags), True))

    def exec(self, paths: list[bytes], arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
        """Execute the first program of `paths` that works. The end of a script, and only for `spawn`."""
        vectors = tuple(arguments), tuple(b"%s=%s" % item for item in environment.items())
        for path in paths:
            self.calls.append(ScriptCall("exec", number_of("execve"), (path, *vectors), True))

    def perform(self) -> None:
        """Make the calls in this process. Raises StepFailed at the first that fails."""
        for step, number, arguments, _ in self.calls:
            syscalls.call(step, number, *arguments)

    def spawn(self, stage: ScriptMemory, clone_into: int | None) -> tuple[int, int]:
        """Make the calls in a new process, started in the cgroup whose folder is open as `clone_into`.

        Returns its pid and a pidfd once it has executed its program. Raises StepFailed, and then there is no
        process.
        """
        pid, pidfd, results = stage.play(self.calls, clone_into)
        failed = failure(self.calls, results)
        if failed is not None:
            os.waitpid(pid, 0)
            os.close(pidfd)
            raise failed
        return pid, pidfd


class ScriptMemory:
    """The machine code, and the memory of a list while a child runs it. One at a time."""

    def __init__(self) -> None:
        self._memory = call_lists.map_memory(_MEMORY_BYTES)
        self._base = call_lists.address_of(self._memory)
        self._code, address = call_lists.map_instructions()
        # With the interpreter lock held: the parent of a child that shares its memory must not run.
        self._enter = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(
            address
        )

    def play(self, calls: list[ScriptCall], clone_into: int | None) -> tuple[int, int, list[int]]:
        """Run `calls` in a child; returns the result of each, or NO_RESULT."""
        self._lay_out(calls)
        pid, pidfd = self.clone(self._base, 0, clone_into)
        results = [CALL.unpack_from(self._memory, at * CALL.size)[6] for at in range(len(calls))]
        return pid, pidfd, results

    def clone(self, first: int, flags: int, clone_into: int | None) -> tuple[int, int]:
        """A child with `flags` that runs the list at the address `first`."""
        return syscalls.clone_by(
            lambda arguments: self._enter(arguments, len(arguments), first),
            flags | call_lists.SHARED_MEMORY | _CLONE_VFORK,
            clone_into,
        )

    def _lay_out(self, calls: list[ScriptCall]) -> None:
        last = len(calls) * CALL.size  # of the call that exits
        free = last + CALL.size

        def store(data: bytes) -> int:
            nonlocal free
            begins, free = free, free + (len(data) + 7 & ~7)
            if free > _MEMORY_BYTES:
                raise StepFailed(errno.E2BIG, "exec")
            self._memory[begins : begins + len(data)] = data
            return self._base + begins

        def value_of(argument: Argument) -> int:
            if isinstance(argument, bytes):
                return store(argument + b"\0")
            if isinstance(argument, tuple):
                return store(b"".join(_POINTER.pack(store(text + b"\0")) for text in argument) + bytes(8))
            return argument & _ALL

        stored: dict[Argument, int] = {}  # the arguments of a program are the same for each path
        for at, call in enumerate(calls):
            values = []
            for argument in call.arguments:
                if not isinstance(argument, tuple):
                    values.append(value_of(argument))
                    continue
                if argument not in stored:
                    stored[argument] = value_of(argument)
                values.append(stored[argument])
            values += [0] * (5 - len(values))
            if_failed = (at + 1) * CALL.size if call.is_last else last
            CALL.pack_into(
                self._memory, at * CALL.size, call.number, *values, NO_RESULT, self._base + if_failed
            )
        CALL.pack_into(self._memory, last, EXIT, 127, 0, 0, 0, 0, 0, 0)


def failure(calls: list[ScriptCall], results: list[int]) -> StepFailed | None:
    """Why the child did not complete its list; None if it did, or was killed."""
    execs: list[int] = []
    for call, result in zip(calls, results, strict=True):
        if result == NO_RESULT:
            return None
        if _FAILED_FROM <= result < 0:
            if not call.is_last:
                return StepFailed(-result, call.step)
            execs.append(-result)
    if not execs:
        return None
    telling = [number for number in execs if number not in _NOT_HERE]
    if telling:
        return StepFailed(telling[0], "exec")
    return StepFailed(errno.EACCES if errno.EACCES in execs else execs[-1], "exec")
