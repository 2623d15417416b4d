"""A chain and its private key, checked before they are used: what is refused says why.

Pure, apart from the arithmetic of keys. `cryptography` is imported late: it is slow to load, and a server
needs it anyway, but not what only imports this module.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from skerry.kit.clock import iso
from skerry.model import errors
from skerry.model.tls_certificates import MAX_CHAIN, MAX_DOMAINS, MAX_KEY, check_domain, matches

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

_MAX_CERTIFICATES: Final = 10  # in a chain
_MIN_RSA: Final = 2048
_MAX_RSA: Final = 8192  # more costs an edge node seconds for each handshake
_MIN_CURVE: Final = 256
_BROKEN_HASHES: Final = frozenset({"md5", "sha1"})
_MAX_ISSUER: Final = 200


class CertificatePair(msgspec.Struct, frozen=True):
    """A chain with its key, and what is known of its first certificate."""

    pem: bytes  # the certificates, the leaf first, and then the key
    domains: tuple[str, ...]
    issuer: str
    serial: str  # hex
    fingerprint: str
    key_type: str
    not_before: float
    not_after: float

    def __repr__(self) -> str:
        return f"CertificatePair({', '.join(self.domains)})"


def read_pair(chain_pem: bytes, key_pem: bytes, now: float) -> CertificatePair:
    """Raises `Invalid` or `TooLarge` with the reason."""
    if len(chain_pem) > MAX_CHAIN:
        raise errors.TooLarge(f"the certificates have at most {MAX_CHAIN // 1024} KiB")
    if len(key_pem) > MAX_KEY:
        raise errors.TooLarge(f"the private key has at most {MAX_KEY // 1024} KiB")
    try:
        return _read_pair(chain_pem, key_pem, now)
    except _unreadable():
        raise errors.Invalid(
            "the certificate has parts that cannot be read, or of a kind that is not known",
            field="certificate",
        ) from None


def _read_pair(chain_pem: bytes, key_pem: bytes, now: float) -> CertificatePair:
    key = _read_key(key_pem)
    key_type = _check_key(key.public_key(), "the private key", "key")
    chain = _read_chain(chain_pem)
    _check_match(chain, key)
    leaf = chain[0]
    _check_times(chain, now)
    _check_links(chain)
    _check_use(leaf)
    return _pair(chain, key, key_type, _domains(leaf))


def check_covers(pair: CertificatePair, domain: str) -> None:
    """Raise `Invalid` unless it is a certificate for `domain`."""
    if not any(matches(each, domain) for each in pair.domains):
        raise errors.Invalid(f"the certificate is for {', '.join(pair.domains)}, not for {domain}")


def request_of(key_pem: bytes, domain: str) -> bytes:
    """A signing request in DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "made by `skerry.kit.pki`"
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(domain)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.DER)


def _unreadable() -> tuple[type[Exception], ...]:
    """What `cryptography` raises, late too, for what is only half a certificate."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    return (
        ValueError,
        TypeError,
        OverflowError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    )


def _read_key(pem: bytes) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    if b"ENCRYPTED" in pem:
        raise errors.Invalid(
            "the private key is encrypted with a password; remove it: openssl pkey -in KEY -out PLAIN",
            field="key",
        )
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise errors.Invalid(
            "this is no private key in PEM (-----BEGIN PRIVATE KEY-----)", field="key"
        ) from None


def _check_key(key: object, what: str, field: str) -> str:
    """The type of a public key; `Invalid` if it is too weak, or if it is not for TLS."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match key:
        case rsa.RSAPublicKey():
            if not _MIN_RSA <= key.key_size <= _MAX_RSA:
                raise errors.Invalid(
                    f"{what} is RSA with {key.key_size} bits; use {_MIN_RSA} to {_MAX_RSA}", field=field
                )
            return f"RSA {key.key_size}"
        case ec.EllipticCurvePublicKey():
            if key.curve.key_size < _MIN_CURVE:
                raise errors.Invalid(
                    f"{what} is on the curve {key.curve.name}; use P-256 or P-384", field=field
                )
            return f"ECDSA P-{key.curve.key_size}"
        case ed25519.Ed25519PublicKey():
            return "Ed25519"
        case _:
            raise errors.Invalid(
                f"{what} is of a kind that TLS does not use; use ECDSA P-256 or RSA", field=field
            )


def _read_chain(pem: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(pem)
    except ValueError:
        chain = []
    if not chain:
        raise errors.Invalid(
            "there is no certificate in PEM (-----BEGIN CERTIFICATE-----)", field="certificate"
        )
    if len(chain) > _MAX_CERTIFICATES:
        raise errors.Invalid(
            f"there are {len(chain)} certificates, and a chain has at most {_MAX_CERTIFICATES}",
            field="certificate",
        )
    return chain


def _check_match(chain: list[x509.Certificate], key: PrivateKeyTypes) -> None:
    own = _public_bytes(key.public_key())
    found = [_public_bytes(each.public_key()) == own for each in chain]
    if found[0]:
        return
    if any(found):
        raise errors.Invalid(
            "the certificate of the private key is not the first; put it before those of its issuers",
            field="certificate",
        )
    raise errors.Invalid("the private key does not belong to the certificate", field="key")


def _check_times(chain: list[x509.Certificate], now: float) -> None:
    for number, each in enumerate(chain, 1):
        what = "the certificate" if number == 1 else f"certificate {number} of the chain"
        if (ends := each.not_valid_after_utc.timestamp()) <= now:
            raise errors.Invalid(f"{what} expired at {iso(ends)}", field="certificate")
        if (begins := each.not_valid_before_utc.timestamp()) > now:
            raise errors.Invalid(f"{what} is not valid before {iso(begins)}", field="certificate")


def _check_links(chain: list[x509.Certificate]) -> None:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    for number, (each, issuer) in enumerate(pairwise(chain), 1):
        try:
            each.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            raise errors.Invalid(
                f"the chain is broken: certificate {number} was not issued by certificate {number + 1}; give "
                "the certificate first, and behind each that of its issuer",
                field="certificate",
            ) from None
        if not _is_authority(issuer):
            raise errors.Invalid(
                f"the chain is broken: certificate {number + 1} is not that of a CA", field="certificate"
            )
        _check_key(issuer.public_key(), f"the key of certificate {number + 1}", "certificate")
    for number, each in enumerate(chain, 1):
        is_root = each.issuer == each.subject  # nobody verifies the signature of a root
        algorithm = each.signature_hash_algorithm
        if algorithm is not None and algorithm.name in _BROKEN_HASHES and (number == 1 or not is_root):
            raise errors.Invalid(
                f"certificate {number} is signed with {algorithm.name.upper()}, which clients refuse",
                field="certificate",
            )


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _check_use(leaf: x509.Certificate) -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(uses):
        raise errors.Invalid("the certificate is not for TLS servers (serverAuth)", field="certificate")


def _domains(leaf: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        names = x509.SubjectAlternativeName([])
    found: dict[str, None] = {}
    for name in names.get_values_for_type(x509.DNSName):
        try:
            found[check_domain(name.lower())] = None
        except errors.Invalid:
            continue  # routes have no such host
    if not found:
        raise errors.Invalid(
            "the certificate is for no domain: it has no DNS names in subjectAltName", field="certificate"
        )
    if len(found) > MAX_DOMAINS:
        raise errors.Invalid(
            f"the certificate is for {len(found)} domains, and at most {MAX_DOMAINS} are taken",
            field="certificate",
        )
    return tuple(found)


def _pair(
    chain: list[x509.Certificate], key: PrivateKeyTypes, key_type: str, domains: tuple[str, ...]
) -> CertificatePair:
    from cryptography.hazmat.primitives import hashes, serialization

    leaf = chain[0]
    encoded = [each.public_bytes(serialization.Encoding.PEM) for each in chain]
    encoded.append(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return CertificatePair(
        pem=b"".join(encoded),
        domains=domains,
        issuer=_issuer(leaf),
        serial=f"{leaf.serial_number:x}",
        fingerprint=leaf.fingerprint(hashes.SHA256()).hex(),
        key_type=key_type,
        not_before=leaf.not_valid_before_utc.timestamp(),
        not_after=leaf.not_valid_after_utc.timestamp(),
    )


def _issuer(leaf: x509.Certificate) -> str:
    from cryptography.x509.oid import NameOID

    for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME):
        for attribute in leaf.issuer.get_attributes_for_oid(oid):
            text = "".join(each for each in str(attribute.value) if each.isprintable())
            if text:
                return text[:_MAX_ISSUER]
    return "unnamed"


def _public_bytes(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data
