"""The filter on system calls: read by a small machine of our own for each processor, and tried for real."""

from __future__ import annotations

import errno
import json
import struct
import subprocess
import sys

import pytest

from skerry.node.launcher import seccomp
from skerry.node.launcher.seccomp import MACHINES, REFUSED, default_filter

ALLOW, KILL = "allow", "kill"
NEW_NETWORK = 0x40000000
THREAD = 0x3D0F00  # what a C library passes to make a thread


def judge(program: bytes, machine: int, number: int, first: int = 0) -> str | int:
    """What the filter says to a call: allow, kill, or an error number."""
    data = struct.pack("=IIQ6Q", number, machine, 0, first, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    while True:
        operation, if_true, if_not, operand = instructions[place]
        place += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x15 | 0x25 | 0x45:
                holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}
                place += if_true if holds[operation] else if_not
            case 0x06:
                return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(operand, operand & 0xFFFF)
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")


@pytest.mark.parametrize("name", MACHINES)
class TestEveryMachine:
    def test_refuses_the_list_and_nothing_else(self, name: str) -> None:
        machine, program = MACHINES[name], default_filter(name)
        refused = {row[machine.column] for row in REFUSED.values()} - {None}
        for number in range(467):
            expected: str | int = errno.EPERM if number in refused else ALLOW
            if number == 435:
                expected = errno.ENOSYS
            assert judge(program, machine.audit, number) == expected, number

    def test_answers_calls_of_newer_kernels_as_an_older_one_would(self, name: str) -> None:
        machine, program = MACHINES[name], default_filter(name)
        for number in (467, 1000, 0x40000000 + 1, 0xFFFFFFFF):
            assert judge(program, machine.audit, number) == errno.ENOSYS

    def test_kills_what_calls_by_other_numbers(self, name: str) -> None:
        for audit in (0x40000003, 0x40000028, 0):  # 32-bit x86, 32-bit arm
            assert judge(default_filter(name), audit, 39) == KILL

    def test_lets_threads_and_children_be_made_but_no_namespace(self, name: str) -> None:
        machine, program = MACHINES[name], default_filter(name)
        assert judge(program, machine.audit, machine.clone, THREAD) == ALLOW
        assert judge(program, machine.audit, machine.clone, 17) == ALLOW
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert judge(program, machine.audit, machine.clone, 17 | 1 << bit) == errno.EPERM

    def test_lets_ordinary_sockets_be_made(self, name: str) -> None:
        machine, program = MACHINES[name], default_filter(name)
        assert [judge(program, machine.audit, machine.socket, family) for family in (1, 2, 10, 16)] == [
            ALLOW
        ] * 4
        assert [judge(program, machine.audit, machine.socket, family) for family in (38, 40)] == [
            errno.EPERM
        ] * 2

    def test_no_number_stands_in_the_list_twice(self, name: str) -> None:
        column = MACHINES[name].column
        numbers = [row[column] for row in REFUSED.values() if row[column] is not None]
        assert len(set(numbers)) == len(numbers)


def test_a_processor_that_is_not_known_is_refused() -> None:
    with pytest.raises(LookupError, match="riscv64"):
        default_filter("riscv64")


def test_a_jump_that_is_too_far_is_a_fault() -> None:
    far: list[seccomp._Step] = [(0x15, 1, "end", ""), *[(0x20, 0, "", "")] * 300, "end", (0x06, 0, "", "")]
    with pytest.raises(ValueError, match="255"):
        seccomp.assemble(far)


TRIAL = """
import ctypes, errno, json, os, socket, sys, threading
from skerry.node.launcher import kernel, seccomp
kernel.set_no_new_privileges()
kernel.Filter(seccomp.default_filter()).install()
libc = ctypes.CDLL(None, use_errno=True)
column = seccomp.MACHINES[kernel.MACHINE].column
def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return ctypes.get_errno()
answers = {name: call(row[column], 0, 0, 0, 0, 0) for name, row in seccomp.REFUSED.items() if row[column]}
answers["clone3"] = call(435, 0, 0)
answers["newer"] = call(1000)
answers["new namespace"] = call(seccomp.MACHINES[kernel.MACHINE].clone, 0x40000000 | 17, 0, 0, 0, 0)
worked = []
thread = threading.Thread(target=lambda: worked.append("thread"))
thread.start(); thread.join()
if (child := os.fork()) == 0:
    os.execv("/bin/true", ["true"])
worked.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
socket.socketpair()[0].close()
json.dump([answers, worked], sys.stdout)
"""


def test_the_kernel_holds_a_process_to_it() -> None:
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, check=True)
    answers, worked = json.loads(done.stdout)
    assert worked == ["thread", 0]
    assert (answers.pop("clone3"), answers.pop("newer")) == (errno.ENOSYS, errno.ENOSYS)
    assert len(answers) > 50
    assert {name: number for name, number in answers.items() if number != errno.EPERM} == {}
