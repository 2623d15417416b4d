"""The filter on the system calls of containers, in the form of OCI runtimes: a list of what is allowed.

Everything else is refused with EPERM; calls newer than the newest that is listed here and known to the
runtime are answered with ENOSYS by it, as an older kernel would, and so is clone3, whose flags a filter
cannot see. What `skerry.node.launcher.seccomp` holds to be dangerous is not in the list, so a container may
never call what a cell may not; beyond Docker's default that leaves out tracing, io_uring, adjusting the time
and local descriptor tables.

A runtime compiles this anew at every start, and what that costs is mostly the number of architectures: one,
the machine's own, where Docker lists three. A program for another one, such as a 32-bit x86 program on
x86_64, is killed at its first call. Rules that look at arguments cost more than names, so each is one rule
where one can say it.
"""

from __future__ import annotations

import errno
import functools
from typing import Any, Final

from skerry.model import errors
from skerry.node.launcher import kernel

_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_NAMESPACES: Final = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
# From here on families of sockets reach past every namespace (the kernel's ciphers, a virtual machine's
# host), or nobody needs them in a container.
_FIRST_REFUSED_FAMILY: Final = 38
# What personality() may be asked for: a 32-bit machine, an old version number, both, neither, or to tell.
_PERSONALITIES: Final = 0x20008
_TELL: Final = 0xFFFFFFFF
_ALL_BITS: Final = 2**64 - 1


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# On every machine; by what they are about.
_EVERYWHERE: Final = {
    "files": _words("""
        openat openat2 close close_range read write readv writev pread64 pwrite64 preadv pwritev
        preadv2 pwritev2 lseek dup dup3 fcntl flock ioctl fsync fdatasync sync syncfs sync_file_range
        ftruncate truncate fallocate fadvise64 readahead copy_file_range sendfile splice tee vmsplice
        io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents cachestat
    """),
    "names": _words("""
        mkdirat mknodat unlinkat linkat symlinkat readlinkat renameat renameat2 getdents64 getcwd chdir
        fchdir chroot umask faccessat faccessat2 fchmod fchmodat fchmodat2 fchown fchownat utimensat fstat
        newfstatat statx statfs fstatfs name_to_handle_at
        setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
        removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat removexattrat
    """),
    "waiting": _words("""
        ppoll pselect6 epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 signalfd4
        inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark
        nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday getitimer setitimer times
        timer_create timer_delete timer_getoverrun timer_gettime timer_settime
        timerfd_create timerfd_gettime timerfd_settime
    """),
    "memory": _words("""
        brk mmap munmap mremap mprotect msync madvise mincore mlock mlock2 mlockall munlock munlockall
        mseal remap_file_pages membarrier memfd_create memfd_secret pkey_alloc pkey_free pkey_mprotect
        map_shadow_stack
    """),
    "processes": _words("""
        execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid setpgid getsid setsid
        kill tkill tgkill pidfd_open pidfd_send_signal process_mrelease prctl uname sysinfo getcpu
        getrandom getrusage getrlimit setrlimit prlimit64 getpriority setpriority ioprio_get ioprio_set
        futex futex_waitv futex_wait futex_wake futex_requeue get_robust_list set_robust_list
        set_tid_address rseq restart_syscall
        sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam
        sched_setparam sched_getscheduler sched_setscheduler sched_get_priority_max
        sched_get_priority_min sched_rr_get_interval
    """),
    "signals": _words("""
        rt_sigaction rt_sigprocmask rt_sigpending rt_sigsuspend rt_sigtimedwait rt_sigreturn
        rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack
    """),
    "users": _words("""
        getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid
        setresuid setresgid setgroups setfsuid setfsgid capget capset
        seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
    """),
    "sockets and pipes": _words("""
        socketpair bind listen accept accept4 connect shutdown getsockname getpeername getsockopt
        setsockopt sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg pipe2
        mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
        msgget msgctl msgsnd msgrcv semget semctl semop semtimedop shmget shmctl shmat shmdt
    """),
}
# Older spellings, which later machines never had.
_ONLY_ON: Final = {
    "x86_64": _words("""
        open creat access chmod chown lchown mkdir mknod rmdir link unlink symlink readlink rename stat lstat
        getdents utime utimes futimesat dup2 pipe poll select epoll_create epoll_wait eventfd signalfd
        inotify_init alarm pause time fork vfork getpgrp arch_prctl get_thread_area set_thread_area
    """),
    "aarch64": frozenset[str](),
}


def allowed(machine: str = kernel.MACHINE) -> frozenset[str]:
    """The calls that may be made on `machine` with any arguments."""
    return frozenset[str]().union(*_EVERYWHERE.values(), _ONLY_ON[machine])


@functools.cache
def profile(machine: str = kernel.MACHINE) -> dict[str, Any]:
    """The filter for `machine`, as it stands in a runtime's configuration; not to be changed."""
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
            {"names": sorted(allowed(machine)), "action": "SCMP_ACT_ALLOW"},
            _allow("clone", "SCMP_CMP_MASKED_EQ", _NAMESPACES),
            _allow("socket", "SCMP_CMP_LT", _FIRST_REFUSED_FAMILY),
            _allow("personality", "SCMP_CMP_MASKED_EQ", _ALL_BITS & ~_PERSONALITIES),
            _allow("personality", "SCMP_CMP_EQ", _TELL),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def _allow(name: str, operator: str, value: int) -> dict[str, Any]:
    """A rule on the first argument; for MASKED_EQ `value` is a mask, and what it leaves must be 0."""
    return {
        "names": [name],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": value, "valueTwo": 0, "op": operator}],
    }
