"""Lists of system calls that are laid out once and run many times, with a few arguments that change.

`syscall_scripts` defines the calls. Laying out a list takes longer than running it, so the launcher does that
once for the lists of a worker. A `Slot` stands for an argument that is set before each run.

`spawn` runs a list that ends in an exec, in a child without an interpreter. `run` runs one in the calling
process, which continues after it: no page of the interpreter is touched between two calls.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import Final

from skerry.node.kernel import call_lists, syscalls
from skerry.node.launcher.child import syscall_scripts
from skerry.node.launcher.child.syscall_scripts import Argument, ScriptMemory, SyscallScript

_POINTER: Final = struct.Struct("=Q")
_END: Final = -1  # the number of a call at which `run` returns
_ALL: Final = (1 << 64) - 1

# f(first call): makes one call after the other and returns at the end of the list. A call that fails is
# followed by the one that it names.
_INSTRUCTIONS: Final = {
    "x86_64": bytes.fromhex(
        "53"  # push  rbx
        "4889fb"  # mov   rbx, rdi
        "488b03"  # next: mov rax, [rbx]
        "4883f8ff"  # cmp   rax, -1
        "742e"  # je    end
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
        "ebc9"  # jmp   next
        "5b"  # end: pop rbx
        "c3"  # ret
    ),
    "aarch64": bytes.fromhex(
        "f30f1ff8"  # str   x19, [sp, #-16]!
        "f30300aa"  # mov   x19, x0
        "680240a9"  # next: ldp x8, x0, [x19]
        "1f0500b1"  # cmn   x8, #1
        "40010054"  # b.eq  end
        "610a41a9"  # ldp   x1, x2, [x19, #16]
        "631242a9"  # ldp   x3, x4, [x19, #32]
        "010000d4"  # svc   #0
        "651e40f9"  # ldr   x5, [x19, #56]
        "601a00f9"  # str   x0, [x19, #48]
        "73020191"  # add   x19, x19, #64
        "1ffc3fb1"  # cmn   x0, #4095
        "b320939a"  # csel  x19, x5, x19, hs
        "f5ffff17"  # b     next
        "f30741f8"  # end: ldr x19, [sp], #16
        "c0035fd6"  # ret
    ),
}


class Slot(int):
    """An argument by name, in place of a number."""

    name: str

    def __new__(cls, name: str) -> Slot:
        slot = super().__new__(cls, -1)
        slot.name = name
        return slot

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class TextSlot(bytes):
    """A text by name, of at most so many bytes. Arguments with its length are slots of their own."""

    name: str

    def __new__(cls, name: str, most: int) -> TextSlot:
        slot = super().__new__(cls, bytes(most))
        slot.name = name
        return slot


class PreparedScript:
    """A list in memory of its own."""

    def __init__(self, script: SyscallScript, *, is_program: bool = False) -> None:
        """`is_program`: it ends in an exec, for `spawn`."""
        self._calls = list(script.calls)
        self._size = mmap.PAGESIZE * 4
        self._memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._slots: dict[str, list[int]] = {}
        self._texts: dict[str, tuple[int, int]] = {}
        self._free = (len(self._calls) + 1) * call_lists.CALL.size
        self._lay_out()
        end = syscall_scripts.EXIT if is_program else _END & _ALL
        _POINTER.pack_into(self._memory, len(self._calls) * call_lists.CALL.size, end)

    def _lay_out(self) -> None:
        size = call_lists.CALL.size
        if_failed = self.address + len(self._calls) * size
        for at, call in enumerate(self._calls):
            values = [
                self._value(argument, at * size + 8 * (1 + number))
                for number, argument in enumerate(call.arguments)
            ]
            values += [0] * (5 - len(values))
            call_lists.CALL.pack_into(
                self._memory, at * size, call.number, *values, call_lists.NO_RESULT, if_failed
            )

    def _value(self, argument: Argument, at: int) -> int:
        if isinstance(argument, Slot):
            self._slots.setdefault(argument.name, []).append(at)
            return 0
        if isinstance(argument, TextSlot):
            address = self._store(argument + b"\0")
            self._texts[argument.name] = address - self.address, len(argument)
            return address
        if isinstance(argument, bytes):
            return self._store(argument + b"\0")
        if isinstance(argument, tuple):
            addresses = [_POINTER.pack(self._store(text + b"\0")) for text in argument]
            return self._store(b"".join(addresses) + bytes(8))
        return argument & _ALL

    def _store(self, data: bytes) -> int:
        begins, self._free = self._free, self._free + (len(data) + 7 & ~7)
        if self._free > self._size:
            raise ValueError("a list that is prepared is too long")
        self._memory[begins : begins + len(data)] = data
        return self.address + begins

    def set(self, **values: int) -> None:
        """Set slots."""
        for name, value in values.items():
            for at in self._slots[name]:
                _POINTER.pack_into(self._memory, at, value & _ALL)

    def set_text(self, name: str, text: bytes) -> None:
        at, most = self._texts[name]
        if len(text) > most:
            raise ValueError(f"{name} is longer than {most} bytes")
        self._memory[at : at + len(text) + 1] = text + b"\0"

    def spawn(self, stage: ScriptMemory, flags: int, clone_into: int | None) -> tuple[int, int]:
        """Make the calls in a new process with `flags`, started in the cgroup whose folder is open as
        `clone_into`. Returns its pid and a pidfd once it has executed its program. Raises StepFailed, and
        then there is no process."""
        # The last call before the exec, which never returns: if that was made, so were those before it.
        checked = len(self._calls) - 2
        for at in (checked, checked + 1):
            _POINTER.pack_into(self._memory, self._result_at(at), call_lists.NO_RESULT & _ALL)
        pid, pidfd = stage.clone(self.address, flags, clone_into)
        if self._result(checked) < 0 or self._result(checked + 1) != call_lists.NO_RESULT:
            failure = self._failure()
            if failure is not None:
                os.waitpid(pid, 0)
                os.close(pidfd)
                raise failure
        return pid, pidfd

    def run(self) -> None:
        """Make the calls here. Raises StepFailed at the first that fails."""
        _in_process().run(self.address)
        if self._result(len(self._calls) - 1) < 0 and (failure := self._failure()) is not None:
            raise failure

    def _failure(self) -> syscalls.StepFailed | None:
        results = [self._result(at) for at in range(len(self._calls))]
        return syscall_scripts.failure(self._calls, results)

    def _result(self, at: int) -> int:
        result: int = syscall_scripts.RESULT.unpack_from(self._memory, self._result_at(at))[0]
        return result

    def _result_at(self, at: int) -> int:
        return at * call_lists.CALL.size + syscall_scripts.RESULT_AT


class _InProcess:
    """The instructions of `run`."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        instructions = _INSTRUCTIONS[syscalls.MACHINE]
        self._code[: len(instructions)] = instructions
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        syscalls.make_executable(address, mmap.PAGESIZE)
        self.run = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)


_loaded: list[_InProcess] = []


def _in_process() -> _InProcess:
    if not _loaded:
        _loaded.append(_InProcess())
    return _loaded[0]


def load() -> None:
    """Load the instructions, before any fork."""
    _in_process()
