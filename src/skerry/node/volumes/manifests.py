"""Manifests of images: the digests of the chunks of a file system image, by which a copy is verified.

An image is divided into chunks of 4 MiB. A chunk of zeros is a hole: it is neither stored nor sent. The
digest of a snapshot is the digest of its manifest, so that it vouches for every byte. Pure; the files are
those of `skerry.node.volumes.image_files`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from skerry.model import errors

CHUNK_BYTES: Final = 4 * 1024**2
DIGEST_BYTES: Final = 32
HOLE: Final = bytes(DIGEST_BYTES)
MAX_IMAGE_BYTES: Final = 16 * 1024**4


class ImageManifest(msgspec.Struct, frozen=True):
    """The content of an image."""

    image_bytes: int
    digests: bytes  # SHA-256 of each chunk in order; `HOLE` for one of zeros
    taken_at: float = 0.0  # when the volume was like this, seconds since 1970
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if self.chunk_bytes != CHUNK_BYTES or not 0 < self.image_bytes <= MAX_IMAGE_BYTES:
            raise errors.Invalid("the manifest of an image is not one that this version can read")
        if len(self.digests) != DIGEST_BYTES * -(-self.image_bytes // CHUNK_BYTES):
            raise errors.Invalid("the manifest of an image does not have a digest for each of its chunks")

    @property
    def digest(self) -> str:
        """`sha256:...` of the content alone: two copies of one image have the same, whenever they were
        taken."""
        content = f"skerry-image-v1 {self.image_bytes} {self.chunk_bytes}\n".encode() + self.digests
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    @property
    def count(self) -> int:
        """Chunks, with the holes."""
        return len(self.digests) // DIGEST_BYTES

    @property
    def data_bytes(self) -> int:
        """Bytes in chunks that are not holes."""
        return sum(map(self.length, self.data_chunks()))

    def digest_of(self, chunk: int) -> bytes:
        return self.digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def length(self, chunk: int) -> int:
        return min(CHUNK_BYTES, self.image_bytes - chunk * CHUNK_BYTES)

    def data_chunks(self, since: int = 0) -> Iterator[int]:
        """Chunks from `since` on that are not holes."""
        return (chunk for chunk in range(since, self.count) if self.digest_of(chunk) != HOLE)

    def check(self, chunk: int, data: bytes) -> None:
        """Raise `Unavailable` if `data` is not this chunk: it was damaged, and has to be copied again."""
        if len(data) != self.length(chunk) or chunk_digest(data) != self.digest_of(chunk):
            raise errors.Unavailable(
                f"chunk {chunk} of the copy does not have the digest of the original; it is copied again"
            )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode(data: bytes) -> ImageManifest:
    """The manifest in `data`. Raises `Invalid`."""
    try:
        return msgspec.json.decode(data, type=ImageManifest)
    except msgspec.DecodeError as error:
        raise errors.Invalid("the manifest of an image cannot be read", detail=str(error)) from None


def chunk_digest(data: bytes) -> bytes:
    """The digest of a chunk; `HOLE` if it has only zeros."""
    if not any(data[:64]) and data.count(0) == len(data):
        return HOLE
    return hashlib.sha256(data).digest()
