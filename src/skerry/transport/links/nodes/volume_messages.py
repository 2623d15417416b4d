"""Mounts of instances and volumes, between `skerry.model` and the messages of `skerry.nodes.v1`.

Part of the translation in `skerry.transport.links.nodes.messages`, and as total: what cannot be is an
`Invalid`. Reasons are for people, and are cut by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from skerry.kit.field_copy import copy_fields
from skerry.model import errors, ids
from skerry.model.ids import VolumeId
from skerry.model.mounts import MAX_MOUNTS, Mount, MountKind, check_volume_name
from skerry.model.node_messages import MAX_VOLUME_REPORTS, VolumeReportBatch, VolumeUpdate
from skerry.model.resources import MAX_AMOUNT
from skerry.model.volumes import VolumeOrder, VolumeReport, check_size
from skerry.transport.enum_values import decode_enum
from skerry.transport.links.nodes.message_parts import split_into_parts
from skerry.transport.proto import nodes_pb2 as pb

_MAX_RECEIPT = 64 * 1024


def encode_mounts(mounts: Sequence[Mount]) -> list[pb.Mount]:
    return [copy_fields(pb.Mount, mount) for mount in mounts]


def decode_mounts(messages: Sequence[pb.Mount]) -> tuple[Mount, ...]:
    if len(messages) > MAX_MOUNTS:
        raise errors.Invalid(f"an instance has at most {MAX_MOUNTS} mounts", field="mounts")
    return tuple(map(_mount_of, messages))


def _mount_of(message: pb.Mount) -> Mount:
    if message.size > MAX_AMOUNT:
        raise errors.Invalid("the size of a mount is too large", field="mounts.size")
    kind = decode_enum(MountKind, message.kind, "mounts.kind")
    volume = VolumeId(ids.check_id(message.volume, "mounts.volume") if message.volume else "")
    return copy_fields(Mount, message, kind=kind, volume=volume)


def encode_volumes(update: VolumeUpdate) -> Iterator[pb.Volumes]:
    for part, is_more in split_into_parts(update.orders, _encode_order):
        yield pb.Volumes(more=is_more, orders=part)


def decode_volumes(parts: Sequence[pb.Volumes]) -> VolumeUpdate:
    return VolumeUpdate(tuple(_order_of(order) for part in parts for order in part.orders))


def _encode_order(order: VolumeOrder) -> pb.VolumeOrder:
    return copy_fields(pb.VolumeOrder, order, size_gb=order.size)


def _order_of(message: pb.VolumeOrder) -> VolumeOrder:
    return copy_fields(
        VolumeOrder,
        message,
        id=_id_of(message.id),
        name=check_volume_name(message.name),
        namespace=ids.check_namespace(message.namespace),
        size=check_size(message.size_gb),
        request_id=message.request_id if ids.is_request_id(message.request_id) else "",
    )


def encode_volume_reports(batch: VolumeReportBatch, readable: Callable[[str], str]) -> pb.VolumeReports:
    """`readable` makes one line of a reason."""
    return pb.VolumeReports(
        reports=[copy_fields(pb.VolumeReport, one, reason=readable(one.reason)) for one in batch.reports]
    )


def decode_volume_reports(message: pb.VolumeReports, readable: Callable[[str], str]) -> VolumeReportBatch:
    if len(message.reports) > MAX_VOLUME_REPORTS:
        raise errors.TooLarge(f"more than {MAX_VOLUME_REPORTS} volumes in one message; send more messages")
    if any(len(one.receipt) > _MAX_RECEIPT for one in message.reports):
        raise errors.TooLarge("the receipt of a volume is too long")
    return VolumeReportBatch(
        tuple(
            copy_fields(VolumeReport, one, id=_id_of(one.id), reason=readable(one.reason))
            for one in message.reports
        )
    )


def _id_of(text: str) -> VolumeId:
    return VolumeId(ids.check_id(text, "volume"))
