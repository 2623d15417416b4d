"""The seccomp filter of containers, in the format of OCI runtimes: an allow-list.

The list is that of cells, `skerry.node.kernel.syscall_numbers`. Everything else fails with EPERM; for calls
newer than the newest that is listed and known to the runtime it returns ENOSYS, as an older kernel would, and
so it does for clone3, whose flags a filter cannot see. Beyond Docker's default it denies tracing, io_uring,
adjusting the time and local descriptor tables.

A runtime compiles this at every start, and the cost is mostly the number of architectures: one, the machine's
own, where Docker lists three. A program for another one, such as a 32-bit x86 program on x86_64, is killed at
its first call. Rules on arguments cost more than names, so there are as few as possible. Names are in
descending order of their numbers: libseccomp keeps them in ascending order, and looks for the place of each
from the beginning.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Mapping
from typing import Any, Final

from skerry.model import errors
from skerry.node.kernel import syscall_numbers
from skerry.node.kernel import syscalls as kernel_syscalls

_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ALL_BITS: Final = 2**64 - 1


@functools.cache
def profile(machine: str = kernel_syscalls.MACHINE) -> dict[str, Any]:
    """The filter for `machine`, as in a runtime's configuration; not to be modified."""
    if machine not in _ARCHITECTURES:
        raise errors.Unavailable(
            f"containers need a system call filter, and there is none for {machine}: use a node with one of "
            f"{', '.join(_ARCHITECTURES)}"
        )
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [_ARCHITECTURES[machine]],
        "syscalls": [
            {"names": _by_number(syscall_numbers.allowed(machine)), "action": "SCMP_ACT_ALLOW"},
            _allow("clone", "SCMP_CMP_MASKED_EQ", syscall_numbers.NAMESPACES),
            _allow("socket", "SCMP_CMP_LT", syscall_numbers.FIRST_DENIED_FAMILY),
            _allow("personality", "SCMP_CMP_MASKED_EQ", _ALL_BITS & ~syscall_numbers.PERSONALITIES),
            _allow("personality", "SCMP_CMP_EQ", syscall_numbers.QUERY_PERSONALITY),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def _by_number(calls: Mapping[str, int]) -> list[str]:
    return sorted(calls, key=lambda name: calls[name], reverse=True)


def _allow(name: str, operator: str, value: int) -> dict[str, Any]:
    """A rule on the first argument; for MASKED_EQ `value` is a mask of bits that must be 0."""
    return {
        "names": [name],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": value, "valueTwo": 0, "op": operator}],
    }
