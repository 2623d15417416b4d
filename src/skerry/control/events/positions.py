"""Positions in the event stream as readers see them.

A position is a revision of the store, which every write in the cloud raises. Readers of the whole cloud see
it as it is. A reader that is bound to namespaces gets it encrypted, so that the ids of its events do not tell
what happens between them; one of another scope is refused as one that never was. The key is the same at all
servers of a cloud, so a stream can be resumed at any.
"""

from __future__ import annotations

import binascii
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from skerry.model import errors
from skerry.model.namespace_scope import NamespaceScope

FROM_THE_START = "0"

_PACKED = struct.Struct(">QI")
_WHOLE = 2**32 - 1  # the index of a revision with one event


class PositionCipher:
    """Ids of events for bound readers, by `secret`, which is 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(secret)

    def shown(self, id: str, scope: NamespaceScope) -> str:
        """The id of an event as a reader of this scope gets it."""
        if scope.namespaces is None:
            return id
        revision, dot, index = id.partition(".")
        packed = _PACKED.pack(int(revision), int(index) if dot else _WHOLE)
        return self._cipher.encrypt(packed, _context(scope)).hex()

    def read(self, shown: str, scope: NamespaceScope) -> str:
        """The id behind what a reader of this scope sent; raises `Invalid`."""
        if scope.namespaces is None or shown == FROM_THE_START:
            return shown
        try:
            packed = self._cipher.decrypt(binascii.unhexlify(shown[:64]), _context(scope))
            revision, index = _PACKED.unpack(packed)
        except (binascii.Error, ValueError, InvalidTag, struct.error):
            raise errors.Invalid(
                f"{shown[:40]!r} is no event id of this caller; send that of its last event, or `0` for all",
                field="Last-Event-ID",
            ) from None
        return f"{revision}" if index == _WHOLE else f"{revision}.{index}"


def _context(scope: NamespaceScope) -> list[bytes]:
    return [name.encode() for name in sorted(scope.namespaces or ())]
