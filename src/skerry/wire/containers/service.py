"""`skerry.containers.v1`: the images and containers of a node, with all that Skerry can do with them.

Translation only, over the node's images and containers; what runs in `Exec` is served by `sessions`. The
one decision taken here is about who: an image from a path on the node takes an admin, because whoever names
the path can read what is there.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from functools import partial

import structlog
from grpclib.server import Stream

from skerry.kit.tasks import finish
from skerry.model import errors
from skerry.model.containers import ContainerSpec, ContainerView
from skerry.model.identity import Caller, Role
from skerry.model.images import Image, PullProgress
from skerry.node.images import references
from skerry.wire.cells import output
from skerry.wire.cells.messages import told_exit
from skerry.wire.containers import messages, sessions
from skerry.wire.containers.keeper import ContainerKeeper, ImageKeeper, OnProgress
from skerry.wire.containers.progress import telling
from skerry.wire.grpc.streams import caller_of
from skerry.wire.proto import cells_pb2
from skerry.wire.proto import containers_pb2 as pb
from skerry.wire.proto.containers_grpc import ContainerServiceBase, ImageServiceBase

log = structlog.get_logger(__name__)


class ImageService(ImageServiceBase):
    """Serves `skerry.containers.v1.ImageService`."""

    def __init__(self, images: ImageKeeper) -> None:
        self._images = images

    async def Pull(self, stream: Stream[pb.PullRequest, pb.PullItem]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        _check_reference(request.reference, caller_of(stream))

        async def pull(on_progress: OnProgress) -> Image:
            return await self._images.pull(request.reference, on_progress=on_progress)

        async def tell(progress: PullProgress) -> None:
            await stream.send_message(pb.PullItem(progress=messages.told_progress(progress)))

        image = await telling(pull, tell)
        await stream.send_message(pb.PullItem(image=messages.told_image(image)))

    async def List(self, stream: Stream[pb.ListImagesRequest, pb.Image]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        for image in self._images.list():
            await stream.send_message(messages.told_image(image))
            await asyncio.sleep(0)  # a node may have many, and others call, too

    async def Remove(self, stream: Stream[pb.RemoveImageRequest, pb.RemoveImageReply]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        if not request.image:
            raise errors.Invalid("image must be a reference or an id", field="image")
        freed = await self._images.remove(request.image)
        await stream.send_message(pb.RemoveImageReply(bytes_freed=freed))

    async def Collect(self, stream: Stream[pb.CollectRequest, pb.CollectReply]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        await stream.send_message(pb.CollectReply(bytes_freed=await self._images.collect()))


class ContainerService(ContainerServiceBase):
    """Serves `skerry.containers.v1.ContainerService`."""

    def __init__(self, containers: ContainerKeeper, images: ImageKeeper) -> None:
        self._containers = containers
        self._images = images

    async def Create(self, stream: Stream[pb.CreateRequest, pb.CreateItem]) -> None:  # noqa: N802 - gRPC's name
        await self._make(stream, starts=False)

    async def Run(self, stream: Stream[pb.CreateRequest, pb.CreateItem]) -> None:  # noqa: N802 - gRPC's name
        await self._make(stream, starts=True)

    async def Start(self, stream: Stream[pb.StartRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(messages.told_container(await self._containers.start(_name(request))))

    async def Stop(self, stream: Stream[pb.StopRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        grace_s = request.grace_s if request.HasField("grace_s") else None
        if grace_s is not None and not 0 <= grace_s < math.inf:
            raise errors.Invalid(f"grace_s must be 0 or more seconds, not {grace_s}", field="grace_s")
        view = await self._containers.stop(_name(request), grace_s=grace_s)
        await stream.send_message(messages.told_container(view))

    async def Remove(self, stream: Stream[pb.RemoveRequest, pb.RemoveReply]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        await self._containers.remove(_name(request), force=request.force)
        await stream.send_message(pb.RemoveReply())

    async def List(self, stream: Stream[pb.ListRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        for view in self._containers.list():
            await stream.send_message(messages.told_container(view))
            await asyncio.sleep(0)  # a node may have many, and others call, too

    async def Get(self, stream: Stream[pb.GetRequest, pb.Container]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(messages.told_container(self._containers.get(_name(request))))

    async def Wait(self, stream: Stream[pb.WaitRequest, pb.WaitReply]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        how = await self._containers.wait(_name(request))
        await stream.send_message(pb.WaitReply(exit=told_exit(how)))

    async def Logs(self, stream: Stream[pb.LogsRequest, cells_pb2.LogItem]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        sources = output.sources_of(request, partial(self._containers.logs, _name(request)))
        async with aclosing(output.items(sources, request)) as items:
            async for item in items:
                await stream.send_message(item)

    async def Stats(self, stream: Stream[pb.StatsRequest, pb.StatsReply]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(messages.told_stats(await self._containers.stats(_name(request))))

    async def Exec(self, stream: Stream[pb.ExecRequest, pb.ExecReply]) -> None:  # noqa: N802 - gRPC's name
        await sessions.serve(stream, self._containers)

    async def _make(self, stream: Stream[pb.CreateRequest, pb.CreateItem], *, starts: bool) -> None:
        request = await stream.recv_message()
        assert request is not None
        spec = messages.spec_of(request.spec)
        _check_reference(spec.image, caller_of(stream))

        async def make(on_progress: OnProgress) -> ContainerView:
            await self._have_image(spec.image, request.pull, on_progress)
            view = await self._containers.create(spec, on_progress=on_progress)
            return await self._start_or_undo(spec) if starts else view

        async def tell(progress: PullProgress) -> None:
            await stream.send_message(pb.CreateItem(progress=messages.told_progress(progress)))

        view = await telling(make, tell)
        await stream.send_message(pb.CreateItem(container=messages.told_container(view)))

    async def _have_image(self, reference: str, pull: pb.Pull, on_progress: OnProgress) -> None:
        """As the caller wants its image; to pull what is missing is left to the making of the container."""
        match pull:
            case pb.PULL_MISSING:
                pass
            case pb.PULL_ALWAYS:
                await self._images.pull(reference, on_progress=on_progress)
            case pb.PULL_NEVER:
                self._images.find(reference)
            case _:
                raise errors.Invalid(f"pull {pull} is neither missing, always nor never", field="pull")

    async def _start_or_undo(self, spec: ContainerSpec) -> ContainerView:
        try:
            return await self._containers.start(spec.name)
        except BaseException:
            try:
                await finish(self._containers.remove(spec.name, force=True))
            except errors.SkerryError as error:  # why it did not start matters more
                log.warning("container.left", container=spec.name, error=error.message, detail=error.detail)
            raise


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


def _check_reference(reference: str, caller: Caller) -> None:
    is_path = not isinstance(references.parse(reference), references.RegistryReference)
    if is_path and caller.role is not Role.ADMIN:
        raise errors.Forbidden(
            "only an admin may use an image from a path on the node; push it to a registry"
        )
