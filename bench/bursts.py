"""Cold calls in numbers: many functions called at once for the first time, and a loop that creates, calls and
deletes, against `runc run` of a static `true` in the same run.

Both need more prestarted workers than are kept ready, so they show what making one costs. Rounds of what is
compared are interleaved. Processor time is that of the whole machine, by the kernel's count, so it includes
this program, what the kernel does for nobody, and the removal of the workers, which the time of a burst does
not. The floor is a fork of an interpreter that loads the same handler, calls it once and exits: without a
cell, limits, a network, HTTP and a server.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.cells import make_bundle, runc_run
from bench.figures import Figure
from bench.functions import FLAGS, PYTHON, Client
from bench.serving import percentile, skerry

AT_ONCE = 100
BURSTS = 2
LOOPS = 60
LOOPS_PER_ROUND = 10
RUNC_PER_ROUND = 5
FORKS = 100
INTERPRETER = "/usr/bin/python3"  # of workers
REST_S = 2.0  # in which the kernel removes what is left
TICKS = os.sysconf("SC_CLK_TCK")
# What a worker does at the very least. Prints the processor time of parent and child for each fork.
FLOOR = """
import gc, importlib, json, os, resource, socket, sys
sys.path.append(sys.argv[1])
import contextvars, inspect, queue, site, threading, time
gc.freeze()
for number in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os.chdir(sys.argv[1])
        handler = importlib.import_module("noop").handler
        json.dumps(handler(json.loads("{}"), {}))
        os._exit(0)
    os.waitpid(pid, 0)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(each.ru_utime + each.ru_stime for each in used))
"""


def measure() -> Iterator[Figure]:
    with skerry(*FLAGS) as ready, tempfile.TemporaryDirectory(prefix="skerry-runc-") as name:
        bundle = Path(name)
        make_bundle(bundle)
        client = Client(ready["http"])
        cycle(client, "first")
        runc = [runc_run(bundle, number) for number in range(RUNC_PER_ROUND)]
        calls: list[float] = []
        cycles: list[float] = []
        for number in range(LOOPS):
            begin = time.perf_counter()
            calls.append(cycle(client, f"loop-{number}"))
            cycles.append(time.perf_counter() - begin)
            if number % LOOPS_PER_ROUND == LOOPS_PER_ROUND - 1:
                runc += [runc_run(bundle, each) for each in range(RUNC_PER_ROUND)]
        totals: list[float] = []
        times: list[float] = []
        failed: list[str] = []
        used: list[tuple[float, float]] = []
        floors: list[float] = []
        for number in range(BURSTS):
            total, of_calls, of_failures, of_processors = burst(client, f"burst-{number}")
            used.append(of_processors)
            floors.append(floor(bundle))
            totals.append(total / AT_ONCE)
            times += of_calls
            failed += of_failures
            runc += [runc_run(bundle, each) for each in range(RUNC_PER_ROUND)]
    peer = percentile(runc, 0.5)
    yield Figure("runc run of a static true, p50", peer * 1e3, "ms")
    yield Figure(f"{AT_ONCE} cold functions at once that fail", len(failed), "calls", at_most=0)
    yield Figure(
        f"{AT_ONCE} cold functions at once, total per function",
        sum(totals) / BURSTS / peer,
        "x runc run",
        at_most=0.2,
        peer=peer * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    least = sum(floors) / BURSTS
    for name, at in (("until all have answered", 0), ("with their removal", 1)):
        took = sum(each[at] for each in used) / BURSTS / AT_ONCE
        yield Figure(
            f"{AT_ONCE} cold functions at once, processor time of each, {name}",
            took * 1e3,
            "ms",
            peer=least * 1e3,
            peer_unit="ms",
            peer_name="a fork that loads and calls the handler",
        )
    if times:
        yield Figure(f"{AT_ONCE} cold functions at once, p50", percentile(times, 0.5) * 1e3, "ms")
        yield Figure(f"{AT_ONCE} cold functions at once, p99", percentile(times, 0.99) * 1e3, "ms")
    yield Figure(
        "cold call in a loop of create, call, delete, p50",
        percentile(calls, 0.5) / peer,
        "x runc run",
        at_most=0.25,
        peer=peer * 1e3,
        peer_unit="ms",
        peer_name="runc run",
    )
    yield Figure(
        "create, call and delete together, p50", percentile(cycles, 0.5) / peer, "x runc run", note=f"{LOOPS}"
    )


def cycle(client: Client, name: str) -> float:
    """Create a function, call it and delete it; returns the time of the call."""
    client.create(name, "python310", "noop.handler", PYTHON)
    took = client.first_call(name)
    client.post("/delete", {"Name": name})
    return took


def processor_time() -> float:
    """Seconds that all processors of this machine have worked."""
    user, nice, system, _idle, _waiting, hard, soft = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + hard + soft) / TICKS


def floor(folder: Path) -> float:
    """Seconds of processor time for one fork of an interpreter that loads and calls the handler."""
    for name, text in PYTHON.items():
        (folder / name).write_text(text)
    command = [INTERPRETER, "-I", "-c", FLOOR, str(folder)]
    some, none = (
        float(subprocess.run([*command, str(forks)], check=True, capture_output=True, text=True).stdout)
        for forks in (FORKS, 0)
    )
    return (some - none) / FORKS


def burst(client: Client, prefix: str) -> tuple[float, list[float], list[str], tuple[float, float]]:
    """Call many functions at the same moment, for the first time: the time until the last has answered, that
    of each call, failures, and the processor time of the machine, until then and with the removal."""
    names = [f"{prefix}-{number}" for number in range(AT_ONCE)]
    for name in names:
        client.create(name, "python310", "noop.handler", PYTHON)
    begin = threading.Barrier(AT_ONCE + 1)
    times: list[float] = []
    failed: list[str] = []

    def call(name: str) -> None:
        with Client(client.url) as own:
            begin.wait()
            try:
                times.append(own.first_call(name))
            except RuntimeError as error:
                failed.append(str(error))

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    before = processor_time()
    began = time.perf_counter()
    begin.wait()
    for thread in threads:
        thread.join()
    total = time.perf_counter() - began
    answered = processor_time() - before
    between = processor_time()
    for name in names:
        client.post("/delete", {"Name": name})
    time.sleep(REST_S)
    return total, times, failed, (answered, answered + processor_time() - between)
