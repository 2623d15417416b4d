"""Envelope encryption: what is sealed opens with its key and context, and with nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.kit import envelope


@given(st.binary(max_size=5000), st.binary(max_size=100))
def test_what_is_sealed_opens_and_shows_nothing(plain: bytes, context: bytes) -> None:
    key = envelope.new_key()
    sealed = envelope.seal(key, plain, context)
    assert envelope.unseal(key, sealed, context) == plain
    assert sealed.key == envelope.key_id(key)
    if len(plain) > 8:
        assert plain not in sealed.data
        assert plain not in sealed.wrapped


def test_the_same_bytes_are_never_sealed_alike() -> None:
    key = envelope.new_key()
    one, other = envelope.seal(key, b"canary", b""), envelope.seal(key, b"canary", b"")
    assert one.data != other.data
    assert one.wrapped != other.wrapped


@pytest.mark.parametrize("part", ["wrapped", "data"])
def test_a_change_of_any_byte_is_noticed(part: str) -> None:
    key = envelope.new_key()
    sealed = envelope.seal(key, b"canary", b"here")
    whole = getattr(sealed, part)
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(envelope.NotOpened):
            envelope.unseal(key, replace(sealed, **{part: changed}), b"here")
    with pytest.raises(envelope.NotOpened):
        envelope.unseal(key, replace(sealed, **{part: b""}), b"here")


def test_another_key_or_context_does_not_open_it() -> None:
    key = envelope.new_key()
    sealed = envelope.seal(key, b"canary", b"here")
    with pytest.raises(envelope.NotOpened):
        envelope.unseal(envelope.new_key(), sealed, b"here")
    with pytest.raises(envelope.NotOpened):
        envelope.unseal(key, sealed, b"there")
