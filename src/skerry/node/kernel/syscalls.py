"""System calls that Python 3.11 has no function for, by ctypes; a failure is an OSError that names its step.

For single-threaded processes only: the launcher, a cell's init, and their forks.
`skerry.node.launcher.client` uses the few that inspect another process.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Callable
from typing import Final, NoReturn

from skerry.node.kernel.mount_flags import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    MOUNT_SETATTR,
    MOVE_MOUNT,
    MOVE_MOUNT_F_EMPTY_PATH,
    MS_PRIVATE,
    OPEN_TREE,
    OPEN_TREE_CLONE,
)

MACHINE: Final = os.uname().machine

# The same number on every architecture.
_CLONE3: Final = 435
_CLOSE_RANGE: Final = 436
_PIDFD_GETFD: Final = 438

CLONE_PIDFD: Final = 0x00001000
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_INTO_CGROUP: Final = 0x200000000


ALL: Final = 0xFFFFFFFF

_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_RT_SIGACTION: Final = {"x86_64": 13, "aarch64": 134}
_SIGACTION_BYTES: Final = 32  # all zero: the default action
_SIGNAL_SET_BYTES: Final = 8
_RESERVED_SIGNALS: Final = (32, 33)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_PTRACER: Final = 0x59616D61
_PR_SET_PTRACER_ANY: Final = (1 << 64) - 1
SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_PROT_READ: Final = 1
_PROT_EXEC: Final = 4

# PyDLL, not CDLL: the interpreter lock stays held across a clone, so that the child has it.
_libc = ctypes.PyDLL(None, use_errno=True)
_long = ctypes.c_long
_ulong = ctypes.c_ulong
_syscall = _libc.syscall
_syscall.restype = _long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_void_p, _ulong, _ulong, _ulong]
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Child
for _hook in (_before_fork, _after_fork_in_parent, _after_fork_in_child):
    _hook.restype = None


# A child pays for each page that it is the first to write to: what can be allocated before a fork is
# allocated here.
_CLONE_ARGUMENTS = struct.Struct("=11Q")  # flags, pidfd, ..., the fifth: exit signal, the last: cgroup
_pidfd = ctypes.c_int(-1)
_pidfd_at = ctypes.addressof(_pidfd)
CAPABILITY_HEADER = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
_CAPABILITIES = struct.Struct("=6I")  # effective, permitted, inheritable; low words first, then high words


class StepFailed(OSError):
    """A system call failed; `step` names its purpose in a word or two."""

    def __init__(self, number: int, step: str) -> None:
        super().__init__(number, os.strerror(number))
        self.step = step


def _fail(step: str) -> NoReturn:
    raise StepFailed(ctypes.get_errno(), step)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def clone(flags: int, clone_into: int | None = None) -> tuple[int, int]:
    """Fork with `flags`, into the cgroup whose folder is open as `clone_into`.

    Returns (pid, pidfd) to the parent and (0, -1) to the child.
    """
    arguments = _clone_arguments(flags, clone_into)
    _before_fork()
    pid = _syscall(_long(_CLONE3), arguments, _long(len(arguments)))
    if pid == 0:
        _after_fork_in_child()
        return 0, -1
    number = ctypes.get_errno()
    _after_fork_in_parent()
    if pid < 0:
        raise StepFailed(number, "clone")
    return pid, _pidfd.value


def clone_by(enter: Callable[[bytes], int], flags: int, clone_into: int | None) -> tuple[int, int]:
    """The same with `enter` as the system call, whose child never returns: no interpreter is forked."""
    pid = enter(_clone_arguments(flags, clone_into))
    if pid < 0:
        raise StepFailed(-pid, "clone")
    return pid, _pidfd.value


def _clone_arguments(flags: int, clone_into: int | None) -> bytes:
    flags |= CLONE_PIDFD
    if clone_into is not None:
        flags |= CLONE_INTO_CGROUP
    return _CLONE_ARGUMENTS.pack(flags, _pidfd_at, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, clone_into or 0)


def call(step: str, number: int, *arguments: int | bytes | tuple[bytes, ...]) -> None:
    """The system call `number`. Texts are passed by address."""
    passed = [_long(each) if isinstance(each, int) else each for each in arguments]
    if _syscall(_long(number), *passed) < 0:
        _fail(step)


def make_executable(address: int, size: int) -> None:
    """Make pages executable and read-only."""
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_READ | _PROT_EXEC):
        _fail("make instructions executable")


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    if _syscall(_long(_CLOSE_RANGE), _ulong(first), _ulong(ALL), _long(0)):
        _fail("close descriptors")


def descriptor_of(pidfd: int, number: int) -> int:
    """A duplicate of descriptor `number` of another process."""
    duplicate: int = _syscall(_long(_PIDFD_GETFD), _long(pidfd), _long(number), _long(0))
    if duplicate < 0:
        _fail("take a descriptor")
    return duplicate


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()):
        _fail(f"mount {target}")


def set_mount(target: str, attributes: int, *, recursive: bool, private: bool = False) -> None:
    """Add `attributes` to the mount at `target`, or to all below it too; `private` cuts propagation."""
    flags = AT_RECURSIVE if recursive else 0
    _set_mount(target, AT_FDCWD, os.fsencode(target), flags, attributes, private=private)


def _set_mount(name: str, at: int, path: bytes, flags: int, attributes: int, *, private: bool) -> None:
    request = _MountAttributes(set=attributes, propagation=MS_PRIVATE if private else 0)
    if _syscall(
        _long(MOUNT_SETATTR),
        _long(at),
        ctypes.c_char_p(path),
        _long(flags),
        ctypes.byref(request),
        _long(ctypes.sizeof(request)),
    ):
        _fail(f"set up mount {name}")


def detached_mount(path: str, attributes: int, *, recursive: bool = False) -> int:
    """A detached mount of the folder or file `path` with `attributes`, as a descriptor; it is removed with
    the descriptor unless `move_mount` attaches it. `recursive`: with the mounts below."""
    below = AT_RECURSIVE if recursive else 0
    detached: int = _syscall(
        _long(OPEN_TREE),
        _long(AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        _long(OPEN_TREE_CLONE | os.O_CLOEXEC | below),
    )
    if detached < 0:
        _fail(f"mount {path}")
    try:
        _set_mount(path, detached, b"", AT_EMPTY_PATH | below, attributes, private=True)
    except BaseException:
        os.close(detached)
        raise
    return detached


def move_mount(detached: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    if _syscall(
        _long(MOVE_MOUNT),
        _long(detached),
        ctypes.c_char_p(b""),
        _long(AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        _long(MOVE_MOUNT_F_EMPTY_PATH),
    ):
        _fail(f"mount {target}")


def enter_namespace(descriptor: int, kind: int) -> None:
    """Enter the namespace that is open as `descriptor`."""
    if _libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)):
        _fail("enter a namespace")


def unshare(kind: int) -> None:
    """Enter a new namespace, a copy of the current one."""
    if _libc.unshare(ctypes.c_int(kind)):
        _fail("make a namespace")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace, with the old root mounted at `old`."""
    number = _PIVOT_ROOT[MACHINE]
    if _syscall(_long(number), ctypes.c_char_p(os.fsencode(new)), ctypes.c_char_p(os.fsencode(old))):
        _fail("change the root")


def unmount(target: str, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(target), flags):
        _fail(f"unmount {target}")


def set_host_name(name: str) -> None:
    encoded = name.encode()
    if _libc.sethostname(encoded, _ulong(len(encoded))):
        _fail("set host name")


def set_name(name: bytes) -> None:
    """Set the name of this process in `ps` and `top`; at most 15 bytes."""
    if _libc.prctl(_PR_SET_NAME, name, 0, 0, 0):
        _fail("set name")


def set_dumpable(dumpable: bool) -> None:
    """Whether others of the same user may trace this process."""
    _prctl("set dumpable", _PR_SET_DUMPABLE, int(dumpable))


def set_tracer_any() -> None:
    """Let every process of the same user trace this one, where only ancestors may otherwise (Yama)."""
    _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)  # fails without Yama, which is fine


def set_subreaper(adopts: bool) -> bool:
    """Whether orphaned descendants become children of this process; returns the previous setting."""
    before = ctypes.c_int(0)
    _prctl("read subreaper", _PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl("set subreaper", _PR_SET_CHILD_SUBREAPER, int(adopts))
    return bool(before.value)


def take_default_reserved_signals() -> None:
    """Reset the signals that the C library reserves and does not allow to set: programs such as make start
    others with these ignored."""
    number = _RT_SIGACTION.get(MACHINE)
    if number is not None:
        for reserved in _RESERVED_SIGNALS:
            _syscall(_long(number), _long(reserved), bytes(_SIGACTION_BYTES), None, _long(_SIGNAL_SET_BYTES))


def set_parent_death_signal(number: int) -> None:
    """The signal that this process gets when its parent ends; 0 for none."""
    _prctl("set parent death signal", _PR_SET_PDEATHSIG, number)


def end_with(parent: int) -> None:
    """Be killed when the parent of this process, of which `parent` is a pidfd, ends; at once if it has."""
    set_parent_death_signal(signal.SIGKILL)
    # It may have ended before the signal was set. A new pid namespace does not know its id.
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def set_no_new_privileges() -> None:
    _prctl("set no_new_privs", PR_SET_NO_NEW_PRIVS, 1)


class SeccompFilter:
    """A seccomp filter; `program` is BPF of eight bytes per instruction."""

    def __init__(self, program: bytes) -> None:
        self._program = ctypes.create_string_buffer(program, len(program))
        address = ctypes.addressof(self._program)
        self._loaded = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, address))
        self.address = ctypes.addressof(self._loaded)  # struct sock_fprog

    def install(self) -> None:
        """Apply the filter to this process and its descendants, irrevocably."""
        if _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self.address, 0, 0):
            _fail("set seccomp filter")


def drop_from_bounding_set(capability: int) -> None:
    _prctl("drop a capability", PR_CAPBSET_DROP, capability)


def clear_inheritable_capabilities() -> None:
    """Pass no capability to programs by inheritance; this process keeps its own."""
    sets = ctypes.create_string_buffer(_CAPABILITIES.size)
    if _libc.capget(CAPABILITY_HEADER, sets):
        _fail("read capabilities")
    low, also_low, _, high, also_high, _ = _CAPABILITIES.unpack(sets.raw)
    if _libc.capset(CAPABILITY_HEADER, _CAPABILITIES.pack(low, also_low, 0, high, also_high, 0)):
        _fail("set capabilities")


def set_capabilities(mask: int) -> None:
    """Set exactly the capabilities of `mask`, none of them inheritable."""
    if _libc.capset(CAPABILITY_HEADER, capability_sets(mask)):
        _fail("set capabilities")


def capability_sets(mask: int) -> bytes:
    """`mask` as the kernel's struct: effective and permitted, not inheritable."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    return _CAPABILITIES.pack(low, low, 0, high, high, 0)


def _prctl(step: str, option: int, value: int, second: int = 0) -> None:
    if _libc.prctl(option, value, second, 0, 0):
        _fail(step)
