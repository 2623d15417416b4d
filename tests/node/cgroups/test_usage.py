"""Usage from the files of a group."""

from __future__ import annotations

from skerry.model.cells import CellUsage
from skerry.node.cgroups import usage


def test_usage_of_a_v2_group() -> None:
    files = {
        "cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 3\nthrottled_usec 20\n",
        "memory.current": "4096\n",
        "memory.peak": "8192\n",
        "pids.current": "3\n",
        "io.stat": "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2\n",
        "memory.events": "low 0\noom 2\noom_kill 1\n",
    }
    assert usage.from_v2(lambda file: files.get(file, "")) == CellUsage(
        cpu_ns=1_500_000,
        throttled_ns=20_000,
        memory_bytes=4096,
        memory_peak_bytes=8192,
        pids=3,
        read_bytes=11,
        written_bytes=22,
        oom_kills=1,
    )


def test_usage_of_v1_groups() -> None:
    files = {
        "cpuacct.usage": "1500000\n",
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 20000\n",
        "memory.usage_in_bytes": "4096\n",
        "memory.max_usage_in_bytes": "8192\n",
        "pids.current": "3\n",
        "blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    }
    assert usage.from_v1(lambda file: files.get(file, "")) == CellUsage(
        cpu_ns=1_500_000,
        throttled_ns=20_000,
        memory_bytes=4096,
        memory_peak_bytes=8192,
        pids=3,
        read_bytes=10,
        written_bytes=20,
        oom_kills=1,
    )


def test_files_that_a_kernel_does_not_have_count_as_nothing() -> None:
    assert usage.from_v2(lambda _: "") == usage.from_v1(lambda _: "") == CellUsage()
