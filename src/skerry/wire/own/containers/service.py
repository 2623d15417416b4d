"""`skerry.containers.v1`: the images and containers of a node, with all features of Skerry.

Translation only, over the node's images and containers; `exec_stream` serves `Exec`. The node's images decide
which images the caller may name, by its access.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from functools import partial

import structlog
from grpclib.server import Stream

from skerry.model import errors
from skerry.model.containers import ContainerView
from skerry.model.images import Image, ImageAccess, PullProgress
from skerry.node.containers.ports import ContainerRuntime, ImageStore, OnPullProgress
from skerry.transport.access.spec_rules import check_userns
from skerry.transport.grpc.call_streams import caller_of, request_of
from skerry.transport.grpc.progress import run_with_progress
from skerry.transport.proto import cells_pb2
from skerry.transport.proto import containers_pb2 as pb
from skerry.transport.proto.containers_grpc import ContainerServiceBase, ImageServiceBase
from skerry.wire.own import grpc_logs
from skerry.wire.own.cells.messages import encode_exit
from skerry.wire.own.containers import exec_stream, messages

log = structlog.get_logger(__name__)


class ImageService(ImageServiceBase):
    """Serves `skerry.containers.v1.ImageService`."""

    def __init__(self, images: ImageStore) -> None:
        self._images = images

    async def Pull(self, stream: Stream[pb.PullRequest, pb.PullItem]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        access = caller_of(stream).image_access

        async def pull(on_progress: OnPullProgress) -> Image:
            return await self._images.pull(request.reference, access=access, on_progress=on_progress)

        async def send(progress: PullProgress) -> None:
            await stream.send_message(pb.PullItem(progress=messages.encode_progress(progress)))

        image = await run_with_progress(pull, send)
        await stream.send_message(pb.PullItem(image=messages.encode_image(image)))

    async def List(self, stream: Stream[pb.ListImagesRequest, pb.Image]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        for image in self._images.list():
            await stream.send_message(messages.encode_image(image))
            await asyncio.sleep(0)  # a node may have many, and others call, too

    async def Remove(self, stream: Stream[pb.RemoveImageRequest, pb.RemoveImageReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        if not request.image:
            raise errors.Invalid("image must be a reference or an id", field="image")
        freed = await self._images.remove(request.image, access=caller_of(stream).image_access)
        await stream.send_message(pb.RemoveImageReply(bytes_freed=freed))

    async def Collect(self, stream: Stream[pb.CollectRequest, pb.CollectReply]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        await stream.send_message(pb.CollectReply(bytes_freed=await self._images.collect()))


class ContainerService(ContainerServiceBase):
    """Serves `skerry.containers.v1.ContainerService`."""

    def __init__(self, containers: ContainerRuntime, images: ImageStore) -> None:
        self._containers = containers
        self._images = images

    async def Create(self, stream: Stream[pb.CreateRequest, pb.CreateItem]) -> None:  # noqa: N802 - gRPC's name
        await self._make(stream, starts=False)

    async def Run(self, stream: Stream[pb.CreateRequest, pb.CreateItem]) -> None:  # noqa: N802 - gRPC's name
        await self._make(stream, starts=True)

    async def Start(self, stream: Stream[pb.StartRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await stream.send_message(messages.encode_container(await self._containers.start(_name(request))))

    async def Stop(self, stream: Stream[pb.StopRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        grace_s = request.grace_s if request.HasField("grace_s") else None
        if grace_s is not None and not 0 <= grace_s < math.inf:
            raise errors.Invalid(f"grace_s must be 0 or more seconds, not {grace_s}", field="grace_s")
        view = await self._containers.stop(_name(request), grace_s=grace_s)
        await stream.send_message(messages.encode_container(view))

    async def Remove(self, stream: Stream[pb.RemoveRequest, pb.RemoveReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await self._containers.remove(_name(request), force=request.force)
        await stream.send_message(pb.RemoveReply())

    async def List(self, stream: Stream[pb.ListRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        for view in self._containers.list():
            await stream.send_message(messages.encode_container(view))
            await asyncio.sleep(0)  # a node may have many, and others call, too

    async def Get(self, stream: Stream[pb.GetRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await stream.send_message(messages.encode_container(self._containers.get(_name(request))))

    async def Wait(self, stream: Stream[pb.WaitRequest, pb.WaitReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        how = await self._containers.wait(_name(request))
        await stream.send_message(pb.WaitReply(exit=encode_exit(how)))

    async def Logs(self, stream: Stream[pb.LogsRequest, cells_pb2.LogItem]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        logs = partial(self._containers.logs, _name(request), previous=request.previous)
        sources = grpc_logs.log_sources(request, logs)
        async with aclosing(grpc_logs.log_items(sources, request)) as items:
            async for item in items:
                await stream.send_message(item)

    async def Stats(self, stream: Stream[pb.StatsRequest, pb.StatsReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await stream.send_message(messages.encode_stats(await self._containers.stats(_name(request))))

    async def Exec(self, stream: Stream[pb.ExecRequest, pb.ExecReply]) -> None:  # noqa: N802 - gRPC's name
        await exec_stream.serve_exec(stream, self._containers)

    async def _make(self, stream: Stream[pb.CreateRequest, pb.CreateItem], *, starts: bool) -> None:
        request = await request_of(stream)
        spec = messages.decode_spec(request.spec)
        caller = caller_of(stream)
        check_userns(spec.userns, caller)
        access = caller.image_access

        async def make(on_progress: OnPullProgress) -> ContainerView:
            await self._prepare_image(spec.image, request.pull, access, on_progress)
            return await self._containers.create(spec, access=access, starts=starts, on_progress=on_progress)

        async def send(progress: PullProgress) -> None:
            await stream.send_message(pb.CreateItem(progress=messages.encode_progress(progress)))

        view = await run_with_progress(make, send)
        await stream.send_message(pb.CreateItem(container=messages.encode_container(view)))

    async def _prepare_image(
        self, reference: str, pull: pb.Pull, access: ImageAccess, on_progress: OnPullProgress
    ) -> None:
        """Get the image as `pull` says; a missing one is pulled when the container is created."""
        match pull:
            case pb.PULL_MISSING:
                pass
            case pb.PULL_ALWAYS:
                await self._images.pull(reference, access=access, on_progress=on_progress)
            case pb.PULL_NEVER:
                self._images.find(reference, access=access)
            case _:
                raise errors.Invalid(f"pull {pull} is neither missing, always nor never", field="pull")


def _name(
    request: pb.StartRequest
    | pb.StopRequest
    | pb.RemoveRequest
    | pb.GetRequest
    | pb.WaitRequest
    | pb.LogsRequest
    | pb.StatsRequest,
) -> str:
    if not request.container:
        raise errors.Invalid("container must name one", field="container")
    return request.container
