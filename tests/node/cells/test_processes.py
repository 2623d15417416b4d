"""Signals to real processes: to all that are meant, and to no other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from skerry.node.cells.processes import HostProcesses


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    with contextlib.ExitStack() as ends:
        started = []
        for _ in range(count):
            started.append(subprocess.Popen(["sleep", "1000"]))
            ends.callback(started[-1].wait)
            ends.callback(started[-1].kill)
        yield started


def test_every_one_of_a_crowd_is_asked() -> None:
    with sleepers(70) as crowd:
        pids = [each.pid for each in crowd]
        assert HostProcesses().sigterm(lambda: pids) == set(pids)
        assert {each.wait() for each in crowd} == {-signal.SIGTERM}


def test_one_that_left_the_group_meanwhile_is_not_asked() -> None:
    with sleepers(2) as (stays, leaves):
        answers = iter([[stays.pid, leaves.pid], [stays.pid]])
        HostProcesses().sigterm(lambda: next(answers))
        assert stays.wait() == -signal.SIGTERM
        assert leaves.poll() is None


def test_one_that_is_gone_is_passed_over() -> None:
    with sleepers(2) as (gone, stays):
        gone.kill()
        gone.wait()
        HostProcesses().sigterm(lambda: [gone.pid, stays.pid])
        assert stays.wait() == -signal.SIGTERM


def test_a_stray_is_asked_and_the_child_of_one_that_lives_is_not() -> None:
    family = "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", family], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    with sleepers(2) as (stray, asked_before):
        pids = [parent.pid, child, stray.pid, asked_before.pid]
        HostProcesses().sigterm_orphans(lambda: pids, {parent.pid, asked_before.pid})
        assert stray.wait() == -signal.SIGTERM
        assert asked_before.poll() is None
    assert parent.poll() is None
    os.kill(child, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


def test_a_process_is_known_by_its_pid_and_when_it_began() -> None:
    with sleepers(1) as (one,):
        began = HostProcesses().start_time(one.pid)
        assert began is not None
        assert began == HostProcesses().start_time(one.pid)
    assert HostProcesses().start_time(one.pid) is None
