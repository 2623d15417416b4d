"""The system calls that are allowed in cells and containers, by name, with their numbers.

One list for both filters: `skerry.node.launcher.child.seccomp` compiles it to BPF, and
`skerry.node.containers.seccomp` to a profile for OCI runtimes. All others are denied: those that change
mounts, modules, time, keys or other processes, that create namespaces, tracing, io_uring, and those that few
programs need and many exploits use. Three calls are allowed by their first argument.
"""

from __future__ import annotations

from typing import Final

from skerry.node.kernel import syscalls

MACHINES: Final = ("x86_64", "aarch64")
# Calls beyond this are newer than the list, and return ENOSYS.
LAST_LISTED: Final = 466  # removexattrat, of Linux 6.13
CLONE3: Final = 435  # its flags are in memory, which a filter cannot read; the C library falls back to clone

# Flags that clone() may not have.
NAMESPACES: Final = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
)
# Socket families from here on reach past every namespace (the kernel's ciphers, the host of a virtual
# machine), or
# are not needed.
FIRST_DENIED_FAMILY: Final = 38
# Allowed arguments of personality(): a 32-bit machine, an old version number, both, neither, or a query.
PERSONALITIES: Final = 0x20008
QUERY_PERSONALITY: Final = 0xFFFFFFFF

# Checked by their first argument: the numbers on x86_64 and aarch64.
_CHECKED: Final = {"clone": (56, 220), "socket": (41, 198), "personality": (135, 92)}


def _table(text: str) -> dict[str, tuple[int, ...]]:
    rows = [row.split() for row in text.split(",")]
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


# On every machine, by topic: the numbers on x86_64 and aarch64. Newer calls have the same on both.
_EVERYWHERE: Final = {
    "files": _table("""
        openat 257 56, openat2 437 437, close 3 57, close_range 436 436, read 0 63, write 1 64,
        readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
        preadv2 327 286, pwritev2 328 287, lseek 8 62, dup 32 23, dup3 292 24, fcntl 72 25, flock 73 32,
        ioctl 16 29, fsync 74 82, fdatasync 75 83, sync 162 81, syncfs 306 267, sync_file_range 277 84,
        ftruncate 77 46, truncate 76 45, fallocate 285 47, fadvise64 221 223, readahead 187 213,
        copy_file_range 326 285, sendfile 40 71, splice 275 76, tee 276 77, vmsplice 278 75,
        io_setup 206 0, io_destroy 207 1, io_submit 209 2, io_cancel 210 3, io_getevents 208 4,
        io_pgetevents 333 292, cachestat 451 451
    """),
    "names": _table("""
        mkdirat 258 34, mknodat 259 33, unlinkat 263 35, linkat 265 37, symlinkat 266 36,
        readlinkat 267 78, renameat 264 38, renameat2 316 276, getdents64 217 61, getcwd 79 17,
        chdir 80 49, fchdir 81 50, chroot 161 51, umask 95 166, faccessat 269 48, faccessat2 439 439,
        fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, fchown 93 55, fchownat 260 54,
        utimensat 280 88, fstat 5 80, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44,
        name_to_handle_at 303 264, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, getxattr 191 8,
        lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
        removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, setxattrat 463 463,
        getxattrat 464 464, listxattrat 465 465, removexattrat 466 466
    """),
    "waiting": _table("""
        ppoll 271 73, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_pwait 281 22,
        epoll_pwait2 441 441, eventfd2 290 19, signalfd4 289 74, inotify_init1 294 26,
        inotify_add_watch 254 27, inotify_rm_watch 255 28, fanotify_mark 301 263, nanosleep 35 101,
        clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169,
        getitimer 36 102, setitimer 38 103, times 100 153, timer_create 222 107, timer_delete 226 111,
        timer_getoverrun 225 109, timer_gettime 224 108, timer_settime 223 110, timerfd_create 283 85,
        timerfd_gettime 287 87, timerfd_settime 286 86
    """),
    "memory": _table("""
        brk 12 214, mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, msync 26 227,
        madvise 28 233, mincore 27 232, mlock 149 228, mlock2 325 284, mlockall 151 230, munlock 150 229,
        munlockall 152 231, mseal 462 462, remap_file_pages 216 234, membarrier 324 283,
        memfd_create 319 279, memfd_secret 447 447, pkey_alloc 330 289, pkey_free 331 290,
        pkey_mprotect 329 288, map_shadow_stack 453 453
    """),
    "processes": _table("""
        execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
        getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121 155, setpgid 109 154, getsid 124 156,
        setsid 112 157, kill 62 129, tkill 200 130, tgkill 234 131, pidfd_open 434 434,
        pidfd_send_signal 424 424, process_mrelease 448 448, prctl 157 167, uname 63 160, sysinfo 99 179,
        getcpu 309 168, getrandom 318 278, getrusage 98 165, getrlimit 97 163, setrlimit 160 164,
        prlimit64 302 261, getpriority 140 141, setpriority 141 140, ioprio_get 252 31,
        ioprio_set 251 30, futex 202 98, futex_waitv 449 449, futex_wait 455 455, futex_wake 454 454,
        futex_requeue 456 456, get_robust_list 274 100, set_robust_list 273 99, set_tid_address 218 96,
        rseq 334 293, restart_syscall 219 128, sched_yield 24 124, sched_getaffinity 204 123,
        sched_setaffinity 203 122, sched_getattr 315 275, sched_setattr 314 274, sched_getparam 143 121,
        sched_setparam 142 118, sched_getscheduler 145 120, sched_setscheduler 144 119,
        sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127
    """),
    "signals": _table("""
        rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136, rt_sigsuspend 130 133,
        rt_sigtimedwait 128 137, rt_sigreturn 15 139, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
        sigaltstack 131 132
    """),
    "users": _table("""
        getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158,
        getresuid 118 148, getresgid 120 150, setuid 105 146, setgid 106 144, setreuid 113 145,
        setregid 114 143, setresuid 117 147, setresgid 119 149, setgroups 116 159, setfsuid 122 151,
        setfsgid 123 152, capget 125 90, capset 126 91, seccomp 317 277, landlock_create_ruleset 444 444,
        landlock_add_rule 445 445, landlock_restrict_self 446 446
    """),
    "sockets and pipes": _table("""
        socketpair 53 199, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, connect 42 203,
        shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209, setsockopt 54 208,
        sendto 44 206, sendmsg 46 211, sendmmsg 307 269, recvfrom 45 207, recvmsg 47 212,
        recvmmsg 299 243, pipe2 293 59, mq_open 240 180, mq_unlink 241 181, mq_timedsend 242 182,
        mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185, msgget 68 186, msgctl 71 187,
        msgsnd 69 189, msgrcv 70 188, semget 64 190, semctl 66 191, semop 65 193, semtimedop 220 192,
        shmget 29 194, shmctl 31 195, shmat 30 196, shmdt 67 197
    """),
}
# Older calls, which newer architectures do not have.
_ONLY_ON: Final = {
    "x86_64": _table("""
        open 2, creat 85, access 21, chmod 90, chown 92, lchown 94, mkdir 83, mknod 133, rmdir 84,
        link 86, unlink 87, symlink 88, readlink 89, rename 82, stat 4, lstat 6, getdents 78, utime 132,
        utimes 235, futimesat 261, dup2 33, pipe 22, poll 7, select 23, epoll_create 213, epoll_wait 232,
        eventfd 284, signalfd 282, inotify_init 253, alarm 37, pause 34, time 201, fork 57, vfork 58,
        getpgrp 111, arch_prctl 158, get_thread_area 211, set_thread_area 205
    """),
    "aarch64": dict[str, tuple[int, ...]](),
}


def allowed(machine: str) -> dict[str, int]:
    """The calls that are allowed on `machine` with any arguments, and their numbers there."""
    column = MACHINES.index(machine)
    everywhere = {name: row[column] for part in _EVERYWHERE.values() for name, row in part.items()}
    return everywhere | {name: number for name, (number,) in _ONLY_ON[machine].items()}


def checked(machine: str) -> dict[str, int]:
    """The calls that are checked by their first argument, and their numbers on `machine`."""
    column = MACHINES.index(machine)
    return {name: row[column] for name, row in _CHECKED.items()}
