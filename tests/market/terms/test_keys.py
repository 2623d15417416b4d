"""Keys of buyers and sellers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skerry.kit.clock import ManualClock
from skerry.market.provider import cloud_key
from skerry.market.terms import keys
from skerry.market.terms.keys import PublicKey, SigningKey
from skerry.model import errors
from skerry.model.market import check_cloud
from skerry.store.local.memory import MemoryStore
from tests.support import deals


def test_the_id_of_a_cloud_is_the_thumbprint_of_its_key() -> None:
    """The key and the thumbprint of RFC 8037, appendix A.3."""
    key = PublicKey.parse(
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    )
    assert key.cloud == "key.kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    assert check_cloud(key.cloud, "seller") == key.cloud


def test_two_jwks_of_one_key_are_the_same_key() -> None:
    jwk = deals.SELLER.public.as_jwk()
    again = PublicKey.parse({**jwk, "kid": "mine", "use": "sig", "alg": "Ed25519"})
    assert again == deals.SELLER.public
    assert again.as_jwk() == jwk
    assert again != deals.BUYER.public


def small(y: int) -> str:
    return deals.encoded(y.to_bytes(32, "little")).decode()


P = 2**255 - 19
EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, "Ed25519"),
        ({"kty": "OKP", "crv": "X25519", "x": "A" * 43}, "Ed25519"),
        ({"kty": "oct", "k": "AA"}, "Ed25519"),
        ({"kty": "OKP", "crv": "Ed25519"}, "lacks x"),
        ({"kty": "OKP", "crv": "Ed25519", "x": 7}, "lacks x"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "A" * 42}, "no Ed25519 public key"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "?" * 43}, "no Ed25519 public key"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "A" * 43, "d": "A" * 43}, "private key"),
        ("key", "Ed25519"),
        (None, "Ed25519"),
    ],
)
def test_a_jwk_that_is_no_public_ed25519_key_is_refused(members: object, reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason):
        PublicKey.parse(members)


@pytest.mark.parametrize("y", [0, 1, P - 1, P, P + 1, EIGHTH, P - EIGHTH, EIGHTH | 1 << 255, 1 | 1 << 255])
def test_a_key_of_small_order_is_refused(y: int) -> None:
    with pytest.raises(errors.Invalid, match="many texts"):
        PublicKey.parse({"kty": "OKP", "crv": "Ed25519", "x": small(y)})


def test_a_private_key_does_not_show_itself(tmp_path: Path) -> None:
    key = deals.SELLER
    path = tmp_path / "key.pem"
    path.write_bytes(key.pem())
    secret = json.dumps(key.jwk.as_dict(private=True)["d"]).strip('"')
    assert secret
    for said in (repr(key), str(key), repr(key.public), json.dumps(key.public.as_jwk())):
        assert secret not in said
    assert SigningKey.load(path).cloud == key.cloud


def test_a_public_key_is_read_from_a_jwk_and_from_pem(tmp_path: Path) -> None:
    jwk = json.dumps(deals.SELLER.public.as_jwk(), indent=2).encode() + b"\n"
    pem = (
        deals.private("seller")
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert keys.read_public(jwk, "seller.jwk") == keys.read_public(pem, "seller.pem") == deals.SELLER.public


def foreign() -> bytes:
    secret = int.from_bytes(hashlib.sha256(b"foreign").digest()) >> 8
    key = ec.derive_private_key(secret, ec.SECP256R1()).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no public key"),
        (b"{", "no JWK"),
        (b'{"kty":"OKP","kty":"OKP"}', "there twice"),
        (foreign(), "no Ed25519 key"),
        (deals.SELLER.pem(), "no public key"),
        (b"-" * 9000, "longer than any"),
    ],
    ids=["empty", "cut", "twice", "ecdsa", "private", "long"],
)
def test_a_file_without_a_public_key_is_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason):
        keys.read_public(data, "seller.pem")


def secret(use: bytes) -> bytes:
    """As the CA gives one."""
    return hashlib.sha256(b"the CA's key" + use).digest()


def test_the_key_of_a_cloud_follows_from_its_ca_and_a_key_that_is_there_from_nothing(tmp_path: Path) -> None:
    one, other = (cloud_key.load_or_create(tmp_path / name, secret) for name in ("one", "other"))
    assert one.cloud == other.cloud
    stranger = cloud_key.load_or_create(tmp_path / "stranger", lambda use: secret(use + b"another CA"))
    assert stranger.cloud != one.cloud
    again = cloud_key.load_or_create(tmp_path / "stranger", secret)
    assert again.cloud == stranger.cloud


def test_the_key_of_a_cloud_is_made_once_and_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    made = cloud_key.load_or_create(folder, secret)
    path = folder / cloud_key.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert cloud_key.load_or_create(folder, secret).cloud == made.cloud
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"no key", foreign()], ids=["empty", "text", "public"])
def test_a_key_that_cannot_be_read_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / cloud_key.FILE
    path.write_bytes(content)
    with pytest.raises(errors.Invalid, match="backup"):
        cloud_key.load_or_create(tmp_path, secret)
    assert path.read_bytes() == content


async def test_a_store_belongs_to_one_key() -> None:
    store = MemoryStore(ManualClock())
    await cloud_key.claim(store, deals.SELLER)
    await cloud_key.claim(store, deals.SELLER)
    with pytest.raises(errors.FailedPrecondition, match=deals.SELLER.cloud):
        await cloud_key.claim(store, deals.STRANGER)
    await store.close()
