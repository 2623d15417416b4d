"""Templates of Python workers: stores a process that has loaded a function, and turns others into copies.

Standard library only; it runs in a worker, confined like everything else there. The agent gives a worker the
file for a template with its request. One that makes a template loads the function, calls nothing of it, forks
once, as `os.fork` does with all hooks of libraries, and the fork stores its memory (`capture`). A worker that
gets a finished one maps it copy-on-write over its own memory (`restore`) and goes on where the fork was,
with its own identity: cell, user, limits, descriptors and filters are those that it had.

What a fork would not copy, or what is outside of the memory, prevents a template: threads, processes, files,
connections, timers, handlers of signals (`NoTemplate`).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
from typing import Any, Final, NamedTuple

from skerry.node.workers import python_handlers, python_leftovers, template_code, template_regions
from skerry.node.workers.template_regions import PAGE, Call, NoTemplate

_HEAD_BYTES: Final = 64 * 1024
_LIST_AT: Final = _HEAD_BYTES
_DATA_AT: Final = 2 * 1024 * 1024
_LENGTH_BYTES: Final = 8
_ATTEMPTS: Final = 20
_MAPS_BYTES: Final = 1024 * 1024
_ZEROS: Final = bytes(PAGE)
_CHUNK: Final = 1024 * 1024
_PUNCH_HOLE: Final = 0x01 | 0x02  # and keep the size
_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a cell's own
_STATES: Final = ("SigBlk", "Umask", "Seccomp_filters", "NoNewPrivs")
_ACTION_BYTES: Final = 32  # of a signal, as the kernel has it
_MASK_BYTES: Final = 8
_AT_RANDOM: Final = 25
_RANDOM_BYTES: Final = 16
_AT_SYSINFO_EHDR: Final = 33
_UNCHANGEABLE: Final = (signal.SIGKILL, signal.SIGSTOP)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.sbrk.restype = ctypes.c_void_p
_libc.getauxval.restype = ctypes.c_ulong


class ProcessState(NamedTuple):
    """What of a process is outside of its memory, and must not change while a function is loaded."""

    descriptors: frozenset[int]
    written: tuple[str, ...]  # in a cell
    status: tuple[str, ...]
    limits: tuple[tuple[int, int], ...]
    folder: str
    priority: tuple[int, frozenset[int]]

    @classmethod
    def read(cls) -> ProcessState:
        numbers = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
        return cls(
            _descriptors(),
            _written_files() if python_leftovers.is_confined() else (),
            tuple(value for name, value in _status() if name in _STATES),
            tuple(resource.getrlimit(number) for number in numbers),
            os.getcwd(),
            (os.getpriority(os.PRIO_PROCESS, 0), frozenset(os.sched_getaffinity(0))),
        )


def receive_first(end: socket.socket, most: int) -> tuple[bytes, int | None]:
    """The first bytes from the agent, and the file of a template if one came with them."""
    data, descriptors, _, _ = socket.recv_fds(end, most, 1)
    return data, descriptors[0] if descriptors else None


def make(image: int, before: ProcessState) -> bool:
    """Store this process, which was in the state `before`, in the file open as `image`. Returns False here,
    and True in every copy. Raises NotLoadable, with the reason why it cannot have a template."""
    try:
        return _make(image, before)
    except NoTemplate as error:
        raise python_handlers.NotLoadable(str(error)) from None


def _make(image: int, before: ProcessState) -> bool:
    _check(before)
    gc.collect()
    gc.freeze()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()  # with the hooks of libraries, which end the threads that they can start again
    if pid == 0:
        os.close(reading)
        if _store_in_fork(image, writing):
            return True
    os.close(writing)
    with open(reading, "rb") as file:
        if len(os.listdir("/proc/self/task")) > 1:
            os.kill(pid, signal.SIGKILL)
            reason = "it has started threads"
        else:
            reason = file.read().decode()
    _, status = os.waitpid(pid, 0)
    if reason or status:
        raise NoTemplate(reason or "the process that stored it died")
    return False


def _store_in_fork(image: int, writing: int) -> bool:
    """True in copies. The fork itself ends here."""
    reason = b"it could not be stored"
    try:
        os.set_inheritable(writing, False)
        if capture(image, writing):
            return True
        reason = b""
    except NoTemplate as error:
        reason = str(error).encode()
    except BaseException as error:  # noqa: BLE001 - it must not come back into the template's own loop
        reason = repr(error).encode()
    try:
        os.write(writing, reason)
    finally:
        os._exit(0)


def capture(image: int, *others: int) -> bool:
    """Store this process, without the descriptors `others`. False here, True in copies. Raises NoTemplate."""
    before, after = bytearray(_MAPS_BYTES), bytearray(_MAPS_BYTES)
    maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    if _descriptors() - {maps, *others} != set(range(image + 1)):
        raise NoTemplate("it keeps files or connections open")
    template_code.map_memory()
    collects = gc.isenabled()
    gc.disable()
    for _ in range(_ATTEMPTS):
        size = _read(maps, before)
        plan = _plan(image)
        listed = template_code.write_restore_list(plan.restore)
        head = _head(plan, listed)
        last = (image, template_code.REGISTERS_AT, listed, _LIST_AT)
        store = [*plan.store, Call(template_regions.PWRITE, last)]
        template_code.write_store_list(store)
        if _read(maps, after) != size or before != after:
            continue  # what was allocated meanwhile is not in the lists
        outcome = template_code.capture()
        if outcome == template_code.RESTORED:
            _become_copy(plan)
            if collects:
                gc.enable()
            return True
        lengths = [each.arguments[2] for each in store]
        if outcome != template_code.CAPTURED or template_code.store_results(len(store)) != lengths:
            raise NoTemplate("it needs more memory than a template may have")
        if _read(maps, after) == size and before == after:
            os.ftruncate(image, plan.size)
            _punch_holes(image, plan.size)
            os.pwrite(image, len(head).to_bytes(_LENGTH_BYTES, "little") + head, 0)
            return False
    raise NoTemplate("its memory does not come to rest")


def try_restore(image: int, folder: str) -> None:
    """Become a copy of the process that is stored in the file `image`, in `folder`. Returns, with the file
    closed, only if that is impossible; the function is loaded then."""
    try:
        restore(image, folder)
    except NoTemplate:
        os.close(image)


def restore(image: int, folder: str) -> None:
    """Raises NoTemplate, and then nothing has changed; never returns."""
    length = int.from_bytes(os.pread(image, _LENGTH_BYTES, 0), "little")
    if not 0 < length <= _HEAD_BYTES - _LENGTH_BYTES:
        raise NoTemplate("it is not complete")
    head = json.loads(os.pread(image, length, _LENGTH_BYTES))
    if head["launcher"] != _launcher():
        raise NoTemplate("it was made by another launcher")
    if head["files"] != [_identity(path) for path, *_ in head["files"]]:
        raise NoTemplate("files that it uses have changed")
    if head["image"] != image or _descriptors() != set(range(image + 1)):
        raise NoTemplate("its descriptors are not those of this process")
    template_code.map_memory()
    listed = ctypes.c_char * min(head["listed"], template_code.LIST_BYTES)
    os.preadv(image, [listed.from_address(template_code.REGISTERS_AT)], _LIST_AT)
    os.chdir(folder)
    template_code.restore()


def _plan(image: int) -> template_regions.MemoryPlan:
    regions = template_regions.parse(_read_text("/proc/self/smaps"))
    heap_end = _libc.sbrk(0)
    plan = template_regions.plan(
        regions, image=image, data_at=_DATA_AT, heap_end=heap_end, actions=_signal_actions()
    )
    if plan.size > os.fstat(image).st_size:
        raise NoTemplate("it needs more memory than a template may have")
    return plan


def _head(plan: template_regions.MemoryPlan, listed: int) -> bytes:
    head = json.dumps(
        {
            "launcher": _launcher(),
            "files": [_identity(path) for path in plan.files],
            "image": plan.store[0].arguments[0],
            "listed": listed,
        }
    ).encode()
    if len(head) > _HEAD_BYTES - _LENGTH_BYTES:
        raise NoTemplate("it maps too many files")
    return head


def _launcher() -> list[Any]:
    """The same in all forks of one process, which have their memory at the same addresses, and only there:
    where the kernel put its code, and the random bytes that it gave to the program."""
    random = _libc.getauxval(_AT_RANDOM)
    return [_libc.getauxval(_AT_SYSINFO_EHDR), random, ctypes.string_at(random, _RANDOM_BYTES).hex()]


def _identity(path: str) -> list[Any]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoTemplate(f"{path} is gone") from error
    return [path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _become_copy(plan: template_regions.MemoryPlan) -> None:
    """In a copy, first of all: what a fork would do, and new randomness."""
    if template_code.restore_results(1) != [plan.restore[0].arguments[0]]:
        os._exit(126)  # the heap could not be grown
    template_code.unmap_memory()
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.pythonapi.PyOS_AfterFork_Child()
    renew_randomness()


def renew_randomness() -> None:
    """Seed generators that would be equal in all copies, beyond what their own fork hooks do. A process id
    says nothing here: every worker has the same one in its own cell."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "_ssl" in modules:
        modules["_ssl"].RAND_add(os.urandom(64), 64.0)
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "uuid" in modules:
        vars(modules["uuid"])["_node"] = None  # of another network


def _check(before: ProcessState) -> None:
    """Raises NoTemplate if a copy would not be like a process that has loaded the function itself."""
    if not template_code.is_supported():
        raise NoTemplate("this machine is not supported")
    if threading.active_count() > 1:
        raise NoTemplate("it has started threads")
    if _has_processes():
        raise NoTemplate("it has started processes")
    now = ProcessState.read()
    if now.descriptors != before.descriptors:
        raise NoTemplate("it keeps files or connections open")
    if now.written != before.written:
        raise NoTemplate("it has written files")
    if now.folder != before.folder:
        raise NoTemplate("it has changed its folder")
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    if now != before or any(signal.getitimer(each)[0] for each in timers) or _read_text("/proc/self/timers"):
        raise NoTemplate("it has changed signals, timers or limits of its process")


def _written_files() -> tuple[str, ...]:
    return tuple(sorted(f"{folder}/{name}" for folder in _FOLDERS for name in os.listdir(folder)))


def _has_processes() -> bool:
    if python_leftovers.is_confined():
        return bool(python_leftovers.processes())
    return bool(_read_text(f"/proc/self/task/{os.getpid()}/children").strip())


def _descriptors() -> frozenset[int]:
    """Open ones, but not that of the listing."""
    names = os.listdir("/proc/self/fd")
    return frozenset(int(name) for name in names if os.path.lexists(f"/proc/self/fd/{name}"))


def _signal_actions() -> dict[int, bytes]:
    """What happens at each signal, also those that only the C library uses."""
    actions = {}
    for number in range(1, signal.NSIG):
        if number not in _UNCHANGEABLE:
            action = ctypes.create_string_buffer(_ACTION_BYTES)
            if _libc.syscall(template_regions.SIGACTION, number, None, action, _MASK_BYTES):
                raise NoTemplate("its signals cannot be read")
            actions[number] = action.raw
    return actions


def _status() -> list[tuple[str, str]]:
    lines = _read_text("/proc/self/status").splitlines()
    return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _read(maps: int, buffer: bytearray) -> int:
    """Read the open file into `buffer`, without allocating anything that would change what is read."""
    size = 0
    view = memoryview(buffer)
    while count := os.preadv(maps, [view[size:]], size):
        size += count
    if size == len(buffer):
        raise NoTemplate("it has too many mappings")
    return size


def _punch_holes(image: int, size: int) -> None:
    """Give pages of zeros back: nothing needs to be stored for them."""
    for start in range(_DATA_AT, size, _CHUNK):
        chunk = os.pread(image, min(_CHUNK, size - start), start)
        for at in range(0, len(chunk), PAGE):
            if chunk[at : at + PAGE] == _ZEROS:
                _libc.fallocate(image, _PUNCH_HOLE, start + at, PAGE)
