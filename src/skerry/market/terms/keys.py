"""Keys of buyers and sellers: Ed25519, and the id of a cloud that follows from its key.

The id is `key.` and the RFC 7638 thumbprint of the public key, so the id verifies the key, and no other key
can have it. The prefix keeps ids of keys apart from every other name of a buyer. The private key is never
part of a key's representation. This cloud's own key is kept by `skerry.market.provider.cloud_key`; those of
the certificate authority by `skerry.kit.pki`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from skerry.market.terms import canonical_json
from skerry.model import errors
from skerry.model.ids import CloudId

PREFIX: Final = "key."
MAX_BYTES: Final = 8192
_CURVE: Final = "Ed25519"
# The field and the curve of RFC 8032, to tell the few points that are no keys.
_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P


class PublicKey:
    """A key that signatures are checked with."""

    def __init__(self, jwk: OKPKey) -> None:
        self.jwk = jwk
        self.cloud = CloudId(PREFIX + jwk.thumbprint())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.cloud == other.cloud

    def __hash__(self) -> int:
        return hash(self.cloud)

    def __repr__(self) -> str:
        return f"PublicKey({self.cloud})"

    @classmethod
    def parse(cls, members: object) -> PublicKey:
        """The key of a JWK; `Invalid` if it is not supported."""
        if not isinstance(members, dict) or members.get("kty") != "OKP" or members.get("crv") != _CURVE:
            raise errors.Invalid("the key must be a JWK of an Ed25519 key: kty OKP, crv Ed25519", field="jwk")
        if "d" in members:
            raise errors.Invalid(
                "the JWK holds the private key too: send only kty, crv and x, and make a new key, for this "
                "one is no secret any more",
                field="jwk",
            )
        x = members.get("x")
        if not isinstance(x, str):
            raise errors.Invalid("the JWK lacks x, the public key", field="jwk")
        try:
            # Only what the thumbprint covers is taken over: two JWKs of one key are the same key.
            jwk = OKPKey.import_key({"kty": "OKP", "crv": _CURVE, "x": x})
            raw = jwk.public_key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        except (JoseError, ValueError, TypeError) as error:
            raise errors.Invalid("x of the JWK is no Ed25519 public key in base64url", field="jwk") from error
        if _has_small_order(raw):
            raise errors.Invalid(
                "this key is one of the few for which a signature is valid for many texts; make a new one",
                field="jwk",
            )
        return cls(jwk)

    def as_jwk(self) -> dict[str, Any]:
        return {"crv": _CURVE, "kty": "OKP", "x": self.jwk.as_dict(private=False)["x"]}


class SigningKey:
    """A private key; its representation has only the public half."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.jwk = OKPKey.import_key(private)
        self.public = PublicKey(OKPKey.import_key(private.public_key()))
        self.cloud = self.public.cloud

    def __repr__(self) -> str:
        return f"SigningKey({self.cloud})"

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of(cls, secret: bytes) -> SigningKey:
        """The key that follows from 32 secret bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """The key in `path` (PEM, PKCS #8); `Invalid` if it holds something else."""
        return cls(_parse_private(path, path.read_bytes()))

    def pem(self) -> bytes:
        """The private key as it is kept in its file."""
        return self.jwk.as_pem(private=True)

    def derive(self, use: bytes) -> bytes:
        """A secret for one use: it reveals neither the key nor the secret of another use."""
        private = self.jwk.private_key
        assert isinstance(private, Ed25519PrivateKey)
        return HKDF(hashes.SHA256(), length=32, salt=None, info=use).derive(private.private_bytes_raw())


def is_key_id(cloud: str) -> bool:
    """Whether this names a key, rather than an account that only its own cloud knows."""
    return cloud.startswith(PREFIX)


def read_public(data: bytes, name: str) -> PublicKey:
    """The public key of the file `name`: a JWK, or PEM; `Invalid` otherwise."""
    if len(data) > MAX_BYTES:
        raise errors.Invalid(f"{name} is longer than any public key; name a JWK or a PEM file")
    if data.lstrip().startswith(b"{"):
        try:
            return PublicKey.parse(canonical_json.read(data.strip()))
        except canonical_json.NotCanonical as error:
            raise errors.Invalid(f"{name} is no JWK: {error}") from error
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise errors.Invalid(
            f"{name} is no public key; name a file with a JWK, or with PEM that begins `BEGIN PUBLIC KEY`"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise errors.Invalid(f"{name} is no Ed25519 key, which every signature of the market is made with")
    return PublicKey.parse(OKPKey.import_key(key).as_dict(private=False))


def _parse_private(path: Path, pem: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise errors.Invalid(
            f"{path} is not a PEM private key without a password: restore it from a backup, or remove it to "
            "start as a new cloud, which does not own the contracts of the old one"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise errors.Invalid(f"{path} is no Ed25519 key: bring the right one back from a backup")
    return key


def _has_small_order(raw: bytes) -> bool:
    """Whether the point has an order of 1, 2, 4 or 8: with such a key one signature is good for many texts.

    On the curve -x² + y² = 1 + dx²y² these are the points whose y is 1, -1 or 0, or solves dy⁴ + 2y² = 1.
    """
    y = (int.from_bytes(raw, "little") & (1 << 255) - 1) % _P
    return y * (y * y - 1) * (_D * y**4 + 2 * y * y - 1) % _P == 0
