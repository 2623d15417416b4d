"""The filter on the system calls of containers: what it says, and what the kernel makes of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import json
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.containers import seccomp
from skerry.node.kernel import syscall_numbers
from skerry.node.kernel import syscalls as kernel_syscalls
from skerry.node.kernel.syscall_numbers import MACHINES
from skerry.node.launcher.child.seccomp import audit_of
from tests.support.bundles import Bundle, busybox_root, lend_python, needs_runc
from tests.support.system_calls import dangerous

LIBSECCOMP = ctypes.util.find_library("seccomp")
# Of Linux 6.10 and later: the C library falls back where a filter does not know them.
NEWEST = {"mseal", "setxattrat", "getxattrat", "listxattrat", "removexattrat"}
BY_ARGUMENT = {"clone", "socket", "personality"}


@pytest.mark.parametrize("machine", MACHINES)
def test_it_allows_what_cells_are_allowed_and_nothing_dangerous(machine: str) -> None:
    allowed = syscall_numbers.allowed(machine).keys()
    assert allowed & dangerous(machine).keys() == set()
    assert allowed & {"clone3", *BY_ARGUMENT} == set()
    (names,) = [rule["names"] for rule in seccomp.profile(machine)["syscalls"] if len(rule["names"]) > 1]
    assert sorted(names) == sorted(allowed)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_name_stands_in_it_once_and_only_one_architecture_does(machine: str) -> None:
    profile = seccomp.profile(machine)
    assert len(profile["architectures"]) == 1
    names = [name for rule in profile["syscalls"] for name in rule["names"]]
    assert {name for name in names if names.count(name) > 1} == {"personality"}


@pytest.mark.skipif(LIBSECCOMP is None, reason="needs libseccomp, which runtimes use")
@pytest.mark.parametrize("machine", MACHINES)
def test_every_name_is_a_call_of_the_machine_and_has_its_number(machine: str) -> None:
    assert LIBSECCOMP is not None
    library = ctypes.CDLL(LIBSECCOMP)

    def number(name: str) -> int:
        found: int = library.seccomp_syscall_resolve_name_arch(audit_of(machine), name.encode())
        return found

    listed = (
        syscall_numbers.allowed(machine)
        | syscall_numbers.checked(machine)
        | {"clone3": syscall_numbers.CLONE3}
    )
    known = {name: number(name) for name in listed}
    assert {name for name in known if known[name] < 0} <= NEWEST
    assert {name for name in known if known[name] not in (listed[name], -1)} == set()
    assert dangerous(machine) == {name: number(name) for name in dangerous(machine)}


def test_older_spellings_are_known_only_where_they_are() -> None:
    intel, arm = (syscall_numbers.allowed(machine).keys() for machine in ("x86_64", "aarch64"))
    assert {"open", "fork", "poll", "arch_prctl"} <= intel - arm
    assert arm < intel


def test_a_processor_without_a_filter_is_refused() -> None:
    with pytest.raises(errors.Unavailable, match="there is none for riscv64: use a node with one of x86_64"):
        seccomp.profile("riscv64")


TRIAL = """
import ctypes, json, os, socket, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *map(ctypes.c_long, arguments))
    return ctypes.get_errno() if result < 0 else 0
def family(number):
    try:
        socket.socket(number, socket.SOCK_DGRAM).close()
    except OSError as error:
        return error.errno
    return 0
numbers, clone, personality = json.loads(sys.argv[1])
answers = {name: call(number, 0, 0, 0, 0, 0) for name, number in numbers.items()}
worked = []
thread = threading.Thread(target=lambda: worked.append("thread"))
thread.start(); thread.join()
worked.append(subprocess.run(["/bin/true"]).returncode)
json.dump({
    "answers": answers,
    "worked": worked,
    "newer": call(1000),
    "clone3": call(435, 0, 0),
    "namespace": [call(clone, 17 | 1 << bit, 0, 0, 0, 0) for bit in (17, 25, 26, 27, 28, 29, 30)],
    "families": {number: family(number) for number in (1, 2, 10, 38, 40)},
    "personality": {hex(number): call(personality, number) for number in (0xFFFFFFFF, 0x20008, 0, 0x40000)},
}, sys.stdout)
"""


@needs_runc
@pytest.mark.root
def test_the_kernel_holds_a_container_to_it(tmp_path: Path) -> None:
    box = Bundle(tmp_path, busybox_root(tmp_path / "rootfs"))
    checked = syscall_numbers.checked(kernel_syscalls.MACHINE)
    config = box.config("")
    config["process"]["args"] = [
        *(lend_python(config, box.rootfs), "-I", "-c", TRIAL),
        json.dumps([dangerous(kernel_syscalls.MACHINE), checked["clone"], checked["personality"]]),
    ]
    done = box.run(config)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["worked"] == ["thread", 0]
    assert (found["newer"], found["clone3"]) == (errno.ENOSYS, errno.ENOSYS)
    assert set(found["namespace"]) == {errno.EPERM}
    assert found["families"] == {"1": 0, "2": 0, "10": 0, "38": errno.EPERM, "40": errno.EPERM}
    assert found["personality"] == {"0xffffffff": 0, "0x20008": 0, "0x0": 0, "0x40000": errno.EPERM}
    assert len(found["answers"]) > 50
    assert {name: number for name, number in found["answers"].items() if number != errno.EPERM} == {}
