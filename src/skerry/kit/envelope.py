"""Envelope encryption: bytes sealed under a key of their own, which is sealed under a long-lived key.

AES-256-GCM both times, each with a random nonce. The `context` is authenticated and not stored: bytes that
were moved to another place do not open there. A data key seals one message, so nonces cannot repeat under it;
the long-lived key only ever seals data keys, of which it takes billions.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Final

import msgspec

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_ID_DIGITS: Final = 16


class SealedBytes(msgspec.Struct, frozen=True):
    """Sealed bytes as they are stored."""

    key: str  # the id of the long-lived key
    wrapped: bytes  # nonce and sealed data key
    data: bytes  # nonce and sealed bytes


class NotOpened(ValueError):
    """The bytes were changed or moved, or sealed under another key."""


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def key_id(key: bytes) -> str:
    """Names a key, and tells nothing of it."""
    return sha256(b"skerry sealing key\0" + key).hexdigest()[:_ID_DIGITS]


def seal(key: bytes, plain: bytes, context: bytes) -> SealedBytes:
    data_key = new_key()
    return SealedBytes(key_id(key), _encrypt(key, data_key, context), _encrypt(data_key, plain, context))


def unseal(key: bytes, sealed: SealedBytes, context: bytes) -> bytes:
    """The bytes that were sealed with this `key` and `context`. Raises `NotOpened`."""
    return _decrypt(_decrypt(key, sealed.wrapped, context), sealed.data, context)


def _encrypt(key: bytes, plain: bytes, context: bytes) -> bytes:
    # Imported late: the command line must not load it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, context)


def _decrypt(key: bytes, data: bytes, context: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        raise NotOpened("it was changed or moved, or sealed under another key") from None
