"""Processes that hold new namespaces: what they are in, what they have, and that they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skerry.node.kernel.syscalls import CLONE_NEWNET, CLONE_NEWUSER, CLONE_NEWUTS
from skerry.node.kernel.waiting_processes import waiting_process
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

HOLDER = """
import os
from skerry.node.kernel.syscalls import CLONE_NEWUSER
from skerry.node.kernel.waiting_processes import waiting_process
with waiting_process(CLONE_NEWUSER) as pid:
    print(pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def namespace(kind: str, pid: int | str = "self") -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def test_a_waiting_process_is_in_the_new_namespaces_and_no_others() -> None:
    with waiting_process(CLONE_NEWUSER | CLONE_NEWNET) as pid:
        for kind in ("user", "net"):
            assert namespace(kind, pid) != namespace(kind)
        for kind in ("mnt", "pid", "uts", "ipc"):
            assert namespace(kind, pid) == namespace(kind)


async def test_a_waiting_process_keeps_no_descriptor_of_ours_but_its_pipe() -> None:
    with open("/etc/hostname"), waiting_process(CLONE_NEWUSER) as pid:
        await eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) == 1)
        (number,) = os.listdir(f"/proc/{pid}/fd")
        assert os.readlink(f"/proc/{pid}/fd/{number}").startswith("pipe:")


def test_a_waiting_process_ends_with_the_block() -> None:
    with waiting_process(CLONE_NEWUSER) as pid:
        pass
    assert not Path(f"/proc/{pid}").exists()


def test_waiting_processes_of_many_threads_end_in_any_order() -> None:
    pids: list[int] = []
    everybody = threading.Barrier(8)

    def hold() -> None:
        with waiting_process(CLONE_NEWUTS) as pid:
            pids.append(pid)
            everybody.wait(10)

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(pids)) == 8
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_the_kernel_refuses_is_an_error_and_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Invalid argument"), waiting_process(CLONE_NEWUSER | 0x200):
        raise AssertionError("CLONE_FS and a user namespace exclude each other")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_waiting_process_ends_when_its_maker_is_killed() -> None:
    made = subprocess.run((sys.executable, "-c", HOLDER), capture_output=True, text=True, check=False)
    assert made.returncode == -9
    stat = Path(f"/proc/{int(made.stdout)}")
    await eventually(lambda: not stat.exists() or " Z " in (stat / "stat").read_text())
