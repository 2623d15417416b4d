"""Encrypted streams open with what they were sealed with, whole, and in no other way."""

from __future__ import annotations

import io

import pytest

from skerry.kit import sealed_stream
from skerry.kit.sealed_stream import CHUNK, NotUnsealed, SealReader, SealWriter

_HEADER, _KEY = sealed_stream.seal_by_passphrase("correct horse")


def sealed(plain: bytes, header: bytes = _HEADER, key: bytes = _KEY) -> bytes:
    out = io.BytesIO()
    writer = SealWriter(out, header, key)
    for at in range(0, len(plain), 10_000):
        writer.write(plain[at : at + 10_000])
    writer.close()
    return out.getvalue()


_UNLOCK = sealed_stream.by_key(_KEY)


def opened(data: bytes, unlock: sealed_stream.Unlock = _UNLOCK) -> bytes:
    reader = SealReader(io.BytesIO(data), unlock)
    return b"".join(iter(lambda: reader.read(7777), b""))


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_stream_of_any_length_comes_back_as_it_was(length: int) -> None:
    plain = bytes(i % 251 for i in range(length))
    assert opened(sealed(plain)) == plain


def test_the_passphrase_opens_it_and_another_does_not() -> None:
    data = sealed(b"all secrets")
    assert b"all secrets" not in data
    assert opened(data, sealed_stream.by_passphrase("correct horse")) == b"all secrets"
    with pytest.raises(NotUnsealed, match="the passphrase is wrong"):
        opened(data, sealed_stream.by_passphrase("wrong horse"))


def test_the_secret_half_opens_what_was_sealed_for_a_public_key_and_another_does_not() -> None:
    secret, public = sealed_stream.new_key_pair()
    data = sealed(b"all secrets", *sealed_stream.seal_for(public))
    assert opened(data, sealed_stream.by_secret(secret)) == b"all secrets"
    other, _ = sealed_stream.new_key_pair()
    with pytest.raises(NotUnsealed, match=public):
        opened(data, sealed_stream.by_secret(other))
    with pytest.raises(NotUnsealed, match="encrypted for a key"):
        opened(data, sealed_stream.by_passphrase("correct horse"))
    with pytest.raises(NotUnsealed, match="with a passphrase"):
        opened(sealed(b""), sealed_stream.by_secret(secret))


def test_what_was_changed_cut_moved_or_repeated_does_not_open() -> None:
    plain = bytes(3 * CHUNK + 5)
    data = sealed(plain)
    start = len(data) - (len(plain) + 4 * 16)
    step = CHUNK + 16
    first, second = data[start : start + step], data[start + step : start + 2 * step]
    broken = {
        "flipped": data[: start + 9] + bytes([data[start + 9] ^ 1]) + data[start + 10 :],
        "header": data.replace(b'"r":8', b'"r":4'),
        "cut in a chunk": data[:-1],
        "cut at a chunk": data[: start + 2 * step],
        "swapped": data[:start] + second + first + data[start + 2 * step :],
        "repeated": data[:start] + first + data[start:],
        "longer": data + b"x",
    }
    for how, bad in broken.items():
        with pytest.raises(NotUnsealed):
            raise AssertionError(f"{how} opened as {len(opened(bad))} bytes")


@pytest.mark.parametrize(
    "text", ["", "skerry-public-v1.", "skerry-public-v1.AAAA", "skerry-secret-v1." + "A" * 43]
)
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="begins with"):
        sealed_stream.seal_for(text)
    with pytest.raises(ValueError, match="8 to 1024"):
        sealed_stream.seal_by_passphrase("short")


def test_a_header_that_asks_for_much_memory_is_refused() -> None:
    data = sealed(b"x").replace(b'"log_n":16', b'"log_n":40')
    with pytest.raises(NotUnsealed, match="damaged"):
        opened(data, sealed_stream.by_passphrase("correct horse"))
