"""The spans of calls: which there are, how they nest, and that there are none without a trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.kit import traces
from skerry.kit.traces import SpanRecorder, TraceContext, TraceSpan
from skerry.model.calls import CallRequest
from skerry.model.ids import FunctionName
from tests.support.workers import FakeWorker, Site, broken, function, in_simulated_time

PARENT = TraceContext("a" * 32, "b" * 16)


@pytest.fixture(autouse=True)
def recorder() -> Iterator[SpanRecorder]:
    made = SpanRecorder(1.0)
    traces.install(made)
    yield made
    traces.install(None)


def traced(parent: TraceContext = PARENT) -> CallRequest:
    return CallRequest(FunctionName("f"), traceparent=parent.traceparent)


def by_name(recorder: SpanRecorder) -> dict[str, TraceSpan]:
    return {span.name: span for span in recorder.take(100)}


def test_a_cold_call_has_its_wait_its_start_with_phases_and_its_run_within_it(
    recorder: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []
    original = FakeWorker.call

    async def call(self: FakeWorker, params: bytes, **more: object) -> object:
        self.start_phases = (("take process", 0.002), ("load code", 0.005))
        got.append(str(more.get("traceparent", "")))
        return await original(self, params, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeWorker, "call", call)

    @in_simulated_time
    async def run() -> None:
        async with Site(function("f")) as site:
            await site.invoker.invoke(traced())

    run()
    spans = by_name(recorder)
    whole, start, run_span = spans["invoke f"], spans["start worker"], spans["run f"]
    assert whole.parent_id == PARENT.span_id
    assert {span.context.trace_id for span in spans.values()} == {PARENT.trace_id}
    assert (start.parent_id, run_span.parent_id) == (whole.context.span_id,) * 2
    assert whole.start_ns <= start.start_ns < start.end_ns <= run_span.start_ns < run_span.end_ns
    assert run_span.end_ns == whole.end_ns
    first, second = spans["take process"], spans["load code"]
    assert (first.parent_id, second.parent_id) == (start.context.span_id,) * 2
    assert (first.start_ns, first.end_ns) == (start.start_ns, second.start_ns)
    assert second.end_ns <= start.end_ns
    assert (whole.attributes["faas.name"], whole.attributes["faas.coldstart"]) == ("f", True)
    assert got == [run_span.context.traceparent]


@in_simulated_time
async def test_a_warm_call_only_runs() -> None:
    async with Site(function("f")) as site:
        await site.call("f")
        await site.invoker.invoke(traced())
    assert traces.recorder is not None
    spans = by_name(traces.recorder)
    assert sorted(spans) == ["invoke f", "run f"]
    assert spans["invoke f"].attributes["faas.coldstart"] is False


@in_simulated_time
async def test_a_call_that_gets_no_worker_waits_and_fails() -> None:
    async with Site(function("f")) as site:
        site.host.fault = broken
        await site.invoker.invoke(traced())
    assert traces.recorder is not None
    spans = by_name(traces.recorder)
    assert "run f" not in spans
    assert spans["invoke f"].error is not None


@pytest.mark.parametrize(
    "request_", [CallRequest(FunctionName("f")), traced(PARENT._replace(is_sampled=False))]
)
def test_without_a_sampled_trace_nothing_is_recorded(recorder: SpanRecorder, request_: CallRequest) -> None:
    @in_simulated_time
    async def run() -> None:
        async with Site(function("f")) as site:
            assert (await site.invoker.invoke(request_)).answer.failure is None

    run()
    assert len(recorder) == 0
