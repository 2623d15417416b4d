"""The bytes of messages, so that a field never changes its number or its meaning."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from skerry.transport.proto import cells_pb2
from skerry.transport.proto import containers_pb2 as pb

LAYER = pb.LayerProgress(digest="d", state="pulling", bytes=1, total=300)
CONFIG = pb.ImageConfig(
    entrypoint=["e"],
    command=["c"],
    environment=["A=1"],
    user="u",
    folder="f",
    stop_signal="s",
    ports=["80/tcp"],
    volumes=["v"],
    labels={"k": "l"},
)
IMAGE = pb.Image(
    id="i",
    names=["n"],
    platform="p",
    config=CONFIG,
    layers=["d"],
    bytes=5,
    pulled_at=1.0,
    manifest="m",
    folder="r",
)
CONTAINER = pb.Container(
    spec=pb.ContainerSpec(name="a"),
    image="i",
    state=pb.STATE_EXITED,
    created_at=1.0,
    address="x",
    pid=7,
    started_at=2.0,
    exit=cells_pb2.Exit(at=3.0, code=0),
    reason="r",
)
START = pb.ExecStart(
    container="a",
    arguments=["b"],
    environment=["C=d"],
    user="u",
    folder="/",
    terminal=True,
    size=pb.TerminalSize(rows=24, columns=80),
    takes_input=True,
)


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (pb.PullRequest(reference="web"), "0a03776562"),
        (
            pb.PullItem(progress=pb.Progress(reference="web", message="m", layers=[LAYER])),
            "0a1b0a0377656212016d1a110a0164120770756c6c696e67180120ac02",
        ),
        (
            pb.PullItem(image=IMAGE),
            "12460a016912016e1a017022270a01651201631a03413d312201752a01663201733a0638302f746370420176"
            "4a060a016b12016c2a0164300539000000000000f03f42016d4a0172",
        ),
        (
            pb.CreateRequest(spec=pb.ContainerSpec(name="a", image="b"), pull=pb.PULL_NEVER),
            "0a060a01611201621002",
        ),
        (
            pb.CreateItem(container=CONTAINER),
            "12310a030a0161120169180321000000000000f03f2a01783007390000000000000040"
            "420b09000000000000084010004a0172",
        ),
        (pb.StopRequest(container="a", grace_s=0), "0a0161110000000000000000"),
        (pb.RemoveRequest(container="a", force=True), "0a01611001"),
        (
            pb.LogsRequest(
                container="a", channel=2, form=1, stdout_after=3, stderr_after=4, follow=True, tail=0
            ),
            "0a0161100218012003280430013800",
        ),
        (
            pb.StatsReply(
                usage=cells_pb2.Usage(pids=1), disk_bytes=2, disk_limit_bytes=3, disk_limit_kind="k"
            ),
            "0a0228011002180322016b",
        ),
        (pb.ExecRequest(start=START), "0a1b0a01611201621a03433d642201752a012f30013a04081810504001"),
        (pb.ExecRequest(input=b"x"), "120178"),
        (pb.ExecRequest(end_of_input=pb.EndOfInput()), "1a00"),
        (pb.ExecRequest(resize=pb.TerminalSize(rows=1, columns=2)), "220408011002"),
        (pb.ExecRequest(signal=15), "280f"),
        (pb.ExecReply(output=b"o"), "0a016f"),
        (pb.ExecReply(errors=b"e"), "120165"),
        (pb.ExecReply(exit_code=0), "1800"),
    ],
    ids=lambda value: value.DESCRIPTOR.name if isinstance(value, Message) else "",
)
def test_a_message_has_the_bytes_it_always_had(message: Message, golden: str) -> None:
    assert message.SerializeToString(deterministic=True).hex() == golden
    assert type(message).FromString(bytes.fromhex(golden)) == message
