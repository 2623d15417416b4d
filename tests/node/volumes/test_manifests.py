"""Manifests vouch for every byte of an image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.volumes import manifests
from skerry.node.volumes.manifests import CHUNK_BYTES, DIGEST_BYTES, HOLE, ImageManifest

DIGESTS = st.lists(
    st.sampled_from([HOLE, b"\1" * DIGEST_BYTES, b"\2" * DIGEST_BYTES]), min_size=1, max_size=9
)


@given(DIGESTS, st.integers(1, CHUNK_BYTES))
def test_survives_encoding_and_counts_only_data(digests: list[bytes], last: int) -> None:
    manifest = ImageManifest((len(digests) - 1) * CHUNK_BYTES + last, b"".join(digests), 12.5)
    assert manifests.decode(manifest.encode()) == manifest
    data = [chunk for chunk, digest in enumerate(digests) if digest != HOLE]
    assert list(manifest.data_chunks()) == data
    lengths = [last if chunk == len(digests) - 1 else CHUNK_BYTES for chunk in data]
    assert manifest.data_bytes == sum(lengths)


@given(DIGESTS, st.data())
def test_any_other_chunk_or_size_is_another_digest(digests: list[bytes], data: st.DataObject) -> None:
    manifest = ImageManifest(len(digests) * CHUNK_BYTES, b"".join(digests))
    at = data.draw(st.integers(0, len(digests) - 1))
    other = [*digests]
    other[at] = b"\3" * DIGEST_BYTES
    assert ImageManifest(manifest.image_bytes, b"".join(other)).digest != manifest.digest
    assert ImageManifest(manifest.image_bytes - 1, manifest.digests).digest != manifest.digest
    assert ImageManifest(manifest.image_bytes, manifest.digests, 99.0).digest == manifest.digest


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"image_bytes": 5, "digests": ""}', b'{"image_bytes": 0, "digests": ""}']
)
def test_one_that_does_not_fit_is_refused(text: bytes) -> None:
    with pytest.raises(errors.Invalid):
        manifests.decode(text)


def test_a_chunk_of_zeros_is_a_hole_and_one_with_a_bit_is_not() -> None:
    assert manifests.chunk_digest(bytes(CHUNK_BYTES)) == HOLE
    assert manifests.chunk_digest(bytes(CHUNK_BYTES - 1) + b"\1") != HOLE
    assert manifests.chunk_digest(b"\1" + bytes(CHUNK_BYTES - 1)) != HOLE


def test_a_damaged_or_short_chunk_is_refused() -> None:
    data = b"x" * 1000
    manifest = ImageManifest(1000, manifests.chunk_digest(data))
    manifest.check(0, data)
    for wrong in (data[:-1], data[:-1] + b"y", b""):
        with pytest.raises(errors.Unavailable):
            manifest.check(0, wrong)
