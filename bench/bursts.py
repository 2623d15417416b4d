"""Cold calls in numbers: many functions called at once for the first time, and a loop that creates, calls and
deletes, against `runc run` of a static `true` in the same run.

Both need more prestarted workers than are kept ready, so they show what making one costs. Rounds of what is
compared are interleaved.
"""

from __future__ import annotations

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
        for number in range(BURSTS):
            total, of_calls, of_failures = burst(client, f"burst-{number}")
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
    )
    if times:
        yield Figure(f"{AT_ONCE} cold functions at once, p50", percentile(times, 0.5) * 1e3, "ms")
        yield Figure(f"{AT_ONCE} cold functions at once, p99", percentile(times, 0.99) * 1e3, "ms")
    yield Figure(
        "cold call in a loop of create, call, delete, p50",
        percentile(calls, 0.5) / peer,
        "x runc run",
        at_most=0.25,
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


def burst(client: Client, prefix: str) -> tuple[float, list[float], list[str]]:
    """Call many functions at the same moment, for the first time: the time until the last has answered, that
    of each call, and failures."""
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
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    total = time.perf_counter() - began
    for name in names:
        client.post("/delete", {"Name": name})
    return total, times, failed
