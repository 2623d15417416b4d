"""Cold calls of a function that imports numpy, against that import in a plain Python of the same run.

The function is called once its earlier worker has expired, so that every call starts one: from its template,
or, for comparison, by loading the code. The plain Python measures the import alone, without its own start.
numpy is Debian's, which functions can import from /usr like any program.
"""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.cells import family_pss_kb
from bench.figures import Figure
from bench.functions import Client, archive
from bench.serving import percentile, skerry

ROUNDS = 11
IDLE_WORKERS = 5
MEMORY_MB = 128
PAUSE_S = 0.6
WITHIN_S = 60.0
PYTHON = "/usr/bin/python3"
KEPT = ("--set", "functions.memory_mb=4096", "--set", "functions.template_memory_mb=512")
FLAGS = (
    *KEPT,
    "--set",
    "functions.keep_alive_s=0.2",
    "--set",
    "functions.spare_workers=6",
)
CODE = {
    "heavy.py": """
import sys
sys.path.append("/usr/lib/python3/dist-packages")
import time
import numpy

def handler(params, context):
    assert numpy.eye(3).sum() == 3
    return time.process_time()
"""
}
IMPORT = """
import time
begin, used = time.perf_counter(), time.process_time()
import numpy
print(time.perf_counter() - begin, time.process_time() - used)
"""


def measure() -> Iterator[Figure]:
    plain_import()  # once, so that the files are in memory for all
    with skerry(*FLAGS) as ready:
        yield from cold(Client(ready["http"]), ready["pid"])
    with skerry(*KEPT) as ready:
        yield from memory(Client(ready["http"]), ready["pid"])


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    processor: float


def cold(client: Client, agent: int) -> Iterator[Figure]:
    create(client, "copied", CODE, template=True)
    create(client, "loaded", CODE, template=False)
    wait_for_template(client.url)
    bare: list[Cost] = []
    took: dict[str, list[Cost]] = {"copied": [], "loaded": []}
    for _ in range(ROUNDS):
        for name, costs in took.items():
            time.sleep(PAUSE_S)
            costs.append(cold_call(client, name, agent))
        bare.append(plain_import())
    half, copied, loaded = (median(costs) for costs in (bare, took["copied"], took["loaded"]))
    name = "cold call of a function that imports numpy, p50"
    yield Figure("import of numpy in a plain Python, p50", half.wall * 1e3, "ms")
    yield Figure("the same, processor time", half.processor * 1e3, "ms")
    yield Figure(
        name,
        copied.wall / half.wall,
        "x that import",
        at_most=0.3,
        note=f"{copied.wall * 1e3:.1f} ms",
        peer=half.wall * 1e3,
        peer_unit="ms",
        peer_name="import",
    )
    # Less than the wall clock does this depend on what else the machine does: workers are in groups of their
    # own, and a busy machine gives these more than it gives a program.
    used = f"{copied.processor * 1e3:.1f} ms of agent and worker"
    yield Figure(
        f"{name}, processor time",
        copied.processor / half.processor,
        "x that import",
        at_most=0.3,
        note=used,
        peer=half.processor * 1e3,
        peer_unit="ms",
        peer_name="import",
    )
    yield Figure("without a template, p50", loaded.wall / half.wall, "x that import")
    yield Figure("the same, processor time", loaded.processor / half.processor, "x that import")


def median(costs: list[Cost]) -> Cost:
    return Cost(*(percentile(list(each), 0.5) for each in zip(*costs, strict=True)))


def cold_call(client: Client, name: str, agent: int) -> Cost:
    """The processor time is that of the agent, and of the worker from its very start on."""
    before, begin = processor_time(agent), time.perf_counter()
    report = client.post(f"/invoke/{name}", {"Params": {}})
    took = time.perf_counter() - begin
    if not report["Success"] or report["IsWarmStart"]:
        raise RuntimeError(f"not a cold call that worked: {report}")
    return Cost(took, processor_time(agent) - before + float(report["Result"]))


def processor_time(pid: int) -> float:
    # In nanoseconds, where `stat` counts in hundredths of a second.
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def memory(client: Client, pid: int) -> Iterator[Figure]:
    for name, template in (("loaded", False), ("copied", True)):
        create(client, name, CODE, template=template)
        if template:
            wait_for_template(client.url)
        before = family_pss_kb(pid)
        made = client.post("/prewarm", {"Function": name, "Instances": IDLE_WORKERS})["Prewarmed"]
        used = (family_pss_kb(pid) - before) / made / 1024
        words = "a copy" if template else "a worker that loaded numpy"
        yield Figure(f"memory of {words}", used, "MB of PSS", note=f"mean of {made} idle ones")


def create(client: Client, name: str, code: dict[str, str], *, template: bool) -> None:
    body = {
        "Name": name,
        "Runtime": "python311",
        "MemoryMB": MEMORY_MB,
        "Handler": "heavy.handler",
        "TarFunctionCode": archive(code),
        "Template": template,
    }
    client.post("/create", body)


def plain_import() -> Cost:
    told = subprocess.run([PYTHON, "-I", "-c", IMPORT], check=True, capture_output=True, text=True)
    return Cost(*map(float, told.stdout.split()))


def wait_for_template(url: str) -> None:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            if re.search(rb"^skerry_function_templates 1", answer.read(), re.MULTILINE):
                return
        time.sleep(0.2)
    raise RuntimeError("no template was made; see the log for template.refused")
