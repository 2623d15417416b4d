"""Between the words of `skerry.model` and the messages of `skerry.nodes.v1`, in both directions.

Total: whatever a message holds becomes a noun or an `Invalid` that names the place. What people only read is
cut to size instead: a report must not be refused for its wording, because the node would send it again for
ever. Tunnels are `skerry.wire.nodes.tunnels`, members and functions `skerry.wire.nodes.continuum`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from skerry.model import errors, ids, ports
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Facts
from skerry.model.orders import Order, Report
from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.model.sessions import (
    Acknowledged,
    Down,
    Functions,
    Goodbye,
    Heartbeat,
    Hello,
    Members,
    OpenTunnel,
    Orders,
    Reports,
    Servers,
    Welcome,
)
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Kind, Restart, RestartPolicy, Spec
from skerry.wire.nodes import continuum, tunnels
from skerry.wire.nodes.parts import Parts, cut
from skerry.wire.nodes.words import one_of
from skerry.wire.proto import nodes_pb2 as pb

T = TypeVar("T")
N = TypeVar("N")

_MAX_REASON = 1000
_MAX_ADDRESS = 64

# By name, so that a status without a number is an error when this is loaded.
_STATUS: dict[Status, pb.Status] = {status: getattr(pb, f"STATUS_{status.name}") for status in Status}
_STATUS_OF = {number: status for status, number in _STATUS.items()}
_DESIRED: dict[Desired, pb.Desired] = {desired: getattr(pb, f"DESIRED_{desired.name}") for desired in Desired}
_DESIRED_OF = {number: desired for desired, number in _DESIRED.items()}


HEARTBEAT = pb.ToNode(heartbeat=pb.Heartbeat())


# What a node says


def told_hello(hello: Hello) -> pb.Hello:
    facts = hello.facts
    return pb.Hello(
        name=hello.name,
        facts=pb.Facts(
            architecture=facts.architecture,
            system=facts.system,
            kernel=facts.kernel,
            version=facts.version,
        ),
        room=_told_room(hello.room),
        labels=hello.labels,
        subnet=hello.subnet,
        member=None if hello.member is None else continuum.told_member(hello.member),
    )


def hello_of(message: pb.Hello) -> Hello:
    facts = message.facts
    for name in ("architecture", "system", "kernel", "version"):
        ids.check_label(getattr(facts, name), f"facts.{name}")
    return Hello(
        name=ids.check_label(message.name, "name"),
        facts=Facts(facts.architecture, facts.system, facts.kernel, facts.version),
        room=_room_of(message.room),
        labels=dict(message.labels),
        subnet=ids.check_label(message.subnet, "subnet"),
        member=continuum.member_of(message.member) if message.HasField("member") else None,
    )


def told_reports(batch: Reports) -> pb.Reports:
    return pb.Reports(sequence=batch.sequence, reports=[_told_report(report) for report in batch.reports])


def reports_of(message: pb.Reports) -> Reports:
    return Reports(message.sequence, tuple(_report_of(report) for report in message.reports))


def _told_report(report: Report) -> pb.Report:
    return pb.Report(
        instance=report.instance,
        generation=report.generation,
        status=_STATUS[report.status],
        at=report.at,
        reason=_readable(report.reason),
        exit_code=report.exit_code,
        restarts=report.restarts,
        ip=report.ip,
        usage=_told_room(report.usage),
    )


def _report_of(message: pb.Report) -> Report:
    if not math.isfinite(message.at):
        raise errors.Invalid("the time of a report must be a number of seconds", field="at")
    if len(message.ip) > _MAX_ADDRESS:
        raise errors.Invalid("ip must be an address", field="ip")
    return Report(
        instance=InstanceId(ids.check_id(message.instance, "instance")),
        generation=message.generation,
        status=_known(_STATUS_OF, message.status, "status"),
        at=message.at,
        reason=_readable(message.reason),
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        restarts=message.restarts,
        ip=ids.check_label(message.ip, "ip"),
        usage=_room_of(message.usage),
    )


# What a node is told


def told_welcome(welcome: Welcome) -> pb.ToNode:
    return pb.ToNode(
        welcome=pb.Welcome(
            node=welcome.node,
            subnet=welcome.subnet,
            report_s=welcome.report_s,
            restart_base_s=welcome.restart_base_s,
            restart_cap_s=welcome.restart_cap_s,
            restart_reset_s=welcome.restart_reset_s,
            silence_s=welcome.silence_s,
        )
    )


def welcome_of(message: pb.Welcome) -> Welcome:
    return Welcome(
        node=NodeId(message.node),
        subnet=message.subnet,
        report_s=message.report_s,
        restart_base_s=message.restart_base_s,
        restart_cap_s=message.restart_cap_s,
        restart_reset_s=message.restart_reset_s,
        silence_s=message.silence_s,
    )


def told(message: Down) -> Iterator[pb.ToNode]:
    """`message` in as many parts as it takes."""
    match message:
        case Orders():
            for part in _told_orders(message):
                yield pb.ToNode(orders=part)
        case Acknowledged():
            yield pb.ToNode(acknowledged=pb.Acknowledged(sequence=message.sequence))
        case OpenTunnel():
            yield pb.ToNode(open_tunnel=tunnels.told_tunnel(message))
        case Servers():
            yield pb.ToNode(servers=pb.Servers(addresses=message.addresses))
        case Members():
            for some in continuum.told_members(message):
                yield pb.ToNode(members=some)
        case Functions():
            for few in continuum.told_functions(message):
                yield pb.ToNode(functions=few)
        case Heartbeat():
            yield HEARTBEAT
        case Goodbye():
            yield pb.ToNode(goodbye=pb.Goodbye(reason=message.reason))


class Reader:
    """Puts the parts of sets together; everything else passes as it comes.

    All parts of a set have at most `most_bytes`, and `most_orders` of orders, of ids that are gone and of
    parts: a stranger's are looked at no closer if there are more.
    """

    def __init__(self, most_bytes: float = math.inf, most_orders: float = math.inf) -> None:
        self._orders: Parts[pb.Orders] = Parts(most_bytes, most_orders)
        self._members: Parts[pb.Members] = Parts(most_bytes, most_orders)
        self._functions: Parts[pb.Functions] = Parts(most_bytes, most_orders)

    def read(self, message: pb.ToNode) -> Down | None:
        """What `message` says; None if more of it is to come."""
        match message.WhichOneof("message"):
            case "orders":
                ordered = message.orders
                parts = self._orders.add(ordered, len(ordered.orders) + len(ordered.gone))
                return None if parts is None else _orders_of(parts)
            case "members":
                some = self._members.add(message.members, len(message.members.members))
                return None if some is None else continuum.members_of(some)
            case "functions":
                told = message.functions
                few = self._functions.add(told, len(told.functions) + len(told.gone))
                return None if few is None else continuum.functions_of(few)
            case "acknowledged":
                return Acknowledged(message.acknowledged.sequence)
            case "open_tunnel":
                return tunnels.tunnel_of(message.open_tunnel)
            case "servers":
                return Servers(
                    tuple(ids.check_label(text, "addresses") for text in message.servers.addresses)
                )
            case "heartbeat":
                return Heartbeat()
            case "goodbye":
                return Goodbye(message.goodbye.reason)
            case _:
                raise errors.Invalid("the server sent a message of a kind that is not known here")


def _told_orders(orders: Orders) -> Iterator[pb.Orders]:
    gone = orders.gone
    for part, is_more in cut(orders.orders, _told_order, beside=sum(map(len, gone))):
        yield pb.Orders(sequence=orders.sequence, whole=orders.is_whole, more=is_more, orders=part, gone=gone)
        gone = ()


def _orders_of(parts: Sequence[pb.Orders]) -> Orders:
    last = parts[-1]
    if any(part.sequence != last.sequence or part.whole != last.whole for part in parts):
        raise errors.Invalid("the server sent parts of different orders as one", field="sequence")
    return Orders(
        sequence=last.sequence,
        is_whole=last.whole,
        orders=tuple(_order_of(order) for part in parts for order in part.orders),
        gone=tuple(InstanceId(instance) for part in parts for instance in part.gone),
    )


def _told_order(order: Order) -> pb.Order:
    spec = order.spec
    return pb.Order(
        instance=order.instance,
        generation=order.generation,
        desired=_DESIRED[order.desired],
        spec=pb.Spec(
            name=spec.name,
            uri=spec.uri,
            kind=spec.kind,
            environment=spec.environment,
            room=_told_room(spec.room),
            ports=[str(mapping) for mapping in spec.ports],
            restart=spec.restart.when,
            restart_budget=spec.restart.budget,
            arguments=spec.arguments,
            architecture=spec.architecture,
            constraints=spec.constraints,
        ),
    )


def _order_of(message: pb.Order) -> Order:
    spec = message.spec
    return Order(
        instance=InstanceId(ids.check_id(message.instance, "instance")),
        generation=message.generation,
        desired=_known(_DESIRED_OF, message.desired, "desired"),
        spec=Spec(
            name=spec.name,
            uri=spec.uri,
            kind=one_of(Kind, spec.kind, "kind"),
            environment=tuple(spec.environment),
            room=_room_of(spec.room),
            ports=tuple(ports.parse(text) for text in spec.ports),
            restart=RestartPolicy(one_of(Restart, spec.restart, "restart"), spec.restart_budget),
            arguments=tuple(spec.arguments),
            architecture=spec.architecture,
            constraints=tuple(spec.constraints),
        ),
    )


# Parts of both


def _told_room(room: Room) -> pb.Room:
    return pb.Room(cpu_milli=room.cpu, memory_mb=room.memory, disk_gb=room.disk)


def _room_of(message: pb.Room) -> Room:
    return Room(Millicores(message.cpu_milli), Megabytes(message.memory_mb), Gigabytes(message.disk_gb))


def _known(table: Mapping[N, T], number: N, field: str) -> T:
    try:
        return table[number]
    except KeyError:
        raise errors.Invalid(f"{number} is no {field} that is known here", field=field) from None


def _readable(text: str) -> str:
    """`text` as one line of a bearable length."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_REASON])
