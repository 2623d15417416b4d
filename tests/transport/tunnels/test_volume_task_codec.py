"""Tasks about volumes come out of a message as they went in, and names that are no names do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.ids import InstanceId, Namespace, VolumeId
from skerry.model.node_messages import TunnelRequest
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import ObjectStore, SnapshotLocation
from skerry.model.volume_tasks import VolumeAction, VolumeTask
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec, volume_task_codec

words = st.from_regex(r"[a-z0-9][a-z0-9]{0,11}", fullmatch=True)
texts = st.text(st.characters(categories=["L", "N", "P"]), max_size=20)
stores = st.builds(ObjectStore, texts, texts, texts, texts, texts, texts)
tasks = st.builds(
    VolumeTask,
    st.sampled_from(VolumeAction),
    words,
    (words | st.just("")).map(VolumeId),
    texts,
    words.map(Namespace),
    st.integers(0, 8192).map(Gigabytes),
    st.integers(0, 2**40),
    words | st.just(""),
    st.sampled_from(SnapshotLocation),
    texts,
    st.none() | stores,
)


@given(tasks)
def test_a_task_survives(task: VolumeTask) -> None:
    request = TunnelRequest("id", InstanceId(task.operation), task)
    message = tunnel_codec.encode_tunnel(request)
    assert tunnel_codec.decode_tunnel(pb.OpenTunnel.FromString(message.SerializeToString())) == request


@pytest.mark.parametrize(
    "message",
    [
        pb.VolumeAsk(),
        pb.VolumeAsk(action="snapshot"),
        pb.VolumeAsk(action="explode", operation="x"),
        pb.VolumeAsk(action="snapshot", operation="../x"),
        pb.VolumeAsk(action="snapshot", operation="x", volume="a/b"),
        pb.VolumeAsk(action="snapshot", operation="x", snapshot=".."),
        pb.VolumeAsk(action="snapshot", operation="x", location="moon"),
    ],
)
def test_one_that_could_leave_its_folder_is_refused(message: pb.VolumeAsk) -> None:
    with pytest.raises(errors.Invalid):
        volume_task_codec.decode_task(message)
