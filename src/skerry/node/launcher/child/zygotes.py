"""Workers without an exec: forks of an init, which is a fork of a launcher that has imported what they need.

The launcher calls `prepare` before anything else; an init calls `fork`. The child runs the same script as an
executable, so it is confined like one, and then runs its entry function. Its code can import the standard
library and its own files: neither our modules nor the path to them are available.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final, NoReturn

from skerry.node.kernel import syscalls
from skerry.node.launcher.child import exec_setup, messages
from skerry.node.launcher.child.prepared_scripts import PreparedScript
from skerry.node.launcher.child.syscall_scripts import SyscallScript

_SOCKET: Final = exec_setup.FIRST_PASSED
_STATUS: Final = _SOCKET + 1
_OWN_PACKAGE: Final = __name__.partition(".")[0]
# The interpreter ignores these, and raises errors instead.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)

# The entry function of every worker, called with the number of its socket.
_entry: list[Callable[[int], object]] = []
_hidden: list[ModuleType] = []


def prepare(entry: str, preload: Iterable[str]) -> None:
    """In the launcher: import what is shared. Modules of `preload` that cannot be imported are logged and
    skipped."""
    module, _, name = entry.partition(":")
    _entry[:] = [getattr(importlib.import_module(module), name)]
    for each in preload:
        try:
            importlib.import_module(each)
        except Exception as error:  # noqa: BLE001 - a module may do anything when it is imported
            print(f"functions.preload: {each} is not imported: {error}", file=sys.stderr)  # noqa: T201
    sys.path.remove(sys.argv[1])
    sys.argv[:] = [""]
    sys.dont_write_bytecode = True
    # Here and not in each worker: our modules stay usable for us, and cannot be imported any more.
    _hidden[:] = [
        sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == _OWN_PACKAGE
    ]


def fork(
    make_script: Callable[[list[int]], SyscallScript],
    passed: list[int],
    environment: dict[bytes, bytes],
    clone_into: int | None,
) -> tuple[int, int]:
    """A child that has run the script of `make_script` with the descriptors to keep, the first of which is
    its socket, and runs the entry. Returns its pid and a pidfd. Raises StepFailed, and then there is no
    process."""
    pid, pidfd, reading = _fork(
        lambda writing: make_script([*passed, writing]).perform, environment, clone_into
    )
    try:
        failure = read_status(reading)
    finally:
        os.close(reading)
    if failure is None:
        return pid, pidfd
    os.waitpid(pid, 0)
    os.close(pidfd)
    raise failure


def fork_prepared(
    make: Callable[[int], PreparedScript], environment: dict[bytes, bytes], clone_into: int | None
) -> tuple[int, int, int]:
    """The same with a prepared list, which `make` returns for the number of the status pipe: it passes the
    socket and this one on. Does not wait for the child: it is confined, or has failed, once there is
    something to read (`read_status`) on the third descriptor."""
    return _fork(lambda writing: make(writing).run, environment, clone_into)


def read_status(status: int) -> syscalls.StepFailed | None:
    """How the child failed; None if it is confined, or was killed. Waits until one of these is so."""
    number, _, step = os.read(status, 1024).partition(b" ")
    return syscalls.StepFailed(int(number), step.decode()) if number else None


def _fork(
    make: Callable[[int], Callable[[], None]], environment: dict[bytes, bytes], clone_into: int | None
) -> tuple[int, int, int]:
    if not _entry:
        raise syscalls.StepFailed(errno.ENOEXEC, "fork a worker")
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        confine = make(writing)
        pid, pidfd = syscalls.clone(0, clone_into)
        if pid == 0:
            _become(confine, environment, writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, pidfd, reading


def _become(confine: Callable[[], None], environment: dict[bytes, bytes], status: int) -> NoReturn:
    try:
        _set_python_signals()
        syscalls.set_name(messages.WORKER_NAME)
        confine()
        os.closerange(_STATUS, _STATUS + 2)  # and what the script opened
    except BaseException as error:  # noqa: BLE001 - a child must never come back into the init's loop
        _report(error, status)
        os._exit(127)
    code = 1
    try:
        os.environb.clear()
        os.environb.update(environment)
        gc.enable()
        _entry[0](_SOCKET)
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 1
    except BaseException:  # noqa: BLE001 - likewise
        traceback.print_exc()
    finally:
        os._exit(code)


def _set_python_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def _report(error: BaseException, status: int) -> None:
    number, step = getattr(error, "errno", None) or errno.EINVAL, getattr(error, "step", "fork a worker")
    report = b"%d %s" % (number, step.encode())
    try:
        os.write(status, report)
    except OSError:
        os.write(_STATUS, report)  # where it is from the middle of the script on
