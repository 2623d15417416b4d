"""What an earlier version said and wrote down, read by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skerry.model.node_messages import OrderUpdate, ReportBatch
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.node.agent.instances.records import InstanceRecords
from skerry.transport.links.nodes import messages
from tests.support.recordings import RECORDINGS, Recording, version_of

pytestmark = pytest.mark.parametrize("recording", RECORDINGS, ids=version_of)


def test_there_is_a_recording(recording: Recording) -> None:
    assert recording.facts["version"]


def test_what_an_earlier_node_says_is_understood(recording: Recording) -> None:
    first, *rest = recording.sent()
    hello = messages.decode_hello(first.hello)
    assert (hello.name, hello.facts.version) == ("edge-1", recording.facts["version"])
    reported: dict[str, list[InstanceStatus]] = {}
    for message in rest:
        batch = messages.decode_reports(message.reports)
        assert isinstance(batch, ReportBatch)
        for report in batch.reports:
            reported.setdefault(report.instance, []).append(report.status)
    assert reported[recording.facts["running"]][-1] is InstanceStatus.RUNNING
    assert reported[recording.facts["stopped"]][-1] is InstanceStatus.STOPPED


def test_what_an_earlier_server_says_is_understood(recording: Recording) -> None:
    first, *rest = recording.received()
    assert messages.decode_welcome(first.welcome).node == recording.facts["node"]
    reader = messages.MessageReader()
    told = [reader.read(message) for message in rest]
    assert None not in told
    ordered = {
        order.instance: order for update in told if isinstance(update, OrderUpdate) for order in update.orders
    }
    running, stopped = (ordered[recording.facts[name]] for name in ("running", "stopped"))
    assert (running.spec.name, running.spec.environment) == ("web", ("A=1",))
    assert (running.desired, stopped.desired) == (DesiredStatus.RUNNING, DesiredStatus.STOPPED)
    assert running.receipt


def test_orders_that_an_earlier_node_wrote_down_are_read_again(recording: Recording, tmp_path: Path) -> None:
    records = InstanceRecords(tmp_path / "instances")
    for path in (recording.folder / "node").iterdir():
        is_terms = path.name == "terms.json"
        shutil.copy(path, tmp_path / "instances" / ("" if is_terms else "copies") / path.name)
    found = {copy.instance: copy for copy in records.load()}
    assert found.keys() == {recording.facts["running"], recording.facts["stopped"]}
    assert found[recording.facts["running"]].order.spec.name == "web"
    config = records.config()
    assert config is not None
    assert config.node == recording.facts["node"]
