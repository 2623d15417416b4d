"""Makes system calls one after the other without an interpreter, and stores or restores its registers.

While a process stores its memory, or replaces it, no code of the interpreter may run: a few machine
instructions read a list of calls and make them. `capture` saves the registers first and returns `CAPTURED`;
`restore`, in another process, makes its calls and then returns from that very `capture` with `RESTORED`. It
is to a process what fork is, with time between. If a call of `restore` fails, the process exits with 126.

x86_64 only. The list is at a fixed address (`template_regions.BASE`), which both processes keep free.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from typing import Final

from skerry.node.workers.template_regions import BASE, PAGE, READ, SIZE, WRITE, Call, NoTemplate

CAPTURED: Final = 0
RESTORED: Final = 1
_RECORD: Final = struct.Struct("<8Q")  # number, six arguments, result
_END: Final = _RECORD.pack((1 << 64) - 1, *[0] * 7)
_ALL: Final = (1 << 64) - 1
_RESTORE_AT: Final = 0x27
# (rdi: first record, rsi: registers)
_INSTRUCTIONS: Final = bytes.fromhex(
    "48891e"  # capture: mov [rsi], rbx
    "48896e08"  # mov   [rsi+8], rbp
    "4c896610"  # mov   [rsi+16], r12
    "4c896e18"  # mov   [rsi+24], r13
    "4c897620"  # mov   [rsi+32], r14
    "4c897e28"  # mov   [rsi+40], r15
    "48896630"  # mov   [rsi+48], rsp
    "0fae5e38"  # stmxcsr [rsi+56]
    "d97e3c"  # fnstcw [rsi+60]
    "4531ed"  # xor   r13d, r13d
    "eb06"  # jmp   begin
    "41bd01000000"  # restore: mov r13d, 1
    "4989f4"  # begin: mov r12, rsi
    "4889fb"  # mov   rbx, rdi
    "488b03"  # next: mov rax, [rbx]
    "4885c0"  # test  rax, rax
    "7841"  # js    done
    "488b7b08"  # mov   rdi, [rbx+8]
    "488b7310"  # mov   rsi, [rbx+16]
    "488b5318"  # mov   rdx, [rbx+24]
    "4c8b5320"  # mov   r10, [rbx+32]
    "4c8b4328"  # mov   r8, [rbx+40]
    "4c8b4b30"  # mov   r9, [rbx+48]
    "0f05"  # syscall
    "48894338"  # mov   [rbx+56], rax
    "4883c340"  # add   rbx, 64
    "483d01f0ffff"  # cmp   rax, -4095
    "72ce"  # jb    next
    "4585ed"  # test  r13d, r13d
    "740c"  # jz    failed
    "bf7e000000"  # mov   edi, 126
    "b8e7000000"  # mov   eax, exit_group
    "0f05"  # syscall
    "41bd02000000"  # failed: mov r13d, 2
    "4c89e6"  # done: mov rsi, r12
    "4489e8"  # mov   eax, r13d
    "0fae5638"  # ldmxcsr [rsi+56]
    "d96e3c"  # fldcw [rsi+60]
    "488b1e"  # mov   rbx, [rsi]
    "488b6e08"  # mov   rbp, [rsi+8]
    "4c8b6610"  # mov   r12, [rsi+16]
    "4c8b6e18"  # mov   r13, [rsi+24]
    "4c8b7620"  # mov   r14, [rsi+32]
    "4c8b7e28"  # mov   r15, [rsi+40]
    "488b6630"  # mov   rsp, [rsi+48]
    "c3"  # ret
)
REGISTERS_AT: Final = BASE + PAGE
REGISTERS_BYTES: Final = 64
_RECORDS_AT: Final = REGISTERS_AT + REGISTERS_BYTES
_CAPTURE_AT: Final = BASE + SIZE // 2  # what a restored process does not need
LIST_BYTES: Final = SIZE // 2 - PAGE  # registers and calls of a restore, at most
_PRIVATE_ANONYMOUS: Final = 0x22
_FIXED_NO_REPLACE: Final = 0x100000
_EXECUTABLE: Final = 5

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
# With the interpreter lock held: nothing else may run.
_FUNCTION: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_capture: Final = _FUNCTION(BASE)
_restore: Final = _FUNCTION(BASE + _RESTORE_AT)


def is_supported() -> bool:
    return platform.machine() == "x86_64"


def map_memory() -> None:
    """Map the memory of the list and the instructions. Raises NoTemplate if something else is there."""
    flags = _PRIVATE_ANONYMOUS | _FIXED_NO_REPLACE
    if _libc.mmap(BASE, SIZE, READ | WRITE, flags, -1, 0) != BASE:
        raise NoTemplate("the addresses for its calls are not free")
    ctypes.memmove(BASE, _INSTRUCTIONS, len(_INSTRUCTIONS))
    if _libc.mprotect(BASE, PAGE, _EXECUTABLE):
        raise NoTemplate("no instructions can be added to it")


def unmap_memory() -> None:
    _libc.munmap(BASE, SIZE)


def write_store_list(calls: list[Call]) -> None:
    """The calls of `capture`."""
    _write(calls, _CAPTURE_AT, BASE + SIZE)


def write_restore_list(calls: list[Call]) -> int:
    """The calls of `restore`. Returns how many bytes are to be stored from `REGISTERS_AT` on, with the
    registers."""
    return _RECORDS_AT - REGISTERS_AT + _write(calls, _RECORDS_AT, REGISTERS_AT + LIST_BYTES)


def _write(calls: list[Call], at: int, end: int) -> int:
    texts_at = at + (len(calls) + 1) * _RECORD.size
    records, texts = bytearray(), bytearray()
    for number, arguments in calls:
        values = []
        for argument in arguments:
            if isinstance(argument, bytes):
                values.append(texts_at + len(texts))
                texts += argument + b"\0"
            else:
                values.append(argument & _ALL)
        records += _RECORD.pack(number, *values, *[0] * (7 - len(values)))
    whole = bytes(records + _END + texts)
    if at + len(whole) > end:
        raise NoTemplate("it has too many mappings")
    ctypes.memmove(at, whole, len(whole))
    return len(whole)


def capture() -> int:
    """Save the registers, make the calls; returns CAPTURED, or in another process RESTORED. Any other value
    is a failure."""
    return int(_capture(_CAPTURE_AT, REGISTERS_AT))


def restore() -> None:
    """Make the calls. Never returns here."""
    _restore(_RECORDS_AT, REGISTERS_AT)


def store_results(count: int) -> list[int]:
    """What each of the first `count` calls of `capture` has returned."""
    return _results(_CAPTURE_AT, count)


def restore_results(count: int) -> list[int]:
    return _results(_RECORDS_AT, count)


def _results(at: int, count: int) -> list[int]:
    data = ctypes.string_at(at, count * _RECORD.size)
    return [record[-1] for record in _RECORD.iter_unpack(data)]
