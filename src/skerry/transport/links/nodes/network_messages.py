"""Network objects, between `skerry.model.network_objects` and the messages of `skerry.nodes.v1`.

Part of the translation in `skerry.transport.links.nodes.messages`, and as total: what cannot be is an
`Invalid`. Objects of unknown kinds are dropped: the other side is newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skerry.model import errors, ids, network_kinds
from skerry.model.network_objects import MAX_REPORTED_OBJECTS, NetworkKey, NetworkObject, UnknownObject
from skerry.model.node_messages import NetworkReportBatch, NetworkUpdate
from skerry.transport.links.nodes.message_parts import split_into_parts
from skerry.transport.proto import nodes_pb2 as pb


def encode_update(update: NetworkUpdate) -> Iterator[pb.Network]:
    gone = [pb.NetworkKey(kind=each.kind, key=each.key) for each in update.removed]
    for part, is_more in split_into_parts(
        update.objects, _encode, beside=sum(map(pb.NetworkKey.ByteSize, gone))
    ):
        yield pb.Network(more=is_more, whole=update.is_full, objects=part, gone=gone)
        gone = []


def decode_update(parts: Sequence[pb.Network]) -> NetworkUpdate:
    return NetworkUpdate(
        parts[0].whole,
        _decode_all(each for part in parts for each in part.objects),
        tuple(
            NetworkKey(ids.check_display_text(each.kind, "kind"), ids.check_display_text(each.key, "key"))
            for part in parts
            for each in part.gone
        ),
    )


def encode_reports(batch: NetworkReportBatch) -> pb.NetworkReports:
    return pb.NetworkReports(objects=map(_encode, batch.objects))


def decode_reports(message: pb.NetworkReports) -> NetworkReportBatch:
    if len(message.objects) > MAX_REPORTED_OBJECTS:
        raise errors.TooLarge(
            f"more than {MAX_REPORTED_OBJECTS} network objects in one message; send more messages"
        )
    return NetworkReportBatch(_decode_all(message.objects))


def _encode(value: NetworkObject) -> pb.NetworkObject:
    kind, key = value.network_key
    return pb.NetworkObject(kind=kind, key=key, value=network_kinds.encode(value))


def _decode_all(messages: Iterable[pb.NetworkObject]) -> tuple[NetworkObject, ...]:
    decoded = (network_kinds.decode(each.kind, each.key, each.value) for each in messages)
    return tuple(each for each in decoded if not isinstance(each, UnknownObject))
