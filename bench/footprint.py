"""What Skerry takes while it does nothing: memory of all its processes, processor time of a start, and of
`skerry status`.

Memory is PSS, in which a page that processes share counts once: all processes that `skerry up` and
`skerry node` have started. Without a function there are no workers, and no zygote that they are forked
from; what those take is told beside it. Byte code is compiled before, as an installation
does. Processor time is that of all processes until the ready file is there, those that have ended included;
that of a command is measured the same way, against the interpreter alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.figures import Figure

REST_S: Final = 6.0  # until prestarted workers and the first reports are done
STARTS: Final = 3
CALLS: Final = 10


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as name:
        folder = Path(name)
        environment = _environment(folder / "bytecode")
        with _running(folder / "compiling", environment, "up"):
            pass
        starts = []
        for number in range(STARTS):
            with _running(folder / f"start-{number}", environment, "up") as started:
                starts.append(started.cpu_s)
        with _running(folder / "up", environment, "up") as up:
            yield from _memory("skerry up", up, at_most=120.0)
            yield Figure(
                "processor time of a start, until it is ready",
                min(starts),
                "s",
                at_most=1.0,
                note=f"of all its processes; the least of {STARTS}, the most {max(starts):.2f} s",
            )
            yield from _status(up, environment)
            join = _command(environment, up.data, "token", "create", "--role", "node")
            with _running(
                folder / "node", environment, "node", "--join", join.split()[0], "--name", "n2"
            ) as node:
                yield from _memory("skerry node", node, at_most=80.0)
                code = folder / "hello.py"
                code.write_text("def handler(params, context):\n    return params\n")
                _command(environment, up.data, "fn", "deploy", str(code))
                yield from _memory("skerry node that may run a function", node)


def _memory(name: str, started: _Started, *, at_most: float | None = None) -> Iterator[Figure]:
    time.sleep(REST_S)
    sizes = {pid: _pss_mb(pid) for pid in _tree(started.pid)}
    own = sizes.pop(started.pid)
    yield Figure(
        f"memory of {name} at rest, all its processes",
        own + sum(sizes.values()),
        "MB of PSS",
        at_most=at_most,
        note=f"{own:.0f} MB its own, {sum(sizes.values()):.0f} MB of {len(sizes)} others",
    )


def _status(up: _Started, environment: dict[str, str]) -> Iterator[Figure]:
    took: list[float] = []
    wall: list[float] = []
    bare: list[float] = []
    for _ in range(CALLS):
        began, cpu = time.perf_counter(), _children_s()
        _command(environment, up.data, "status")
        wall.append(time.perf_counter() - began)
        took.append(_children_s() - cpu)
        cpu = _children_s()
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        bare.append(_children_s() - cpu)
    yield Figure(
        "processor time of `skerry status`, p50",
        statistics.median(took) * 1e3,
        "ms",
        at_most=120.0,
        note=f"{statistics.median(wall) * 1e3:.0f} ms from call to end; the interpreter alone "
        f"{statistics.median(bare) * 1e3:.0f} ms",
    )


class _Started:
    """A process that is ready, and the processor time that it took."""

    def __init__(self, pid: int, data: Path, cpu_s: float) -> None:
        self.pid = pid
        self.data = data
        self.cpu_s = cpu_s


@contextlib.contextmanager
def _running(folder: Path, environment: dict[str, str], role: str, *flags: str) -> Iterator[_Started]:
    """`skerry ROLE` on a new data folder, from its start to its end."""
    folder.mkdir()
    ready_file = folder / "ready.json"
    command = [sys.executable, "-m", "skerry", role, "--data", str(folder / "data"), "--log-level", "error"]
    command += ["--socket", str(folder / "s.sock"), "--ready-file", str(ready_file)]
    if role != "node":
        command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    process = subprocess.Popen([*command, *flags], env=environment)
    try:
        while not ready_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"skerry {role} ended with {process.returncode} before it was ready")
            time.sleep(0.005)
        yield _Started(process.pid, folder / "data", sum(map(_cpu_s, _tree(process.pid))))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _environment(bytecode: Path) -> dict[str, str]:
    skipped = ("SKERRY_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(skipped)}
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode)}


def _command(environment: dict[str, str], data: Path, *arguments: str) -> str:
    called = {**environment, "SKERRY_DATA": str(data)}
    command = [sys.executable, "-m", "skerry", *arguments]
    return subprocess.run(command, env=called, check=True, capture_output=True, text=True).stdout


def _tree(pid: int) -> list[int]:
    """A process and all that come from it."""
    found = [pid]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _cpu_s(pid: int) -> float:
    """Of a process, and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0) / 1024
