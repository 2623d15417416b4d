"""Encryption of a stream of any length, by a passphrase or for the holder of an X25519 key.

    MAGIC | length of the header (4 bytes) | header, JSON | chunks

A random file key encrypts the stream; the header has it wrapped: under a key that scrypt makes of the
passphrase, or under one that X25519 agrees on with the recipient's public key. Chunks are 64 KiB under
ChaCha20-Poly1305, whose nonce is the number of the chunk and whether it is the last (the STREAM
construction): chunks that were changed, moved, repeated, left out or cut off at the end do not open. The key
of the chunks follows from the file key and the header, so a header that was changed opens nothing either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MAGIC: Final = b"skerry-sealed-v1\n"
CHUNK: Final = 64 * 1024
MAX_PASSPHRASE: Final = 1024
MIN_PASSPHRASE: Final = 8
_TAG: Final = 16
_KEY: Final = 32
_MAX_HEADER: Final = 4096
_PUBLIC: Final = "skerry-public-v1."
_SECRET: Final = "skerry-secret-v1."  # noqa: S105 - how one begins
# 64 MiB and a fifth of a second; the bounds are for headers of others.
_LOG_N, _R, _P = 16, 8, 1
_MAX_LOG_N, _MAX_R, _MAX_P = 20, 16, 4


class NotUnsealed(ValueError):
    """It cannot be decrypted; the text says why, for people."""


class Reader(Protocol):
    """A stream that is read."""

    def read(self, size: int, /) -> bytes: ...


class Writer(Protocol):
    """A stream that is written."""

    def write(self, data: bytes, /) -> object: ...


class _ScryptWrap(msgspec.Struct, frozen=True, tag="passphrase", tag_field="by"):
    """The file key, under a key of a passphrase."""

    salt: bytes
    log_n: int
    r: int
    p: int
    wrapped: bytes


class _RecipientWrap(msgspec.Struct, frozen=True, tag="x25519", tag_field="by"):
    """The file key, under a key of `ephemeral` and the recipient's."""

    recipient: bytes
    ephemeral: bytes
    wrapped: bytes


_decode_header = msgspec.json.Decoder(_ScryptWrap | _RecipientWrap).decode
# Given a header, the file key.
Unlock = Callable[[_ScryptWrap | _RecipientWrap], bytes]


class SealWriter:
    """Encrypts what is written to it, into `out`. Without `close` the stream does not open."""

    def __init__(self, out: Writer, header: bytes, key: bytes) -> None:
        self._out = out
        self._cipher = _cipher(_chunk_key(key, header))
        self._pending = bytearray()
        self._number = 0
        out.write(MAGIC + len(header).to_bytes(4, "big") + header)

    def write(self, data: bytes) -> int:
        self._pending += data
        while len(self._pending) > CHUNK:  # the last chunk is not known before `close`
            self._put(bytes(self._pending[:CHUNK]), is_last=False)
            del self._pending[:CHUNK]
        return len(data)

    def close(self) -> None:
        self._put(bytes(self._pending), is_last=True)
        self._pending.clear()

    def _put(self, plain: bytes, *, is_last: bool) -> None:
        self._out.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), plain, None))
        self._number += 1


class SealReader:
    """What was written to a `SealWriter`. Raises `NotUnsealed`."""

    def __init__(self, raw: Reader, unlock: Unlock) -> None:
        """`raw` is at its beginning."""
        if _exactly(raw, len(MAGIC)) != MAGIC:
            raise NotUnsealed("it is not encrypted, or not by Skerry")
        length = int.from_bytes(_exactly(raw, 4), "big")
        if length > _MAX_HEADER:
            raise NotUnsealed("its header is damaged")
        header = _exactly(raw, length)
        try:
            wrap = _decode_header(header)
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise NotUnsealed("its header is damaged, or of a newer version") from None
        self._raw = raw
        self._cipher = _cipher(_chunk_key(unlock(wrap), header))
        self._number = 0
        self._plain = b""
        self._ahead = _upto(raw, CHUNK + _TAG)
        self._is_over = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, at least one; none at the end."""
        while not self._plain and not self._is_over:
            self._plain = self._next()
        part, self._plain = self._plain[:size], self._plain[size:]
        return part

    def _next(self) -> bytes:
        from cryptography.exceptions import InvalidTag

        chunk, self._ahead = self._ahead, _upto(self._raw, CHUNK + _TAG)
        self._is_over = not self._ahead
        try:
            plain = self._cipher.decrypt(_nonce(self._number, is_last=self._is_over), chunk, None)
        except InvalidTag:
            raise NotUnsealed("it is damaged or incomplete") from None
        self._number += 1
        return plain


def is_sealed(beginning: bytes) -> bool:
    """Whether a stream that begins so is encrypted."""
    return beginning.startswith(MAGIC)


def check_passphrase(passphrase: str) -> bytes:
    """The bytes of a passphrase; `ValueError` if it is too short or too long."""
    data = passphrase.encode()
    if not MIN_PASSPHRASE <= len(data) <= MAX_PASSPHRASE:
        raise ValueError(f"a passphrase has {MIN_PASSPHRASE} to {MAX_PASSPHRASE} bytes")
    return data


def seal_by_passphrase(passphrase: str) -> tuple[bytes, bytes]:
    """The header and the file key of a stream that the passphrase opens. Takes a fifth of a second."""
    salt, key = os.urandom(16), os.urandom(_KEY)
    wrapped = _cipher(_scrypt(check_passphrase(passphrase), salt, _LOG_N, _R, _P)).encrypt(
        bytes(12), key, None
    )
    return msgspec.json.encode(_ScryptWrap(salt, _LOG_N, _R, _P, wrapped)), key


def seal_for(public: str) -> tuple[bytes, bytes]:
    """The header and the file key of a stream that the holder of the secret of `public` opens."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    recipient = _decode_text(public, _PUBLIC, "a public key for backups")
    ephemeral, key = X25519PrivateKey.generate(), os.urandom(_KEY)
    mine = ephemeral.public_key().public_bytes_raw()
    wrapped = _cipher(_agreed(ephemeral.private_bytes_raw(), recipient, mine + recipient))
    return (
        msgspec.json.encode(_RecipientWrap(recipient, mine, wrapped.encrypt(bytes(12), key, None))),
        key,
    )


def by_passphrase(passphrase: str) -> Unlock:
    def unlock(wrap: _ScryptWrap | _RecipientWrap) -> bytes:
        if not isinstance(wrap, _ScryptWrap):
            raise NotUnsealed("it was encrypted for a key, not with a passphrase; give the file of the key")
        if not (0 < wrap.log_n <= _MAX_LOG_N and 0 < wrap.r <= _MAX_R and 0 < wrap.p <= _MAX_P):
            raise NotUnsealed("its header is damaged")
        key = _scrypt(check_passphrase(passphrase), wrap.salt, wrap.log_n, wrap.r, wrap.p)
        return _unwrap(key, wrap.wrapped, "the passphrase is wrong")

    return unlock


def by_secret(secret: str) -> Unlock:
    """`secret` as `new_key_pair` made it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    own = _decode_text(secret, _SECRET, "the secret half of a key for backups")
    public = X25519PrivateKey.from_private_bytes(own).public_key().public_bytes_raw()

    def unlock(wrap: _ScryptWrap | _RecipientWrap) -> bytes:
        if not isinstance(wrap, _RecipientWrap):
            raise NotUnsealed("it was encrypted with a passphrase, not for a key; give the passphrase")
        if wrap.recipient != public:
            raise NotUnsealed(f"it was encrypted for another key: {_text(_PUBLIC, wrap.recipient)}")
        return _unwrap(
            _agreed(own, wrap.ephemeral, wrap.ephemeral + public), wrap.wrapped, "its header is damaged"
        )

    return unlock


def by_key(key: bytes) -> Unlock:
    """For whoever has just written the stream, and reads it back."""
    return lambda wrap: key


def new_key_pair() -> tuple[str, str]:
    """A secret, and the public key to encrypt for it, as texts."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    made = X25519PrivateKey.generate()
    return _text(_SECRET, made.private_bytes_raw()), _text(_PUBLIC, made.public_key().public_bytes_raw())


def check_public(text: str) -> None:
    """Raise `ValueError` unless this is a public key."""
    _decode_text(text, _PUBLIC, "a public key for backups")


def _text(prefix: str, data: bytes) -> str:
    return prefix + base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode_text(text: str, prefix: str, what: str) -> bytes:
    text = text.strip()
    try:
        data = base64.b64decode(text.removeprefix(prefix) + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not text.startswith(prefix) or len(data) != _KEY:
        raise ValueError(f"this is not {what}: one begins with {prefix!r}")
    return data


def _scrypt(passphrase: bytes, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    n = 1 << log_n
    return hashlib.scrypt(passphrase, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=_KEY)


def _agreed(private: bytes, public: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:  # a point of small order
        raise NotUnsealed("the key in its header cannot be used") from None
    return _derive(shared, salt, b"skerry sealed stream recipient")


def _chunk_key(key: bytes, header: bytes) -> bytes:
    return _derive(key, hashlib.sha256(header).digest(), b"skerry sealed stream chunks")


def _derive(secret: bytes, salt: bytes, use: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), length=_KEY, salt=salt, info=use).derive(secret)


def _unwrap(key: bytes, wrapped: bytes, failure: str) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(key).decrypt(bytes(12), wrapped, None)
    except InvalidTag:
        raise NotUnsealed(failure) from None


def _cipher(key: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _upto(raw: Reader, size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    parts: list[bytes] = []
    while size and (part := raw.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _exactly(raw: Reader, size: int) -> bytes:
    data = _upto(raw, size)
    if len(data) < size:
        raise NotUnsealed("it is incomplete")
    return data
