"""What Prometheus is told of calls."""

from __future__ import annotations

import asyncio
import re

import pytest

from skerry.kit import metrics
from skerry.model import errors
from tests.support.simulated import passes
from tests.support.workers import Site, broken, function, in_simulated_time


def value(series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", metrics.render().decode(), re.MULTILINE)
    assert found is not None, series
    return float(found[1])


def calls(name: str, outcome: str) -> float:
    return value(f'skerry_function_calls_total{{function="{name}",outcome="{outcome}"}}')


@in_simulated_time
async def test_calls_are_counted_by_how_they_ended() -> None:
    async with Site(function("f"), function("bad"), memory_mb=128, queue_length=1) as site:
        for _ in range(3):
            await site.call("f")
        site.host.run_s = 2.0
        await site.call("f", max_response_s=1.0)
        gone = site.begin("f")
        await passes(0.5)
        gone.cancel()
        await asyncio.wait([gone])
        running, waiting = site.begin("f"), site.begin("f")
        await passes(0.5)
        with pytest.raises(errors.Overloaded):
            await site.call("f")
        assert value("skerry_function_queue_length") == 1
        assert value("skerry_function_workers") == 1
        assert value("skerry_function_idle_workers") == 0
        assert value("skerry_function_memory_used_megabytes") == 128
        await asyncio.gather(running, waiting)
        site.host.fault = broken
        await site.call("bad")
        assert calls("f", "Success") == 5
        assert [calls("f", outcome) for outcome in ("Timeout", "Cancelled", "Overloaded")] == [1, 1, 1]
        assert calls("bad", "LoadError") == 1
        assert value('skerry_function_cold_starts_total{function="f"}') == 3
        assert value('skerry_function_run_seconds_total{function="f"}') == pytest.approx(5.0, abs=0.1)
        assert value("skerry_function_duration_seconds_count") == 6
        assert value("skerry_function_init_seconds_count") == 3
        assert value('skerry_function_init_seconds_bucket{le="0.025"}') == 3
        assert value('skerry_function_init_seconds_bucket{le="0.005"}') == 0
        assert value("skerry_function_queueing_seconds_count") == 5  # three starts, one wait, one load


@in_simulated_time
async def test_a_pool_that_is_closed_is_counted_no_more() -> None:
    async with Site(function("f")) as site:
        await site.call("f")
        assert b"skerry_function_calls_total" in metrics.render()
    assert b"skerry_function_calls_total" not in metrics.render()
