"""What is refused of an import, with the reason, and what is known of one that is taken."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.tls.certificate_pair import check_covers, read_pair
from skerry.model import errors
from skerry.model.tls_certificates import MAX_CHAIN, MAX_KEY
from tests.support.chains import ChainMaker, key_pem, new_key

NOW = 1_700_000_000.0
HOST = "shop.example.org"


@pytest.fixture(scope="module")
def maker() -> ChainMaker:
    return ChainMaker(NOW)


def test_a_good_pair_is_read(maker: ChainMaker) -> None:
    chain, key = maker.pair(HOST, "*.Example.org", HOST)
    pair = read_pair(b"Bag Attributes\n" + chain, b"some words\n" + key, NOW)
    assert pair.domains == (HOST, "*.example.org")
    assert (pair.issuer, pair.key_type) == ("middle", "ECDSA P-256")
    assert pair.not_after == NOW + 90 * 86400
    assert pair.pem.count(b"BEGIN CERTIFICATE") == 2
    assert pair.pem.endswith(b"-----END PRIVATE KEY-----\n")
    assert b"Bag" not in pair.pem
    assert "PRIVATE" not in repr(pair)


def test_rsa_and_a_root_at_the_end_and_a_leaf_alone_are_taken(maker: ChainMaker) -> None:
    chain, key = maker.pair(HOST, key=rsa.generate_private_key(65537, 2048))
    assert read_pair(chain + maker.root, key, NOW).key_type == "RSA 2048"
    assert read_pair(*maker.pair(HOST, with_middle=False), NOW).domains == (HOST,)


def refused(chain: bytes, key: bytes, match: str) -> None:
    with pytest.raises((errors.Invalid, errors.TooLarge), match=match):
        read_pair(chain, key, NOW)


def test_each_reason_to_refuse_is_named(maker: ChainMaker) -> None:
    chain, key = maker.pair(HOST)
    leaf, middle = chain.removesuffix(maker.middle), maker.middle
    refused(chain, key_pem(new_key()), "does not belong")
    refused(b"", key, "no certificate in PEM")
    refused(chain, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no private key")
    refused(chain, chain, "no private key")
    refused(middle + leaf, key, "not the first")
    refused(leaf + maker.root, key, "certificate 1 was not issued by certificate 2")
    refused(leaf + middle + middle, key, "certificate 2 was not issued by certificate 3")
    refused(leaf + middle * 10, key, "at most 10")
    refused(b"x" * (MAX_CHAIN + 1), key, "at most 64 KiB")
    refused(chain, b"x" * (MAX_KEY + 1), "at most 16 KiB")
    refused(*maker.pair(HOST, ends_in=timedelta(seconds=-1)), "expired at 2023-11-14")
    refused(*maker.pair(HOST, begins_in=timedelta(seconds=60)), "not valid before 2023-11-14")
    refused(*maker.pair(), "for no domain")
    refused(*maker.pair("localhost"), "for no domain")
    refused(*maker.pair(*(f"{n}.example.org" for n in range(101))), "at most 100")
    client = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    refused(*maker.pair(HOST, extension=client), "not for TLS servers")


def test_weak_keys_and_encrypted_ones_are_refused(maker: ChainMaker) -> None:
    refused(*maker.pair(HOST, key=rsa.generate_private_key(65537, 1024)), "RSA with 1024 bits; use 2048")
    refused(*maker.pair(HOST, key=ec.generate_private_key(ec.SECP192R1())), "secp192r1; use P-256")
    chain, _ = maker.pair(HOST)
    other = dsa.generate_private_key(1024).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    refused(chain, other, "of a kind that TLS does not use")
    sealed = new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    refused(chain, sealed, "encrypted with a password")


def test_an_issuer_that_is_no_ca_or_has_expired_is_refused(maker: ChainMaker) -> None:
    key, issuer_key = new_key(), new_key()
    leaf = maker.sign("leaf", key, "fake", issuer_key, domains=(HOST,))
    fake = maker.sign("fake", issuer_key, "root", maker.root_key)
    refused(leaf + fake, key_pem(key), "certificate 2 is not that of a CA")
    old = maker.sign(
        "fake", issuer_key, "root", maker.root_key, is_authority=True, ends_in=timedelta(seconds=-5)
    )
    refused(leaf + old, key_pem(key), "certificate 2 of the chain expired")


def test_a_certificate_must_be_for_the_domain(maker: ChainMaker) -> None:
    pair = read_pair(*maker.pair("*.example.org"), NOW)
    check_covers(pair, HOST)
    for other in ("example.org", "a.b.example.org", "example.com"):
        with pytest.raises(errors.Invalid, match="not for"):
            check_covers(pair, other)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_garbage_is_refused_as_invalid(chain: bytes, key: bytes) -> None:
    with pytest.raises(errors.Invalid):
        read_pair(b"-----BEGIN CERTIFICATE-----\n" + chain, key, NOW)


@given(st.data())
def test_a_pair_with_changed_bytes_is_taken_or_refused_as_invalid(data: st.DataObject) -> None:
    chain, key = SAMPLE
    at = data.draw(st.integers(0, len(chain) - 1))
    changed = chain[:at] + bytes([data.draw(st.integers(0, 255))]) + chain[at + 1 :]
    try:
        read_pair(changed, key, NOW)
    except errors.Invalid:
        pass


SAMPLE = ChainMaker(NOW).pair(HOST)
