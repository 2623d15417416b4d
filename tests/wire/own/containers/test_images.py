"""Images over the wire: pulled with progress, listed, removed, and who may name a path of the node."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model import errors
from skerry.model.images import PullProgress
from skerry.model.workloads import UserNamespaceMode
from skerry.transport.grpc.channels import dial
from skerry.transport.grpc.progress import run_with_progress
from skerry.transport.proto import containers_pb2 as pb
from skerry.transport.proto.containers_grpc import ContainerServiceStub, ImageServiceStub
from tests.support.certificates import SERVER_NAME
from tests.support.containers import ID, LAYERS, an_image
from tests.support.waiting import eventually

WEB = "example.org/web:1"


async def refused(call) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


async def test_a_pull_tells_how_far_it_is_and_last_the_image(served, images):
    items = await images.Pull(pb.PullRequest(reference=WEB))
    *progress, last = items
    assert [each.WhichOneof("item") for each in items] == ["progress"] * len(progress) + ["image"]
    assert progress, "nothing was told"
    assert {each.progress.reference for each in progress} == {WEB}
    assert last.image == pb.Image(
        id=ID,
        names=[WEB],
        platform="linux/arm64/v8",
        config=pb.ImageConfig(
            entrypoint=["/bin/sh"],
            command=["-c", "true"],
            environment=["A=1"],
            user="web",
            folder="/srv",
            stop_signal="SIGINT",
            ports=["80/tcp"],
            volumes=["/data"],
            labels={"made-by": "hand"},
        ),
        layers=LAYERS,
        bytes=3 << 20,
        pulled_at=1000.0,
        manifest="sha256:" + "c" * 64,
    )
    assert served.images.pulled == [WEB]


async def test_progress_is_told_while_the_pull_goes_on(served, images):
    served.images.go_on.clear()
    async with images.Pull.open() as stream:
        await stream.send_message(pb.PullRequest(reference=WEB), end=True)
        first = await stream.recv_message()
        assert first.progress.message == "asking the registry"
        served.images.go_on.set()
        rest = [item async for item in stream]
    assert rest[-1].image.id == ID


async def test_a_pull_is_given_up_with_its_caller(served, images):
    served.images.go_on.clear()
    async with images.Pull.open() as stream:
        await stream.send_message(pb.PullRequest(reference=WEB), end=True)
        await stream.recv_message()
        await stream.cancel()
    await eventually(lambda: served.images.cancelled == 1)
    assert served.images.pulled == []


async def test_what_is_told_too_fast_is_told_by_its_newest_state():
    told: list[str] = []

    async def work(on_progress) -> int:
        for number in range(1000):
            on_progress(PullProgress(WEB, str(number)))
        return 7

    async def tell(progress: PullProgress) -> None:
        told.append(progress.message)

    assert await run_with_progress(work, tell) == 7
    assert told == ["999"]


async def test_a_pull_that_fails_is_told_in_its_own_words(served, images):
    served.images.fails = errors.NotFound("example.org has no web:1; look at the name")
    assert await refused(images.Pull(pb.PullRequest(reference=WEB))) == (
        Status.NOT_FOUND,
        "example.org has no web:1; look at the name",
    )


async def test_images_are_listed_and_removed(served, images):
    served.images.images = {WEB: an_image(WEB), "b": an_image("b", "c")}
    listed = await images.List(pb.ListImagesRequest())
    assert [list(each.names) for each in listed] == [[WEB], ["b", "c"]]
    assert (await images.Remove(pb.RemoveImageRequest(image=WEB))).bytes_freed == 3 << 20
    assert len(await images.List(pb.ListImagesRequest())) == 1
    served.images.used.add("b")
    assert (await refused(images.Remove(pb.RemoveImageRequest(image="b"))))[0] is Status.FAILED_PRECONDITION
    assert (await refused(images.Remove(pb.RemoveImageRequest(image=WEB))))[0] is Status.NOT_FOUND
    assert (await refused(images.Remove(pb.RemoveImageRequest())))[0] is Status.INVALID_ARGUMENT


async def test_what_nobody_needs_is_collected(images):
    assert (await images.Collect(pb.CollectRequest())).bytes_freed == 5 << 20


@pytest.mark.parametrize("reference", ["oci:/a", "oci-archive:/a", "docker-archive:/a", "rootfs:/a"])
async def test_only_an_admin_may_name_a_path_of_the_node(served, images, reference):
    spec = pb.ContainerSpec(name="web", image=reference)
    line = dial(str(served.path), served.tls("deployer"), server_name=SERVER_NAME)
    try:
        for call in (
            ImageServiceStub(line).Pull(pb.PullRequest(reference=reference)),
            ContainerServiceStub(line).Create(pb.CreateRequest(spec=spec)),
            ContainerServiceStub(line).Run(pb.CreateRequest(spec=spec)),
        ):
            status, text = await refused(call)
            assert status is Status.PERMISSION_DENIED
            assert "registry" in text
        await ImageServiceStub(line).Pull(pb.PullRequest(reference=WEB))
    finally:
        line.close()
    await images.Pull(pb.PullRequest(reference=reference))
    assert served.images.pulled == [WEB, reference]


async def test_only_an_admin_may_have_the_nodes_users(served):
    spec = pb.ContainerSpec(name="web", image=WEB, userns=pb.USER_NAMESPACE_HOST)
    line = dial(str(served.path), served.tls("deployer"), server_name=SERVER_NAME)
    try:
        for call in (ContainerServiceStub(line).Create, ContainerServiceStub(line).Run):
            status, text = await refused(call(pb.CreateRequest(spec=spec)))
            assert status is Status.PERMISSION_DENIED
            assert "userns host" in text
    finally:
        line.close()
    assert served.containers.views == {}
    line = dial(str(served.path), served.tls("admin"), server_name=SERVER_NAME)
    try:
        await ContainerServiceStub(line).Create(pb.CreateRequest(spec=spec))
    finally:
        line.close()
    assert served.containers.views["web"].spec.userns is UserNamespaceMode.HOST
