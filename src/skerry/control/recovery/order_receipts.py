"""Receipts: what a node is given with each order, by which it can show later that this cloud gave it.

A receipt is the instance as the store had it, the node and a `StoreStamp`, under a code that only servers of
this cloud can make: its key follows from the CA's. Nodes keep receipts as they are and read nothing out of
them. So a node that was broken into can claim only what it was once ordered to run. Used by
`skerry.control.sessions.node_session`, and read by `skerry.control.recovery.claims`.
"""

from __future__ import annotations

import hmac

import msgspec

from skerry.control.recovery.store_history import StoreStamp
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.workloads import Instance

KEY_USE = b"skerry order receipts"
_CODE_BYTES = 32


class OrderReceipt(msgspec.Struct, frozen=True):
    """That `node` was to run `instance`."""

    node: NodeId
    stamp: StoreStamp
    instance: Instance


def write(key: bytes, receipt: OrderReceipt) -> bytes:
    data = json_codec.encode(receipt)
    return _code(key, data) + data


def read(key: bytes, text: bytes) -> OrderReceipt | None:
    """None if this cloud gave no such receipt."""
    code, data = text[:_CODE_BYTES], text[_CODE_BYTES:]
    if not hmac.compare_digest(code, _code(key, data)):
        return None
    try:
        return json_codec.decode(data, OrderReceipt)
    except (json_codec.InvalidJson, errors.Invalid):  # of a version that knows more than this one
        return None


def _code(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
