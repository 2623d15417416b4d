"""Ed25519 signatures: keys made of a secret of 32 bytes, and public keys as they are sent. No formats: those
who sign decide what stands in the signed bytes."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
KEY_ID_DIGITS = 16


class SigningKey:
    """A private key; its representation has only the id of the public half."""

    __slots__ = ("_private", "id", "public")

    def __init__(self, secret: bytes) -> None:
        """`secret` is 32 bytes; the same ones give the same key."""
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()
        self.id = key_id(self.public)

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def __repr__(self) -> str:
        return f"SigningKey({self.id})"


def key_id(public: bytes) -> str:
    """The id of a public key: it follows from the key, so that no other key can be given for it."""
    return hashlib.sha256(public).hexdigest()[:KEY_ID_DIGITS]


def is_signed(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether `signature` is that of `data` by the key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
