"""The program of a worker's init: it waits, for as long as its namespaces are to exist.

An init in Python is a fork of the launcher, with a copy of every page that it writes to. A cell that runs one
worker needs none of what such an init does: the launcher starts the worker, receives its exit and mounts what
it needs. What is left is process 1 of the pid namespace, to which orphans fall. So this program of a few
instructions ignores SIGCHLD, by which the kernel reaps its children, and sleeps. It has no privileges.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from skerry.node.kernel import syscalls
from skerry.node.launcher.child import messages

_MFD_EXEC: Final = 0x10  # since Linux 6.3; older ones know no other files in memory
_ADDRESS: Final = 0x400000
_ELF: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_HEAD_BYTES: Final = _ELF.size + _SEGMENT.size
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
# Sets its name, which follows the instructions; cannot be traced; sleeps until a signal, for ever.
_INSTRUCTIONS: Final = {
    "x86_64": bytes.fromhex(
        "b89d000000"  # mov   eax, 157  (prctl)
        "bf0f000000"  # mov   edi, 15   (PR_SET_NAME)
        "488d3522000000"  # lea   rsi, [rip+name]
        "0f05"  # syscall
        "b89d000000"  # mov   eax, 157
        "bf04000000"  # mov   edi, 4    (PR_SET_DUMPABLE)
        "31f6"  # xor   esi, esi
        "0f05"  # syscall
        "b80f010000"  # sleep: mov eax, 271  (ppoll)
        "31ff"  # xor   edi, edi
        "31f6"  # xor   esi, esi
        "31d2"  # xor   edx, edx
        "4531d2"  # xor   r10d, r10d
        "0f05"  # syscall
        "ebee"  # jmp   sleep
    ),
    "aarch64": bytes.fromhex(
        "e00180d2"  # mov   x0, #15
        "c1010010"  # adr   x1, name
        "e81480d2"  # mov   x8, #167
        "010000d4"  # svc   #0
        "800080d2"  # mov   x0, #4
        "010080d2"  # mov   x1, #0
        "e81480d2"  # mov   x8, #167
        "010000d4"  # svc   #0
        "000080d2"  # sleep: mov x0, #0
        "010080d2"  # mov   x1, #0
        "020080d2"  # mov   x2, #0
        "030080d2"  # mov   x3, #0
        "280980d2"  # mov   x8, #73
        "010000d4"  # svc   #0
        "faffff17"  # b     sleep
    ),
}


def program(machine: str) -> bytes:
    """The executable file."""
    code = _INSTRUCTIONS[machine] + messages.INIT_NAME + b"\0"
    size = _HEAD_BYTES + len(code)
    head = _ELF.pack(
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0"),
        *(2, _MACHINES[machine], 1),
        *(_ADDRESS + _HEAD_BYTES, _ELF.size, 0),
        *(0, _ELF.size, _SEGMENT.size, 1, 0, 0, 0),
    )
    segment = _SEGMENT.pack(1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)
    return head + segment + code


def open_program() -> int | None:
    """A descriptor of the program, to be executed; None where the machine does not allow such files."""
    if syscalls.MACHINE not in _INSTRUCTIONS:
        return None
    try:
        try:
            file = os.memfd_create("skerry-init", os.MFD_CLOEXEC | _MFD_EXEC)
        except OSError:
            file = os.memfd_create("skerry-init", os.MFD_CLOEXEC)
        os.write(file, program(syscalls.MACHINE))
        # A file that is open for writing cannot be executed.
        reading = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    os.close(file)
    return reading
