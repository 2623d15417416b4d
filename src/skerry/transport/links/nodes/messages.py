"""Translates types of `skerry.model` to and from messages of `skerry.nodes.v1`.

Total: a message gives a value, or `Invalid` with the field. Texts for people are cut to their maximum length
instead: a report must not be refused for its text, because the node would send it again for ever.
`skerry.transport.tunnels.tunnel_codec` has tunnels, `skerry.transport.links.nodes.member_messages` members
and functions, `skerry.transport.links.nodes.check_messages` health checks,
`skerry.transport.links.nodes.volume_messages` volumes,
`skerry.transport.links.nodes.network_messages` network objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from skerry import __version__
from skerry.kit.field_copy import copy_fields
from skerry.model import errors, ids, ports
from skerry.model.callers import RevokedCertificate
from skerry.model.devices import DeviceRequest
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId
from skerry.model.images import ImageAccess, is_path
from skerry.model.network import Egress
from skerry.model.network_policies import EgressChoice
from skerry.model.node_messages import (
    MAX_CLAIMS,
    MAX_OCCUPIED,
    ClaimBatch,
    FunctionUpdate,
    InstanceClaim,
    MemberList,
    NetworkReportBatch,
    NetworkUpdate,
    NodeHello,
    NodeMessage,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    RevocationUpdate,
    SecretDelivery,
    SecretRequest,
    ServerList,
    ServerMessage,
    SessionClose,
    SessionConfig,
    SessionHeartbeat,
    TunnelRequest,
    VolumeReportBatch,
    VolumeUpdate,
)
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import (
    MAX_RESTART_BUDGET,
    InstanceSpec,
    RestartMode,
    RestartPolicy,
    UserNamespaceMode,
    WorkloadKind,
)
from skerry.transport.enum_values import decode_enum, decode_image_access
from skerry.transport.links.nodes import (
    check_messages,
    enforcement_messages,
    member_messages,
    network_messages,
    option_messages,
    protocol,
    secret_messages,
    volume_messages,
)
from skerry.transport.links.nodes.message_parts import PartAssembler, split_into_parts
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec

T = TypeVar("T")
N = TypeVar("N")

_MAX_REASON = 1000
_MAX_ADDRESS = 64

# By name, so that a status without a number is an error when this is loaded.
_STATUS: dict[InstanceStatus, pb.Status] = {
    status: getattr(pb, f"STATUS_{status.name}") for status in InstanceStatus
}
_STATUS_OF = {number: status for status, number in _STATUS.items()}
_DESIRED: dict[DesiredStatus, pb.Desired] = {
    desired: getattr(pb, f"DESIRED_{desired.name}") for desired in DesiredStatus
}
_DESIRED_OF = {number: desired for desired, number in _DESIRED.items()}


HEARTBEAT_OF_NODE = pb.FromNode(heartbeat=pb.Heartbeat()).SerializeToString()


# From a node


def encode_node_message(message: NodeMessage) -> pb.FromNode:
    match message:
        case NodeHello():
            return pb.FromNode(hello=encode_hello(message))
        case ReportBatch():
            return pb.FromNode(reports=encode_reports(message))
        case ClaimBatch():
            return pb.FromNode(claims=encode_claims(message))
        case SecretRequest():
            return pb.FromNode(secret_request=secret_messages.encode_request(message))
        case VolumeReportBatch():
            return pb.FromNode(volume_reports=volume_messages.encode_volume_reports(message, _readable))
        case NetworkReportBatch():
            return pb.FromNode(network_reports=network_messages.encode_reports(message))
        case SessionHeartbeat():
            return pb.FromNode(heartbeat=pb.Heartbeat())


def encode_hello(hello: NodeHello) -> pb.Hello:
    return copy_fields(
        pb.Hello,
        hello,
        facts=copy_fields(
            pb.Facts, hello.facts, enforcement=enforcement_messages.encode(hello.facts.enforcement)
        ),
        room=encode_resources(hello.resources),
        member=None if hello.member is None else member_messages.encode_member(hello.member),
        protocol=protocol.CURRENT,
    )


def decode_hello(message: pb.Hello) -> NodeHello:
    facts = message.facts
    for name in ("architecture", "system", "kernel", "version", "runtime"):
        ids.check_display_text(getattr(facts, name), f"facts.{name}")
    protocol.check_node(message.protocol, facts.version)
    return copy_fields(
        NodeHello,
        message,
        name=ids.check_display_text(message.name, "name"),
        facts=copy_fields(
            NodeFacts,
            facts,
            warnings=tuple(facts.warnings),
            features=tuple(facts.features),
            devices=tuple(facts.devices),
            enforcement=enforcement_messages.decode(facts),
        ),
        resources=_decode_resources(message.room),
        labels=dict(message.labels),
        subnet=ids.check_display_text(message.subnet, "subnet"),
        member=member_messages.decode_member(message.member) if message.HasField("member") else None,
        occupied=_networks_of(message.occupied, "occupied"),
        former=_networks_of(message.former, "former"),
    )


def _networks_of(texts: Sequence[str], field: str) -> tuple[str, ...]:
    if len(texts) > MAX_OCCUPIED:
        raise errors.Invalid(f"a node names at most {MAX_OCCUPIED} networks", field=field)
    return tuple(ids.check_display_text(network, field) for network in texts)


def encode_reports(batch: ReportBatch) -> pb.Reports:
    return pb.Reports(sequence=batch.sequence, reports=[_encode_report(report) for report in batch.reports])


def decode_reports(message: pb.Reports) -> ReportBatch:
    return ReportBatch(message.sequence, tuple(_report_of(report) for report in message.reports))


def encode_claims(claims: ClaimBatch) -> pb.Claims:
    return pb.Claims(
        claims=[
            pb.Claim(receipt=claim.receipt, report=_encode_report(claim.report)) for claim in claims.claims
        ],
        revoked=map(_encode_revoked, claims.revoked),
    )


def decode_claims(message: pb.Claims) -> ClaimBatch:
    if len(message.claims) > MAX_CLAIMS or len(message.revoked) > MAX_CLAIMS:
        raise errors.TooLarge(f"more than {MAX_CLAIMS} claims in one message; send more messages")
    return ClaimBatch(
        tuple(InstanceClaim(claim.receipt, _report_of(claim.report)) for claim in message.claims),
        tuple(map(_revoked_of, message.revoked)),
    )


def decode_volume_reports(message: pb.VolumeReports) -> VolumeReportBatch:
    return volume_messages.decode_volume_reports(message, _readable)


def _encode_report(report: InstanceReport) -> pb.Report:
    return pb.Report(
        instance=report.instance,
        generation=report.generation,
        status=_STATUS[report.status],
        at=report.at,
        reason=_readable(report.reason),
        exit_code=report.exit_code,
        restarts=report.restarts,
        ip=report.ip,
        usage=encode_resources(report.usage),
        retry_at=report.retry_at,
        has_passed=report.has_passed,
        checked_at=report.checked_at,
        check_message=_readable(report.check_message),
        metric=report.metric,
        ip6=report.ip6,
        previous_exit_code=report.previous_exit_code,
    )


def _report_of(message: pb.Report) -> InstanceReport:
    if not all(map(math.isfinite, (message.at, message.retry_at, message.checked_at))):
        raise errors.Invalid("the times of a report must be numbers of seconds", field="at")
    for field, address in (("ip", message.ip), ("ip6", message.ip6)):
        if len(address) > _MAX_ADDRESS:
            raise errors.Invalid(f"{field} must be an address", field=field)
    return InstanceReport(
        instance=InstanceId(ids.check_id(message.instance, "instance")),
        generation=message.generation,
        status=_enum_or_default(_STATUS_OF, message.status, "status"),
        at=message.at,
        reason=_readable(message.reason),
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        restarts=message.restarts,
        ip=ids.check_display_text(message.ip, "ip"),
        usage=_decode_resources(message.usage),
        retry_at=message.retry_at if message.HasField("retry_at") else None,
        has_passed=message.has_passed if message.HasField("has_passed") else True,
        checked_at=message.checked_at,
        check_message=_readable(message.check_message),
        metric=_metric_of(message),
        ip6=ids.check_display_text(message.ip6, "ip6"),
        previous_exit_code=message.previous_exit_code if message.HasField("previous_exit_code") else None,
    )


def _metric_of(message: pb.Report) -> float | None:
    """A value that is no number is ignored: the report still counts."""
    return message.metric if message.HasField("metric") and math.isfinite(message.metric) else None


# Messages to a node


def encode_welcome(welcome: SessionConfig) -> pb.ToNode:
    return pb.ToNode(welcome=copy_fields(pb.Welcome, welcome, protocol=protocol.CURRENT, version=__version__))


def decode_welcome(message: pb.Welcome) -> SessionConfig:
    protocol.check_server(message.protocol)
    return copy_fields(SessionConfig, message)


def encode_server_message(message: ServerMessage) -> Iterator[pb.ToNode]:
    """`message` in as many parts as it takes."""
    match message:
        case OrderUpdate():
            for part in _encode_orders(message):
                yield pb.ToNode(orders=part)
        case ReportAck():
            yield pb.ToNode(acknowledged=pb.Acknowledged(sequence=message.sequence))
        case TunnelRequest():
            yield pb.ToNode(open_tunnel=tunnel_codec.encode_tunnel(message))
        case ServerList():
            yield pb.ToNode(servers=pb.Servers(addresses=message.addresses))
        case MemberList():
            for some in member_messages.encode_members(message):
                yield pb.ToNode(members=some)
        case FunctionUpdate():
            for few in member_messages.encode_functions(message):
                yield pb.ToNode(functions=few)
        case RevocationUpdate():
            for revoked, is_more in split_into_parts(message.revoked, _encode_revoked):
                yield pb.ToNode(revocations=pb.Revocations(more=is_more, revoked=revoked))
        case SecretDelivery():
            for values in secret_messages.encode_delivery(message):
                yield pb.ToNode(secrets=values)
        case VolumeUpdate():
            for volumes in volume_messages.encode_volumes(message):
                yield pb.ToNode(volumes=volumes)
        case NetworkUpdate():
            for network in network_messages.encode_update(message):
                yield pb.ToNode(network=network)
        case SessionHeartbeat():
            yield pb.ToNode(heartbeat=pb.Heartbeat(report_s=message.report_s))
        case SessionClose():
            yield pb.ToNode(goodbye=pb.Goodbye(reason=message.reason))


class MessageReader:
    """Assembles the parts of sets; other messages pass as they come.

    A set has at most `most_bytes`, and `most_orders` of orders, of removed ids and of parts: more is refused.
    """

    def __init__(self, most_bytes: float = math.inf, most_orders: float = math.inf) -> None:
        self._orders: PartAssembler[pb.Orders] = PartAssembler(most_bytes, most_orders)
        self._members: PartAssembler[pb.Members] = PartAssembler(most_bytes, most_orders)
        self._functions: PartAssembler[pb.Functions] = PartAssembler(most_bytes, most_orders)
        self._revocations: PartAssembler[pb.Revocations] = PartAssembler(most_bytes, most_orders)
        self._volumes: PartAssembler[pb.Volumes] = PartAssembler(most_bytes, most_orders)
        self._network: PartAssembler[pb.Network] = PartAssembler(most_bytes, most_orders)

    def read(self, message: pb.ToNode) -> ServerMessage | None:
        """The decoded `message`; None if parts of it are missing."""
        match message.WhichOneof("message"):
            case "orders":
                ordered = message.orders
                parts = self._orders.add(ordered, len(ordered.orders) + len(ordered.gone))
                return None if parts is None else _orders_of(parts)
            case "members":
                some = self._members.add(message.members, len(message.members.members))
                return None if some is None else member_messages.decode_members(some)
            case "functions":
                functions = message.functions
                few = self._functions.add(functions, len(functions.functions) + len(functions.gone))
                return None if few is None else member_messages.decode_functions(few)
            case "revocations":
                revoked = self._revocations.add(message.revocations, len(message.revocations.revoked))
                return None if revoked is None else _revocations_of(revoked)
            case "secrets":
                return secret_messages.decode_delivery(message.secrets)
            case "volumes":
                volumes = self._volumes.add(message.volumes, len(message.volumes.orders))
                return None if volumes is None else volume_messages.decode_volumes(volumes)
            case "network":
                network = self._network.add(
                    message.network, len(message.network.objects) + len(message.network.gone)
                )
                return None if network is None else network_messages.decode_update(network)
            case "acknowledged":
                return ReportAck(message.acknowledged.sequence)
            case "open_tunnel":
                return tunnel_codec.decode_tunnel(message.open_tunnel)
            case "servers":
                return ServerList(
                    tuple(ids.check_display_text(text, "addresses") for text in message.servers.addresses)
                )
            case "heartbeat":
                return SessionHeartbeat(message.heartbeat.report_s)
            case "goodbye":
                return SessionClose(message.goodbye.reason)
            case _:
                raise errors.Invalid("the server sent a message of a kind that is not known here")


def _encode_orders(orders: OrderUpdate) -> Iterator[pb.Orders]:
    removed = orders.removed
    for part, is_more in split_into_parts(orders.orders, _encode_order, beside=sum(map(len, removed))):
        yield pb.Orders(
            sequence=orders.sequence, whole=orders.is_full, more=is_more, orders=part, gone=removed
        )
        removed = ()


def _orders_of(parts: Sequence[pb.Orders]) -> OrderUpdate:
    last = parts[-1]
    if any(part.sequence != last.sequence or part.whole != last.whole for part in parts):
        raise errors.Invalid("the server sent parts of different orders as one", field="sequence")
    return OrderUpdate(
        sequence=last.sequence,
        is_full=last.whole,
        orders=tuple(_order_of(order) for part in parts for order in part.orders),
        removed=tuple(InstanceId(instance) for part in parts for instance in part.gone),
    )


def _encode_revoked(revoked: RevokedCertificate) -> pb.RevokedCertificate:
    return copy_fields(pb.RevokedCertificate, revoked)


def _revoked_of(message: pb.RevokedCertificate) -> RevokedCertificate:
    return RevokedCertificate(
        ids.check_display_text(message.serial, "serial"), message.not_after, message.proof
    )


def _revocations_of(parts: Sequence[pb.Revocations]) -> RevocationUpdate:
    return RevocationUpdate(
        revoked=tuple(_revoked_of(one) for part in parts for one in part.revoked),
    )


def _encode_order(order: InstanceOrder) -> pb.Order:
    spec = order.spec
    return pb.Order(
        instance=order.instance,
        generation=order.generation,
        desired=_DESIRED[order.desired],
        egress=order.egress,
        receipt=order.receipt,
        request_id=order.request_id,
        namespace=order.namespace,
        is_isolated=order.is_isolated,
        owner=order.owner,
        spec=copy_fields(
            pb.Spec,
            spec,
            room=encode_resources(spec.resources),
            ports=[str(mapping) for mapping in spec.ports],
            restart=spec.restart.when,
            # Nodes from before `restart_unlimited` get the largest number.
            restart_budget=MAX_RESTART_BUDGET if spec.restart.budget is None else spec.restart.budget,
            restart_unlimited=spec.restart.budget is None,
            checks=check_messages.encode_checks(spec.checks),
            metric=check_messages.encode_metric(spec.metric),
            secrets=secret_messages.encode_uses(spec.secrets),
            devices=map(str, spec.devices),
            mounts=volume_messages.encode_mounts(spec.mounts),
            egress="" if spec.egress is None else spec.egress.egress,
            egress_granted=spec.egress is not None and spec.egress.is_granted,
            **option_messages.encode_options(spec.options),
        ),
    )


def _order_of(message: pb.Order) -> InstanceOrder:
    spec = message.spec
    return InstanceOrder(
        instance=InstanceId(ids.check_id(message.instance, "instance")),
        generation=message.generation,
        desired=_enum_or_default(_DESIRED_OF, message.desired, "desired"),
        egress=decode_enum(Egress, message.egress or Egress.ALL, "egress"),
        receipt=message.receipt,
        request_id=message.request_id if ids.is_request_id(message.request_id) else "",
        namespace=ids.check_namespace(message.namespace or DEFAULT_NAMESPACE),
        is_isolated=message.is_isolated,
        owner=ids.check_display_text(message.owner, "owner"),
        spec=InstanceSpec(
            name=spec.name,
            uri=spec.uri,
            kind=decode_enum(WorkloadKind, spec.kind, "kind"),
            environment=tuple(spec.environment),
            resources=_decode_resources(spec.room),
            ports=tuple(ports.parse(text) for text in spec.ports),
            restart=RestartPolicy(
                decode_enum(RestartMode, spec.restart, "restart"),
                None if spec.restart_unlimited else spec.restart_budget,
            ),
            arguments=tuple(spec.arguments),
            architecture=spec.architecture,
            constraints=tuple(spec.constraints),
            userns=decode_enum(UserNamespaceMode, spec.userns or UserNamespaceMode.PRIVATE, "userns"),
            granted_access=_granted(spec),
            checks=check_messages.decode_checks(spec.checks),
            spread=tuple(spec.spread),
            max_per_node=spec.max_per_node,
            metric=check_messages.decode_metric(spec),
            node=spec.node,
            cpu_limit=Millicores(spec.cpu_limit) if spec.HasField("cpu_limit") else None,
            options=option_messages.decode_options(spec),
            secrets=secret_messages.decode_uses(spec.secrets),
            devices=tuple(map(DeviceRequest.parse, spec.devices)),
            mounts=volume_messages.decode_mounts(spec.mounts),
            egress=_decode_egress(spec),
        ),
    )


def _decode_egress(spec: pb.Spec) -> EgressChoice | None:
    if not spec.egress:
        return None
    return EgressChoice(decode_enum(Egress, spec.egress, "egress"), spec.egress_granted)


def _granted(spec: pb.Spec) -> ImageAccess | None:
    """As `InstanceSpec` has it: a path for which the server does not answer is granted nothing."""
    access = decode_image_access(spec.image_access)
    return access if access is ImageAccess.ALL or is_path(spec.uri) else None


# Parts of both


def encode_resources(resources: Resources) -> pb.Room:
    return pb.Room(cpu_milli=resources.cpu, memory_mb=resources.memory, disk_gb=resources.disk)


def _decode_resources(message: pb.Room) -> Resources:
    return Resources(Millicores(message.cpu_milli), Megabytes(message.memory_mb), Gigabytes(message.disk_gb))


def _enum_or_default(table: Mapping[N, T], number: N, field: str) -> T:
    try:
        return table[number]
    except KeyError:
        raise errors.Invalid(f"{number} is no {field} that is known here", field=field) from None


def _readable(text: str) -> str:
    """`text` as one line of a bearable length."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_REASON])
