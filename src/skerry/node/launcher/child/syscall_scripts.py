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
import mmap
import os
import struct
from typing import Final, NamedTuple

from skerry.node.kernel import syscalls
from skerry.node.kernel.syscalls import StepFailed

_CLONE_VM: Final = 0x100
_CLONE_VFORK: Final = 0x4000
_CLONE_CLEAR_SIGHAND: Final = 0x100000000

# Name: number on x86_64, number on aarch64.
_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "capset": (126, 91),
    "chdir": (80, 49),
    "close_range": (436, 436),
    "dup3": (292, 24),
    "execve": (59, 221),
    "exit_group": (231, 94),
    "ioctl": (16, 29),
    "openat": (257, 56),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "read": (0, 63),
    "rt_sigprocmask": (14, 135),
    "sched_setaffinity": (203, 122),
    "sendto": (44, 206),
    "setpriority": (141, 140),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "umask": (95, 166),
    "unshare": (272, 97),
    "write": (1, 64),
}

# A call as the instructions below read it: number, five arguments, result, and the address of the call that
# follows if this one fails.
_CALL: Final = struct.Struct("=Q5QqQ")
_COLUMN: Final = 1 if syscalls.MACHINE == "aarch64" else 0
_NO_RESULT: Final = -(1 << 63)
_FAILED_FROM: Final = -4095
_ALL: Final = (1 << 64) - 1
# After these, the rest of the PATH is still tried.
_NOT_HERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)

# f(clone arguments, their size, first call): clone3; the parent returns its result; the child runs the calls
# and
# never returns. It uses no stack.
_INSTRUCTIONS: Final = {
    "x86_64": bytes.fromhex(
        "b8b3010000"  # mov   eax, 435
        "0f05"  # syscall
        "4885c0"  # test  rax, rax
        "7401"  # jz    child
        "c3"  # ret
        "4889d3"  # child: mov rbx, rdx
        "488b03"  # next: mov rax, [rbx]
        "488b7b08"  # mov   rdi, [rbx+8]
        "488b7310"  # mov   rsi, [rbx+16]
        "488b5318"  # mov   rdx, [rbx+24]
        "4c8b5320"  # mov   r10, [rbx+32]
        "4c8b4328"  # mov   r8, [rbx+40]
        "0f05"  # syscall
        "48894330"  # mov   [rbx+48], rax
        "488b4b38"  # mov   rcx, [rbx+56]
        "4883c340"  # add   rbx, 64
        "483d01f0ffff"  # cmp   rax, -4095
        "480f43d9"  # cmovae rbx, rcx
        "ebcf"  # jmp   next
    ),
    "aarch64": bytes.fromhex(
        "683680d2"  # mov   x8, #435
        "010000d4"  # svc   #0
        "400000b4"  # cbz   x0, child
        "c0035fd6"  # ret
        "f30302aa"  # child: mov x19, x2
        "680240a9"  # next: ldp x8, x0, [x19]
        "610a41a9"  # ldp   x1, x2, [x19, #16]
        "631242a9"  # ldp   x3, x4, [x19, #32]
        "010000d4"  # svc   #0
        "651e40f9"  # ldr   x5, [x19, #56]
        "601a00f9"  # str   x0, [x19, #48]
        "73020191"  # add   x19, x19, #64
        "1ffc3fb1"  # cmn   x0, #4095
        "b320939a"  # csel  x19, x5, x19, hs
        "f7ffff17"  # b     next
    ),
}
_MEMORY_BYTES: Final = 1024 * 1024  # more than any message can require
_POINTER: Final = struct.Struct("=Q")

Argument = int | bytes | tuple[bytes, ...]


class _Call(NamedTuple):
    step: str
    number: int
    arguments: tuple[Argument, ...]
    is_last: bool  # if it succeeds, nothing comes after it; if not, the next is tried


class SyscallScript:
    """System calls in order. A text argument is passed as the address of a NUL-terminated copy, and several
    texts as that of their addresses."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def call(self, step: str, name: str, *arguments: int | bytes) -> None:
        """One that must succeed; `step` names its purpose in a word or two."""
        self._calls.append(_Call(step, _NUMBERS[name][_COLUMN], arguments, False))

    def exec(self, paths: list[bytes], arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
        """Execute the first program of `paths` that works. The end of a script, and only for `spawn`."""
        vectors = tuple(arguments), tuple(b"%s=%s" % item for item in environment.items())
        for path in paths:
            self._calls.append(_Call("exec", _NUMBERS["execve"][_COLUMN], (path, *vectors), True))

    def perform(self) -> None:
        """Make the calls in this process. Raises StepFailed at the first that fails."""
        for step, number, arguments, _ in self._calls:
            syscalls.call(step, number, *arguments)

    def spawn(self, stage: ScriptMemory, clone_into: int | None) -> tuple[int, int]:
        """Make the calls in a new process, started in the cgroup whose folder is open as `clone_into`.

        Returns its pid and a pidfd once it has executed its program. Raises StepFailed, and then there is no
        process.
        """
        pid, pidfd, results = stage.play(self._calls, clone_into)
        failure = _failure(self._calls, results)
        if failure is not None:
            os.waitpid(pid, 0)
            os.close(pidfd)
            raise failure
        return pid, pidfd


class ScriptMemory:
    """The machine code, and the memory of a list while a child runs it. One at a time."""

    def __init__(self) -> None:
        self._memory = _map(_MEMORY_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        code = _map(mmap.PAGESIZE)
        instructions = _INSTRUCTIONS[syscalls.MACHINE]
        code[: len(instructions)] = instructions
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        syscalls.make_executable(address, mmap.PAGESIZE)
        self._code = code
        # With the interpreter lock held: the parent of a child that shares its memory must not run.
        self._enter = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(
            address
        )

    def play(self, calls: list[_Call], clone_into: int | None) -> tuple[int, int, list[int]]:
        """Run `calls` in a child; returns the result of each, or _NO_ANSWER."""
        self._lay_out(calls)
        pid, pidfd = syscalls.clone_by(
            lambda arguments: self._enter(arguments, len(arguments), self._base),
            _CLONE_VM | _CLONE_VFORK | _CLONE_CLEAR_SIGHAND,
            clone_into,
        )
        results = [_CALL.unpack_from(self._memory, at * _CALL.size)[6] for at in range(len(calls))]
        return pid, pidfd, results

    def _lay_out(self, calls: list[_Call]) -> None:
        last = len(calls) * _CALL.size  # of the call that exits
        free = last + _CALL.size

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
            if_failed = (at + 1) * _CALL.size if call.is_last else last
            _CALL.pack_into(
                self._memory, at * _CALL.size, call.number, *values, _NO_RESULT, self._base + if_failed
            )
        _CALL.pack_into(self._memory, last, _NUMBERS["exit_group"][_COLUMN], 127, 0, 0, 0, 0, 0, 0)


def _map(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _failure(calls: list[_Call], results: list[int]) -> StepFailed | None:
    """Why the child did not complete its list; None if it did, or was killed."""
    execs: list[int] = []
    for call, result in zip(calls, results, strict=True):
        if result == _NO_RESULT:
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
