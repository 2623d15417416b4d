"""Secrets and configs between `skerry.model.secrets` and messages of `skerry.nodes.v1`.

Part of `skerry.transport.links.nodes.messages`, and as total: what cannot be is an `Invalid`. A value is in
one message as it is; TLS protects it on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skerry.model import errors, ids
from skerry.model.node_messages import (
    MAX_SECRETS_REQUESTED,
    SecretDelivery,
    SecretRequest,
    SecretValue,
)
from skerry.model.secrets import MAX_VALUE, SecretKind, SecretRef, SecretUse
from skerry.transport.enum_values import decode_enum
from skerry.transport.links.nodes.message_parts import split_into_parts
from skerry.transport.proto import nodes_pb2 as pb

_MAX_ERROR = 1000


def encode_uses(uses: Iterable[SecretUse]) -> list[pb.SecretUse]:
    return [
        pb.SecretUse(
            name=use.name,
            kind=use.kind,
            target=use.target,
            variable=use.variable,
            mode=use.mode,
            uid=use.uid,
            gid=use.gid,
            version=use.version,
        )
        for use in uses
    ]


def decode_uses(uses: Iterable[pb.SecretUse]) -> tuple[SecretUse, ...]:
    return tuple(
        SecretUse(
            name=use.name,
            kind=decode_enum(SecretKind, use.kind, "kind"),
            target=use.target,
            variable=use.variable,
            mode=use.mode if use.HasField("mode") else None,
            uid=use.uid if use.HasField("uid") else None,
            gid=use.gid if use.HasField("gid") else None,
            version=use.version,
        )
        for use in uses
    )


def encode_request(request: SecretRequest) -> pb.SecretRequest:
    return pb.SecretRequest(refs=map(_encode_ref, request.refs))


def decode_request(message: pb.SecretRequest) -> SecretRequest:
    if len(message.refs) > MAX_SECRETS_REQUESTED:
        raise errors.TooLarge(f"more than {MAX_SECRETS_REQUESTED} secrets in one request; send more requests")
    return SecretRequest(tuple(map(_decode_ref, message.refs)))


def encode_delivery(delivery: SecretDelivery) -> Iterator[pb.SecretDelivery]:
    """In as many messages as it takes; each is complete."""
    for values, _ in split_into_parts(delivery.values, _encode_value):
        yield pb.SecretDelivery(values=values)


def decode_delivery(message: pb.SecretDelivery) -> SecretDelivery:
    return SecretDelivery(tuple(map(_decode_value, message.values)))


def _encode_value(value: SecretValue) -> pb.SecretValue:
    return pb.SecretValue(ref=_encode_ref(value.ref), data=value.data, error=value.error[:_MAX_ERROR])


def _decode_value(message: pb.SecretValue) -> SecretValue:
    if len(message.data) > MAX_VALUE:
        raise errors.TooLarge(f"a value has at most {MAX_VALUE} bytes")
    return SecretValue(_decode_ref(message.ref), message.data, message.error[:_MAX_ERROR])


def _encode_ref(ref: SecretRef) -> pb.SecretRef:
    return pb.SecretRef(namespace=ref.namespace, kind=ref.kind, name=ref.name, version=ref.version)


def _decode_ref(message: pb.SecretRef) -> SecretRef:
    return SecretRef(
        ids.check_namespace(message.namespace),
        decode_enum(SecretKind, message.kind, "kind"),
        ids.check_display_text(message.name, "name"),
        message.version,
    )
