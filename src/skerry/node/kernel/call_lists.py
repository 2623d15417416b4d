"""System calls as a list in memory, and the machine instructions by which a new process makes them.

The child of the instructions shares the memory of its parent, runs no interpreter and uses no stack: it makes
one call of the list after the other, and stores their results there. The launcher runs programs so
(`skerry.node.launcher.child.syscall_scripts`), and the agent makes processes that only wait
(`skerry.node.kernel.waiting_processes`).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import Final

from skerry.node.kernel import syscalls

_CLONE_VM: Final = 0x100
_CLONE_CLEAR_SIGHAND: Final = 0x100000000
# The child has the default action for each signal: none of its parent's handlers runs in it.
SHARED_MEMORY: Final = _CLONE_VM | _CLONE_CLEAR_SIGHAND

# Name: number on x86_64, number on aarch64.
_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "capset": (126, 91),
    "chdir": (80, 49),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup3": (292, 24),
    "execve": (59, 221),
    "execveat": (322, 281),
    "exit_group": (231, 94),
    "ioctl": (16, 29),
    "mount": (165, 40),
    "move_mount": (429, 429),
    "openat": (257, 56),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "read": (0, 63),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "sched_setaffinity": (203, 122),
    "sendto": (44, 206),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "socket": (41, 198),
    "umask": (95, 166),
    "unshare": (272, 97),
    "write": (1, 64),
}

# A call as the instructions below read it: number, five arguments, result, and the address of the call that
# follows if this one fails.
CALL: Final = struct.Struct("=Q5QqQ")
NO_RESULT: Final = -(1 << 63)
_COLUMN: Final = 1 if syscalls.MACHINE == "aarch64" else 0

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


def number_of(name: str) -> int:
    """The number of a system call on this machine."""
    return _NUMBERS[name][_COLUMN]


def map_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def map_instructions() -> tuple[mmap.mmap, int]:
    """The instructions, executable, and their address, which is valid as long as the memory is referenced."""
    code = map_memory(mmap.PAGESIZE)
    instructions = _INSTRUCTIONS[syscalls.MACHINE]
    address = address_of(code)
    code[: len(instructions)] = instructions
    syscalls.make_executable(address, mmap.PAGESIZE)
    return code, address


def address_of(memory: mmap.mmap) -> int:
    """The memory stays mapped as long as it is referenced."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
