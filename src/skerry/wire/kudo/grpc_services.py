"""Kudo's gRPC services: SchedulerService of the older document, NodeService and InstanceService of the newer.

Translation only, over the control plane. Each service speaks its own document's messages and numbers. No
document has a package, and Kudo's program has one; clients of either are served, at both paths.
"""

from __future__ import annotations

import enum
from contextlib import aclosing
from typing import Protocol

import structlog
from google.protobuf.empty_pb2 import Empty
from grpclib import const
from grpclib._typing import IServable
from grpclib.server import Stream

from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.nodes import Facts
from skerry.model.room import NOTHING
from skerry.model.workloads import Instance
from skerry.wire.grpc.streams import caller_of
from skerry.wire.kudo import grpc_controller, grpc_scheduler
from skerry.wire.kudo.grpc_keeper import Certificates, InstanceKeeper, NodeKeeper
from skerry.wire.kudo.grpc_registering import BadCertificate, check_speaks_for, node_of
from skerry.wire.kudo.grpc_reports import Reports, find
from skerry.wire.kudo.images import check_image
from skerry.wire.proto import (
    kudo_controller_pb2,
    kudo_services_grpc,
    kudo_services_packaged_pb2,  # noqa: F401 - so that reflection can describe it
)
from skerry.wire.proto import kudo_scheduler_pb2 as pb

log = structlog.get_logger(__name__)


def services(
    instances: InstanceKeeper, nodes: NodeKeeper, certificates: Certificates, clock: Clock
) -> list[IServable]:
    """All of them, each without a package and in the package `scheduler`."""
    reports = Reports(nodes, instances, clock)
    bare: list[IServable] = [
        SchedulerService(reports),
        NodeService(nodes, reports, certificates),
        InstanceService(instances),
    ]
    return [*bare, *map(Packaged, bare)]


class Packaged:
    """A service without a package, in the one that Kudo's program has."""

    def __init__(self, service: IServable) -> None:
        self._service = service

    def __mapping__(self) -> dict[str, const.Handler]:
        return {
            path.replace("/", "/scheduler.", 1): handler
            for path, handler in self._service.__mapping__().items()
        }


class SchedulerService(kudo_services_grpc.SchedulerServiceBase):
    """Takes what controllers say of nodes and instances."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    async def setNodeStatus(self, stream: Stream[kudo_controller_pb2.NodeStatus, Empty]) -> None:  # noqa: N802 - the document's name
        told = await stream.recv_message()
        assert told is not None
        await self._reports.node(grpc_controller.node_said(told), caller_of(stream))
        await stream.send_message(Empty())

    async def setInstanceStatus(self, stream: Stream[kudo_controller_pb2.InstanceStatus, Empty]) -> None:  # noqa: N802 - the document's name
        told = await stream.recv_message()
        assert told is not None
        await self._reports.instance(grpc_controller.instance_said(told), caller_of(stream))
        await stream.send_message(Empty())


class Code(enum.IntEnum):
    """How a registration went; the call itself succeeds, as it does with Kudo's program."""

    DONE = 0
    FAILED = 1
    BAD_CERTIFICATE = 2
    ELSEWHERE = 3
    NO_SUBNET = 4


class NodeService(kudo_services_grpc.NodeServiceBase):
    """Nodes of third parties: they come, report and go. They take no orders, so nothing is placed on them."""

    def __init__(self, nodes: NodeKeeper, reports: Reports, certificates: Certificates) -> None:
        self._nodes = nodes
        self._reports = reports
        self._certificates = certificates

    async def Register(self, stream: Stream[pb.NodeRegisterRequest, pb.NodeRegisterResponse]) -> None:  # noqa: N802 - the document's name
        told = await stream.recv_message()
        assert told is not None
        try:
            id = node_of(told.certificate, caller_of(stream), self._certificates)
            known = find(self._nodes, id)
            # One that comes again has said nothing of these, so they stay as they are.
            node = await self._nodes.register(
                id,
                known.name if known else id,
                known.facts if known else Facts(),
                known.room if known else NOTHING,
                {},
                foreign=True,
            )
        except BadCertificate as error:
            reply = _refused(Code.BAD_CERTIFICATE, str(error))
        except errors.AlreadyExists as error:
            reply = _refused(Code.ELSEWHERE, error.message)
        except errors.NoRoom as error:
            reply = _refused(Code.NO_SUBNET, error.message)
        except errors.SkerryError as error:
            reply = _refused(Code.FAILED, error.message)
        else:
            reply = pb.NodeRegisterResponse(
                code=Code.DONE, description=f"registered; id={node.id}", subnet=node.subnet, id=node.id
            )
        await stream.send_message(reply)

    async def Status(self, stream: Stream[pb.NodeStatus, Empty]) -> None:  # noqa: N802 - the document's name
        async for told in stream:
            await self._reports.node(grpc_scheduler.node_said(told), caller_of(stream))
        await stream.send_message(Empty())

    async def Unregister(self, stream: Stream[pb.NodeUnregisterRequest, pb.NodeUnregisterResponse]) -> None:  # noqa: N802 - the document's name
        told = await stream.recv_message()
        assert told is not None
        caller = caller_of(stream)
        check_speaks_for(caller, ids.check_id(told.id))
        reply = pb.NodeUnregisterResponse(code=Code.DONE, description="unregistered")
        if find(self._nodes, told.id) is None:
            reply = pb.NodeUnregisterResponse(code=Code.FAILED, description=f"there is no node {told.id!r}")
        else:
            try:
                await self._nodes.unregister(told.id, actor=caller.name)
            except errors.SkerryError as error:
                log.info("node.not-unregistered", node=told.id, error=error.message, detail=error.detail)
                reply = pb.NodeUnregisterResponse(code=Code.FAILED, description=error.message)
        await stream.send_message(reply)


class InstanceService(kudo_services_grpc.InstanceServiceBase):
    """Instances, wished for and followed. A client that hangs up changes nothing."""

    def __init__(self, instances: InstanceKeeper) -> None:
        self._instances = instances

    async def Create(self, stream: Stream[pb.Instance, pb.InstanceStatus]) -> None:  # noqa: N802 - the document's name
        told = await stream.recv_message()
        assert told is not None
        caller = caller_of(stream)
        spec = grpc_scheduler.spec_of(told)
        check_image(spec.uri, caller)
        instance, _ = await self._instances.create(spec, id=told.id or None, actor=caller.name)
        async with aclosing(self._instances.watch(instance.id)) as updates:
            async for update in updates:
                usage = self._instances.usage(update.id)
                await stream.send_message(grpc_scheduler.told_status(update, usage))

    async def Start(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._wish(stream, self._instances.start)

    async def Stop(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._wish(stream, self._instances.stop)

    async def Destroy(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._wish(stream, self._instances.destroy)

    async def _wish(self, stream: Stream[pb.InstanceIdentifier, Empty], wish: _Wish) -> None:
        told = await stream.recv_message()
        assert told is not None
        await wish(ids.check_id(told.id), actor=caller_of(stream).name)
        await stream.send_message(Empty())


class _Wish(Protocol):
    async def __call__(self, id: str, *, actor: str) -> Instance: ...


def _refused(code: Code, why: str) -> pb.NodeRegisterResponse:
    log.info("node.not-registered", code=code.name, error=why)
    return pb.NodeRegisterResponse(code=code, description=why)
