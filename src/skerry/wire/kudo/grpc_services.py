"""Kudo's gRPC services: SchedulerService of the older document, NodeService and InstanceService of the newer.

Translation only, over the control plane. Each service uses the messages and numbers of its own document. The
documents have no package and Kudo's program has one; both paths are served.
"""

from __future__ import annotations

import asyncio
import enum
from contextlib import aclosing
from typing import Protocol

import structlog
from google.protobuf.empty_pb2 import Empty
from grpclib import const
from grpclib._typing import IServable
from grpclib.server import Stream
from msgspec.structs import replace

from skerry.kit import disk_reserve, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.node_messages import NodeHello
from skerry.model.resources import NO_RESOURCES
from skerry.model.settings import FleetSettings
from skerry.model.statuses import TERMINAL, InstanceStatus
from skerry.model.workloads import Instance, ObservedState
from skerry.node.images import references
from skerry.transport.grpc.call_streams import caller_of, connection_of, namespace_of, request_of
from skerry.transport.proto import (
    kudo_controller_pb2,
    kudo_services_grpc,
    kudo_services_packaged_pb2,  # noqa: F401 - so that reflection can describe it
)
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.wire.kudo import grpc_controller_messages, grpc_scheduler_messages
from skerry.wire.kudo.grpc_ports import CertificateLookup, InstanceReportPort, NodeReportPort
from skerry.wire.kudo.grpc_registration import RegistrationRefused, check_acts_for, registered_node
from skerry.wire.kudo.grpc_repeats import RepeatBackoff
from skerry.wire.kudo.grpc_reports import ReportHandler, find_node

log = structlog.get_logger(__name__)


def services(
    instances: InstanceReportPort,
    nodes: NodeReportPort,
    certificates: CertificateLookup,
    clock: Clock,
    settings: FleetSettings,
) -> list[IServable]:
    """All services, each without a package and in the package `scheduler`."""
    reports = ReportHandler(nodes, instances, clock)
    bare: list[IServable] = [
        SchedulerService(reports),
        KudoNodeService(nodes, reports, certificates),
        KudoInstanceService(instances, clock, RepeatBackoff(clock, settings), usage_s=settings.report_s),
    ]
    return [*bare, *map(PackagedService, bare)]


class PackagedService:
    """A service in the package of Kudo's program."""

    def __init__(self, service: IServable) -> None:
        self._service = service

    def __mapping__(self) -> dict[str, const.Handler]:
        return {
            path.replace("/", "/scheduler.", 1): handler
            for path, handler in self._service.__mapping__().items()
        }


class SchedulerService(kudo_services_grpc.SchedulerServiceBase):
    """Takes reports of controllers about nodes and instances."""

    def __init__(self, reports: ReportHandler) -> None:
        self._reports = reports

    async def setNodeStatus(self, stream: Stream[kudo_controller_pb2.NodeStatus, Empty]) -> None:  # noqa: N802 - the document's name
        message = await request_of(stream)
        await self._reports.node(grpc_controller_messages.reported_node(message), caller_of(stream))
        await stream.send_message(Empty())

    async def setInstanceStatus(self, stream: Stream[kudo_controller_pb2.InstanceStatus, Empty]) -> None:  # noqa: N802 - the document's name
        message = await request_of(stream)
        await self._reports.instance(grpc_controller_messages.reported_instance(message), caller_of(stream))
        await stream.send_message(Empty())


class RegistrationCode(enum.IntEnum):
    """The result of a registration; the call itself succeeds, as with Kudo's program."""

    DONE = 0
    FAILED = 1
    BAD_CERTIFICATE = 2
    ELSEWHERE = 3
    NO_SUBNET = 4


class KudoNodeService(kudo_services_grpc.NodeServiceBase):
    """Foreign nodes: they register, report and unregister. They take no orders, so nothing is placed on
    them."""

    def __init__(
        self, nodes: NodeReportPort, reports: ReportHandler, certificates: CertificateLookup
    ) -> None:
        self._nodes = nodes
        self._reports = reports
        self._certificates = certificates

    async def Register(self, stream: Stream[pb.NodeRegisterRequest, pb.NodeRegisterResponse]) -> None:  # noqa: N802 - the document's name
        message = await request_of(stream)
        try:
            id = registered_node(message.certificate, caller_of(stream), self._certificates)
            known = find_node(self._nodes, id)
            # A node that registers again does not send these, so they are unchanged.
            hello = NodeHello(known.name, known.facts, known.resources) if known else NodeHello(id)
            node = await self._nodes.register(id, hello, foreign=True)
        except RegistrationRefused as error:
            reply = _refused(RegistrationCode.BAD_CERTIFICATE, str(error))
        except errors.AlreadyExists as error:
            reply = _refused(RegistrationCode.ELSEWHERE, error.message)
        except errors.ResourcesExhausted as error:
            reply = _refused(RegistrationCode.NO_SUBNET, error.message)
        except errors.SkerryError as error:
            reply = _refused(RegistrationCode.FAILED, error.message)
        else:
            reply = pb.NodeRegisterResponse(
                code=RegistrationCode.DONE,
                description=f"registered; id={node.id}",
                subnet=node.subnet,
                id=node.id,
            )
        await stream.send_message(reply)

    async def Status(self, stream: Stream[pb.NodeStatus, Empty]) -> None:  # noqa: N802 - the document's name
        async for message in stream:
            await self._reports.node(grpc_scheduler_messages.reported_node(message), caller_of(stream))
        await stream.send_message(Empty())

    async def Unregister(self, stream: Stream[pb.NodeUnregisterRequest, pb.NodeUnregisterResponse]) -> None:  # noqa: N802 - the document's name
        message = await request_of(stream)
        caller = caller_of(stream)
        check_acts_for(caller, ids.check_id(message.id))
        reply = pb.NodeUnregisterResponse(code=RegistrationCode.DONE, description="unregistered")
        if find_node(self._nodes, message.id) is None:
            reply = pb.NodeUnregisterResponse(
                code=RegistrationCode.FAILED, description=f"there is no node {message.id!r}"
            )
        else:
            try:
                await self._nodes.unregister(message.id, actor=caller.name)
            except errors.SkerryError as error:
                log.info("node.not_unregistered", node=message.id, error=error.message, detail=error.detail)
                reply = pb.NodeUnregisterResponse(code=RegistrationCode.FAILED, description=error.message)
        await stream.send_message(reply)


class KudoInstanceService(kudo_services_grpc.InstanceServiceBase):
    """Creates, changes and watches instances, in the namespace of the metadata `skerry-namespace` if a call
    has it. A client that disconnects changes nothing."""

    def __init__(
        self, instances: InstanceReportPort, clock: Clock, backoff: RepeatBackoff, *, usage_s: float
    ) -> None:
        self._instances = instances
        self._clock = clock
        self._backoff = backoff
        self._usage_s = usage_s

    async def Create(self, stream: Stream[pb.Instance, pb.InstanceStatus]) -> None:  # noqa: N802 - the document's name
        message = await request_of(stream)
        caller = caller_of(stream)
        spec = grpc_scheduler_messages.decode_spec(
            message, caller.image_access, ulid.new_id(self._clock.now())
        )
        references.parse(spec.uri)  # raises `Invalid`
        if shortage := disk_reserve.shortage():
            raise errors.Unavailable(f"this server takes nothing new: {shortage}")
        namespace = namespace_of(stream) or DEFAULT_NAMESPACE
        caller.scope.check_chosen_id(message.id, namespace)
        instance, _ = await self._instances.create(
            spec, id=message.id or None, actor=caller.name, namespace=namespace
        )
        if instance.observed.status in TERMINAL:
            await self._send_end(stream, instance)
            return
        async with aclosing(self._instances.watch(instance.id, repeat_s=self._usage_s)) as updates:
            async for update in updates:
                usage = self._instances.usage(update.id)
                await stream.send_message(grpc_scheduler_messages.encode_status(update, usage))

    async def _send_end(self, stream: Stream[pb.Instance, pb.InstanceStatus], instance: Instance) -> None:
        """Send a final status at once, and end the stream no sooner than the back-off allows.

        If the instance is removed meanwhile, its id is free: the stream ends with TERMINATED, after which
        Kudo's controller does not create it again.
        """
        await stream.send_message(grpc_scheduler_messages.encode_status(instance, NO_RESOURCES))
        hold_s = self._backoff.next_hold_s(instance.id)
        if not hold_s:
            return
        with self._backoff.held(connection_of(stream), hold_s) as bounded_s:
            try:
                async with asyncio.timeout(bounded_s):
                    await self._instances.removed(instance.id)
            except TimeoutError:
                return
        gone = ObservedState(InstanceStatus.TERMINATED, instance.observed.since, "destroyed")
        await stream.send_message(
            grpc_scheduler_messages.encode_status(replace(instance, observed=gone), NO_RESOURCES)
        )

    async def Start(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._change(stream, self._instances.start)

    async def Stop(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._change(stream, self._instances.stop)

    async def Destroy(self, stream: Stream[pb.InstanceIdentifier, Empty]) -> None:  # noqa: N802 - the document's name
        await self._change(stream, self._instances.destroy)

    async def _change(self, stream: Stream[pb.InstanceIdentifier, Empty], change: _DesiredChange) -> None:
        message = await request_of(stream)
        id = ids.check_id(message.id)
        if (namespace := namespace_of(stream)) is not None:
            await self._instances.check_in(namespace, id)
        await change(id, actor=caller_of(stream).name, namespace=namespace)
        await stream.send_message(Empty())


class _DesiredChange(Protocol):
    async def __call__(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance: ...


def _refused(code: RegistrationCode, why: str) -> pb.NodeRegisterResponse:
    log.info("node.not_registered", code=code.name, error=why)
    return pb.NodeRegisterResponse(code=code, description=why)
