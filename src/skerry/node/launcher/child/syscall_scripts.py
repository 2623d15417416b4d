"""A list of system calls that a new process makes, to be another program at the end of it.

Between a fork and an exec an interpreter is slow: its page tables are copied, its pages are faulted in again
one by one, and every call goes through it. That is 1.5 ms for what the kernel does in 0.1 ms. So the child of
`SyscallScript.spawn` runs no Python. It shares the memory of its parent, which sleeps until the child has
become its program or is gone, as vfork does, and a few instructions, the same for every list, make one call
after the other and write down what each answered. Nothing but this list happens in the child, and when
`spawn` returns it is known whether all of it worked.

`perform` makes the same calls in the process that asks, for a child that stays in Python.
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
    "sendto": (44, 206),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "umask": (95, 166),
    "unshare": (272, 97),
    "write": (1, 64),
}

# A call as the instructions below find it: number, five arguments, place of the answer, and the address of
# the call that comes next if this one fails.
_CALL: Final = struct.Struct("=Q5QqQ")
_COLUMN: Final = 1 if syscalls.MACHINE == "aarch64" else 0
_NO_ANSWER: Final = -(1 << 63)
_FAILED_FROM: Final = -4095
_ALL: Final = (1 << 64) - 1
# The rest of the path is still worth a look after these.
_NOT_HERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)

# f(clone arguments, their size, first call): clone3; the parent returns what it gave; the child goes through
# the calls and never returns. It touches no stack.
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
_ROOM: Final = 1024 * 1024  # above what a message can ask for, however it is divided
_POINTER: Final = struct.Struct("=Q")

Argument = int | bytes | tuple[bytes, ...]


class _Call(NamedTuple):
    step: str
    number: int
    arguments: tuple[Argument, ...]
    is_last: bool  # if it works, nothing comes after it; if not, the next is tried


class SyscallScript:
    """System calls in order. A text among the arguments is passed as the address of a copy that ends with
    NUL, and several texts as that of their addresses."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def call(self, step: str, name: str, *arguments: int | bytes) -> None:
        """One that must work; `step` is what it is for, in a word or two."""
        self._calls.append(_Call(step, _NUMBERS[name][_COLUMN], arguments, False))

    def exec(self, paths: list[bytes], arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
        """Be the first of the programs at `paths` that runs. The end of a script, and only for `spawn`."""
        words = tuple(arguments), tuple(b"%s=%s" % item for item in environment.items())
        for path in paths:
            self._calls.append(_Call("exec", _NUMBERS["execve"][_COLUMN], (path, *words), True))

    def perform(self) -> None:
        """Make the calls here and now. Raises StepFailed at the first that fails."""
        for step, number, arguments, _ in self._calls:
            syscalls.call(step, number, *arguments)

    def spawn(self, stage: ScriptMemory, clone_into: int | None) -> tuple[int, int]:
        """Make the calls in a new process, born in the cgroup whose folder is open as `clone_into`.

        Gives its pid and a pidfd once it is its program. Raises StepFailed, and then there is no process.
        """
        pid, pidfd, answers = stage.play(self._calls, clone_into)
        failure = _failure(self._calls, answers)
        if failure is not None:
            os.waitpid(pid, 0)
            os.close(pidfd)
            raise failure
        return pid, pidfd


class ScriptMemory:
    """The instructions, and the memory in which a list lies while a child goes through it. One at a time."""

    def __init__(self) -> None:
        self._memory = _map(_ROOM)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        code = _map(mmap.PAGESIZE)
        instructions = _INSTRUCTIONS[syscalls.MACHINE]
        code[: len(instructions)] = instructions
        place = ctypes.addressof(ctypes.c_char.from_buffer(code))
        syscalls.make_executable(place, mmap.PAGESIZE)
        self._code = code
        # With the interpreter lock held: the parent of a child that shares its memory does nothing at all.
        self._enter = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(
            place
        )

    def play(self, calls: list[_Call], clone_into: int | None) -> tuple[int, int, list[int]]:
        """A child that goes through `calls`; what each was answered, or _NO_ANSWER."""
        self._lay_out(calls)
        pid, pidfd = syscalls.clone_by(
            lambda arguments: self._enter(arguments, len(arguments), self._base),
            _CLONE_VM | _CLONE_VFORK | _CLONE_CLEAR_SIGHAND,
            clone_into,
        )
        answers = [_CALL.unpack_from(self._memory, at * _CALL.size)[6] for at in range(len(calls))]
        return pid, pidfd, answers

    def _lay_out(self, calls: list[_Call]) -> None:
        last = len(calls) * _CALL.size  # of the call that ends a child for which there is nothing else to do
        free = last + _CALL.size

        def keep(data: bytes) -> int:
            nonlocal free
            begins, free = free, free + (len(data) + 7 & ~7)
            if free > _ROOM:
                raise StepFailed(errno.E2BIG, "exec")
            self._memory[begins : begins + len(data)] = data
            return self._base + begins

        def value_of(argument: Argument) -> int:
            if isinstance(argument, bytes):
                return keep(argument + b"\0")
            if isinstance(argument, tuple):
                return keep(b"".join(_POINTER.pack(keep(text + b"\0")) for text in argument) + bytes(8))
            return argument & _ALL

        known: dict[Argument, int] = {}  # the words of a program are the same wherever it may be
        for at, call in enumerate(calls):
            values = []
            for argument in call.arguments:
                if not isinstance(argument, tuple):
                    values.append(value_of(argument))
                    continue
                if argument not in known:
                    known[argument] = value_of(argument)
                values.append(known[argument])
            values += [0] * (5 - len(values))
            if_failed = (at + 1) * _CALL.size if call.is_last else last
            _CALL.pack_into(
                self._memory, at * _CALL.size, call.number, *values, _NO_ANSWER, self._base + if_failed
            )
        _CALL.pack_into(self._memory, last, _NUMBERS["exit_group"][_COLUMN], 127, 0, 0, 0, 0, 0, 0)


def _map(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _failure(calls: list[_Call], answers: list[int]) -> StepFailed | None:
    """Why the child did not get to the end of its list; None if it did, or was killed on the way."""
    execs: list[int] = []
    for call, answer in zip(calls, answers, strict=True):
        if answer == _NO_ANSWER:
            return None
        if _FAILED_FROM <= answer < 0:
            if not call.is_last:
                return StepFailed(-answer, call.step)
            execs.append(-answer)
    if not execs:
        return None
    telling = [number for number in execs if number not in _NOT_HERE]
    if telling:
        return StepFailed(telling[0], "exec")
    return StepFailed(errno.EACCES if errno.EACCES in execs else execs[-1], "exec")
