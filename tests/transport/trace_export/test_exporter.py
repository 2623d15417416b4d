"""Export of spans, decoded with the messages of OpenTelemetry."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.kit import traces
from skerry.kit.backoff import Backoff
from skerry.kit.traces import SpanRecorder, TraceContext, TraceSpan
from skerry.model import errors
from skerry.model.trace_settings import TraceSettings
from skerry.transport.trace_export import exporter as exporters
from skerry.transport.trace_export.exporter import TraceExporter, check_endpoint
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver

RESOURCE = {"service.name": "skerry", "service.instance.id": "shed"}


def exporter(recorder: SpanRecorder, receiver: OtlpReceiver, headers: str = "") -> TraceExporter:
    return TraceExporter(recorder, TraceSettings(endpoint=receiver.url, headers=headers), RESOURCE, "1.2")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_BACKOFF", Backoff(first_s=0.0))


async def test_a_span_arrives_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.touch(mode=0o600)
    path.write_text("authorization=Bearer a=b\n")
    recorder = SpanRecorder(1.0)
    root = recorder.begin(None)
    child = recorder.begin(root)
    attributes = {"faas.coldstart": True, "http.response.status_code": 500, "ratio": 0.5, "faas.name": "é"}
    other = TraceContext("1" * 32, "2" * 16)
    recorder.add(TraceSpan(child, root.span_id, "run", 3, 10, 20, attributes, "it broke", (other,)))
    with otlp_receiver() as receiver:
        exporting = exporter(recorder, receiver, str(path))
        await exporting.export()
        await exporting.close()
        assert receiver.problems == []
        (span,) = receiver.spans
        assert (span.trace, span.id, span.parent) == (root.trace_id, child.span_id, root.span_id)
        assert (span.name, span.kind, span.start, span.end, span.error) == ("run", 3, 10, 20, "it broke")
        assert span.attributes == attributes
        assert span.links == (("1" * 32, "2" * 16),)
        assert span.node == "shed"
        assert receiver.headers[0]["authorization"] == "Bearer a=b"


@pytest.mark.usefixtures("no_pauses")
async def test_a_receiver_that_is_away_for_a_moment_gets_the_spans_later() -> None:
    recorder = SpanRecorder(1.0)
    recorder.end(recorder.begin(None), None, "one", 0.1)
    with otlp_receiver() as receiver:
        receiver.statuses = [503, 429]
        exporting = exporter(recorder, receiver)
        await exporting.export()
        await exporting.close()
        assert [span.name for span in receiver.spans] == ["one"]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("statuses", "reason"), [([400], "refused"), ([302], "refused"), ([503] * 6, "unreachable")]
)
async def test_spans_that_are_not_taken_are_dropped_and_counted(statuses: list[int], reason: str) -> None:
    recorder, before = SpanRecorder(1.0), traces.DROPPED.labels(reason)._value.get()
    recorder.end(recorder.begin(None), None, "one", 0.1)
    with otlp_receiver() as receiver:
        receiver.statuses = statuses
        exporting = exporter(recorder, receiver)
        await exporting.export()
        await exporting.close()
        assert receiver.spans == []
        assert receiver.problems == []
    assert traces.DROPPED.labels(reason)._value.get() == before + 1


@pytest.mark.parametrize("url", ["collector:4318", "ftp://h/", "http://", "http://me:pw@h/v1/traces"])
def test_an_endpoint_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid, match=r"traces\.endpoint") as refused:
        check_endpoint(TraceSettings(endpoint=url))
    assert ":pw" not in str(refused.value)
