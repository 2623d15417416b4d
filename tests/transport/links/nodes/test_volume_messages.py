"""Volumes and mounts on the wire between servers and nodes: they arrive as they were sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, VolumeId
from skerry.model.mounts import Mount, MountKind
from skerry.model.node_messages import MAX_VOLUME_REPORTS, VolumeReportBatch, VolumeUpdate
from skerry.model.resources import Gigabytes
from skerry.model.volumes import VolumeOrder, VolumeReport
from skerry.transport.links.nodes import messages, volume_messages
from skerry.transport.links.nodes.messages import MessageReader
from skerry.transport.proto import nodes_pb2 as pb

MOUNTS = (
    Mount(MountKind.VOLUME, "/data", "db", True, is_exclusive=True, volume=VolumeId("01v")),
    Mount(MountKind.TMPFS, "/scratch", size=64),
    Mount(MountKind.HOST, "/www", "/srv/www", is_granted=True),
)


def test_mounts_arrive_as_they_were_sent() -> None:
    spec = pb.Spec(mounts=volume_messages.encode_mounts(MOUNTS))
    assert volume_messages.decode_mounts(pb.Spec.FromString(spec.SerializeToString()).mounts) == MOUNTS


@given(st.integers(0, 400), st.booleans(), st.booleans())
def test_orders_arrive_as_they_were_sent_in_as_many_parts_as_it_takes(
    count: int, may_create: bool, is_deleted: bool
) -> None:
    update = VolumeUpdate(
        tuple(
            VolumeOrder(
                VolumeId(f"01v{number}"),
                f"db-{number}",
                DEFAULT_NAMESPACE,
                Gigabytes(number + 1),
                number,
                may_create=may_create,
                is_deleted=is_deleted,
                receipt=b"x" * 5000,
                request_id="r1",
            )
            for number in range(count)
        )
    )
    reader = MessageReader()
    *before, last = [reader.read(part) for part in messages.encode_server_message(update)]
    assert last == update
    assert not any(before)


def test_reports_arrive_as_they_were_sent() -> None:
    batch = VolumeReportBatch(
        (
            VolumeReport(VolumeId("01v"), 3, used_bytes=2**40, capacity_bytes=2**41, receipt=b"r"),
            VolumeReport(VolumeId("01w"), 1, is_ready=False, reason="no disk"),
            VolumeReport(VolumeId("01x"), 2, is_ready=False, is_gone=True),
        )
    )
    sent = messages.encode_node_message(batch)
    assert messages.decode_volume_reports(sent.volume_reports) == batch


@pytest.mark.parametrize(
    "message",
    [
        pb.VolumeReports(reports=[pb.VolumeReport(id="../x")]),
        pb.VolumeReports(reports=[pb.VolumeReport(id="x", receipt=b"x" * 100_000)]),
        pb.VolumeReports(reports=[pb.VolumeReport(id="x")] * (MAX_VOLUME_REPORTS + 1)),
    ],
)
def test_reports_that_no_node_of_ours_sends_are_refused(message: pb.VolumeReports) -> None:
    with pytest.raises((errors.Invalid, errors.TooLarge)):
        messages.decode_volume_reports(message)


@pytest.mark.parametrize(
    "order",
    [
        pb.VolumeOrder(id="../x", name="db", namespace="default", size_gb=1),
        pb.VolumeOrder(id="x", name="../db", namespace="default", size_gb=1),
        pb.VolumeOrder(id="x", name="db", namespace="default", size_gb=0),
        pb.VolumeOrder(id="x", name="db", namespace="", size_gb=1),
    ],
)
def test_orders_that_lead_out_of_the_folder_of_volumes_are_refused(order: pb.VolumeOrder) -> None:
    with pytest.raises(errors.Invalid):
        MessageReader().read(pb.ToNode(volumes=pb.Volumes(orders=[order])))
