"""The filter on system calls: read by a small machine of our own for each processor, and tried for real."""

from __future__ import annotations

import errno
import itertools
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.node.kernel import syscall_numbers
from skerry.node.kernel import syscalls as kernel_syscalls
from skerry.node.kernel.syscall_numbers import MACHINES
from skerry.node.launcher.child import seccomp
from skerry.node.launcher.child.seccomp import audit_of, default_filter
from tests.support.system_calls import dangerous

ALLOW, KILL = "allow", "kill"
NEW_NETWORK = 0x40000000
THREAD = 0x3D0F00  # what a C library passes to make a thread


def judge(program: bytes, machine: int, number: int, first: int = 0) -> str | int:
    """What the filter says to a call: allow, kill, or an error number."""
    answer = run(program, machine, number, first)[0]
    return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(answer, answer & 0xFFFF)


def steps(program: bytes, machine: int, number: int) -> int:
    """How many instructions that takes."""
    return run(program, machine, number, 0)[1]


def run(program: bytes, machine: int, number: int, first: int) -> tuple[int, int]:
    data = struct.pack("=IIQ6Q", number, machine, 0, first, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    for count in itertools.count(1):
        operation, if_true, if_not, operand = instructions[place]
        place += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x15 | 0x25 | 0x45:
                holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}
                place += if_true if holds[operation] else if_not
            case 0x06:
                return operand, count
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")
    raise AssertionError("unreachable")


@pytest.mark.parametrize("name", MACHINES)
class TestEveryMachine:
    def test_allows_the_list_and_nothing_else(self, name: str) -> None:
        audit, program = audit_of(name), default_filter(name)
        allowed = {*syscall_numbers.allowed(name).values(), *syscall_numbers.checked(name).values()}
        for number in range(syscall_numbers.LAST_LISTED + 1):
            expected: str | int = ALLOW if number in allowed else errno.EPERM
            if number == 435:
                expected = errno.ENOSYS
            assert judge(program, audit, number) == expected, number

    def test_nothing_dangerous_is_in_the_list(self, name: str) -> None:
        assert dangerous(name).keys() & syscall_numbers.allowed(name).keys() == set()
        for call, number in dangerous(name).items():
            assert judge(default_filter(name), audit_of(name), number) == errno.EPERM, call

    def test_answers_calls_of_newer_kernels_as_an_older_one_would(self, name: str) -> None:
        for number in (467, 1000, 0x40000000 + 1, 0xFFFFFFFF):
            assert judge(default_filter(name), audit_of(name), number) == errno.ENOSYS

    def test_kills_what_calls_by_other_numbers(self, name: str) -> None:
        for audit in (0x40000003, 0x40000028, 0):  # 32-bit x86, 32-bit arm
            assert judge(default_filter(name), audit, 39) == KILL

    def test_lets_threads_and_children_be_made_but_no_namespace(self, name: str) -> None:
        audit, program, clone = audit_of(name), default_filter(name), syscall_numbers.checked(name)["clone"]
        assert judge(program, audit, clone, THREAD) == ALLOW
        assert judge(program, audit, clone, 17) == ALLOW
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert judge(program, audit, clone, 17 | 1 << bit) == errno.EPERM

    def test_lets_ordinary_sockets_be_made(self, name: str) -> None:
        audit, program, number = audit_of(name), default_filter(name), syscall_numbers.checked(name)["socket"]
        assert {judge(program, audit, number, family) for family in range(38)} == {ALLOW}
        assert {judge(program, audit, number, family) for family in (38, 40, 45, 2**32 - 1)} == {errno.EPERM}

    def test_lets_a_program_ask_for_a_harmless_personality(self, name: str) -> None:
        audit, program, number = (
            audit_of(name),
            default_filter(name),
            syscall_numbers.checked(name)["personality"],
        )
        assert {
            judge(program, audit, number, requested) for requested in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
        } == {ALLOW}
        assert {
            judge(program, audit, number, requested) for requested in (0x40000, 0x400000, 0xFFFFFFFE)
        } == {errno.EPERM}

    def test_no_number_stands_in_the_list_twice(self, name: str) -> None:
        numbers = [*syscall_numbers.allowed(name).values(), *syscall_numbers.checked(name).values()]
        assert len(set(numbers)) == len(numbers)

    def test_an_answer_takes_few_instructions(self, name: str) -> None:
        instructions = len(default_filter(name)) // 8
        assert instructions < 256
        assert max(steps(default_filter(name), audit_of(name), number) for number in range(500)) < 16


HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="needs the kernel's headers for x86_64")
def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    found = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", HEADER.read_text(), re.MULTILINE))
    listed = syscall_numbers.allowed("x86_64") | syscall_numbers.checked("x86_64") | dangerous("x86_64")
    assert {name: int(found[name]) for name in listed if name in found} == {
        name: number for name, number in listed.items() if name in found
    }
    assert len(found.keys() & listed.keys()) > 300


def test_a_processor_that_is_not_known_is_refused() -> None:
    with pytest.raises(LookupError, match="riscv64"):
        default_filter("riscv64")


def test_a_jump_that_is_too_far_is_a_fault() -> None:
    far: list[seccomp._Step] = [(0x15, 1, "end", ""), *[(0x20, 0, "", "")] * 300, "end", (0x06, 0, "", "")]
    with pytest.raises(ValueError, match="255"):
        seccomp.assemble(far)


TRIAL = """
import ctypes, errno, json, os, socket, sys, threading
from skerry.node.kernel import syscall_numbers as syscalls, syscalls as kernel
from skerry.node.launcher.child import seccomp
kernel.set_no_new_privileges()
kernel.SeccompFilter(seccomp.default_filter()).install()
libc = ctypes.CDLL(None, use_errno=True)
checked = syscalls.checked(kernel.MACHINE)
def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return ctypes.get_errno()
answers = {name: call(number, 0, 0, 0, 0, 0) for name, number in json.loads(sys.argv[1]).items()}
answers["clone3"] = call(435, 0, 0)
answers["newer"] = call(1000)
answers["new namespace"] = call(checked["clone"], 0x40000000 | 17, 0, 0, 0, 0)
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
    command = [sys.executable, "-c", TRIAL, json.dumps(dangerous(kernel_syscalls.MACHINE))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers, worked = json.loads(done.stdout)
    assert worked == ["thread", 0]
    assert (answers.pop("clone3"), answers.pop("newer")) == (errno.ENOSYS, errno.ENOSYS)
    assert len(answers) > 50
    assert {name: number for name, number in answers.items() if number != errno.EPERM} == {}
