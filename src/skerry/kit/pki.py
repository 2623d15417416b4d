"""Keys, signing requests and certificates, and an authority of our own that signs them.

`skerry.control` decides about certificates and keeps their records; `skerry.kit.tls` uses them. The authority
takes nothing from a signing request but its public key: names, role and life come from the caller. It never
writes a private key to a file that others can read, and never overwrites one.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skerry.kit import files
from skerry.kit.clock import Clock

log = structlog.get_logger(__name__)

BACKDATE_S = 60  # a peer whose clock is a little slow must not find a fresh certificate "not yet valid"
AUTHORITY_LIFE_S = 10 * 365 * 86400
MAX_REQUEST_BYTES = 16 * 1024
# While the CA is replaced; and then the key that secrets are derived from, which is that of the first CA.
NEXT_CERTIFICATE, NEXT_KEY, ROOT_KEY = "ca-next.crt", "ca-next.key", "derive.key"
_MAX_COMMON_NAME = 64
# Small boards start in 1970 and get the time later.
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC).timestamp()

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)

LeafKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


class InvalidSigningRequest(ValueError):
    """A signing request that is not accepted; the text says why, for the sender."""


class InvalidCertificate(ValueError):
    """Bytes that are no certificate, or one that this authority did not sign."""


class UnusableKeyFiles(RuntimeError):
    """Key or certificate files that cannot be used; the text names the file and the way out."""


class SigningRequest(msgspec.Struct, frozen=True):
    """A signing request that was checked: its sender holds the private key that belongs to `key`."""

    key: LeafKey
    digest: str  # SHA-256 of the public key, in hex

    @classmethod
    def parse(cls, pem: bytes) -> SigningRequest:
        if len(pem) > MAX_REQUEST_BYTES:
            raise InvalidSigningRequest(f"the signing request is larger than {MAX_REQUEST_BYTES} bytes")
        try:
            request = x509.load_pem_x509_csr(pem)
            is_signed = request.is_signature_valid
            key = request.public_key()
        except _UNREADABLE as error:
            raise InvalidSigningRequest("this is not a PEM certificate signing request (PKCS #10)") from error
        if not is_signed:
            raise InvalidSigningRequest("the signing request is not signed by its own key")
        return cls(_accept(key), key_digest(key))


class IssuedCertificate(msgspec.Struct, frozen=True):
    """A certificate in plain terms: subject CN is the `name`, O the `role`, and each OU one of `units`; times
    are wall clock seconds."""

    pem: bytes
    serial: str  # 32 hex digits
    name: str
    role: str
    hosts: frozenset[str]
    key: str  # SHA-256 of the public key, in hex
    not_before: float
    not_after: float
    units: tuple[str, ...] = ()
    issuer: str = ""  # the id of the key of its CA

    @property
    def issued_at(self) -> float:
        return self.not_before + BACKDATE_S


class CertificateAuthority:
    """A certificate authority that signs with ECDSA P-256 and holds its key in memory and in one file.

    While it is replaced it has a `successor`, whose certificates count as well; `promote` puts that in its
    place. Secrets that were derived from the key of the first one stay what they are.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: Clock) -> None:
        self._clock = clock
        self._root = key  # of derived secrets
        self.successor: CertificateAuthority | None = None
        self._become(certificate, key)

    def _become(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
        self.not_before = certificate.not_valid_before_utc.timestamp()
        self.not_after = certificate.not_valid_after_utc.timestamp()
        self.key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()

    @classmethod
    def create(cls, clock: Clock) -> CertificateAuthority:
        """A new one, in memory. It can vouch for the one that it replaces (`cross_pem`)."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(_self_sign(key, clock.now(), path_length=1), key, clock)

    @classmethod
    def parse(cls, certificate_pem: bytes, key_pem: bytes, clock: Clock) -> CertificateAuthority:
        """One of which certificate and key are known. Raises `InvalidCertificate`."""
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = serialization.load_pem_private_key(key_pem, password=None)
        except _UNREADABLE:
            raise InvalidCertificate("certificate and key of the CA cannot be read") from None
        is_pair = key_digest(certificate.public_key()) == key_digest(key.public_key())
        if not is_pair or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidCertificate("certificate and key of the CA do not belong together")
        return cls(certificate, key, clock)

    @classmethod
    def load_or_create(cls, folder: Path, clock: Clock) -> CertificateAuthority:
        """The authority of `folder` (`ca.crt`, `ca.key`); made now if the folder has none.

        The key is written first: a process that dies before it has written the certificate leaves a key that
        the next start uses.
        """
        files.private_folder(folder)
        certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
        with _alone_in(folder):
            _finish_promotion(folder)
            if certificate_file.exists() and not key_file.exists():
                raise UnusableKeyFiles(
                    f"{certificate_file} is there but {key_file} is missing: bring the key back from a "
                    "backup, or remove ca.crt to start over with a new CA (every node must join again)"
                )
            key = _parse_key(key_file, _read_or_make_key(key_file))
            if not certificate_file.exists():
                if clock.now() < _EARLIEST:
                    raise UnusableKeyFiles(
                        f"this machine's clock says {_moment(clock.now()):%Y-%m-%d}: set it first, or the CA "
                        "that is made now will have expired when the clock is right"
                    )
                certificate = _self_sign(key, clock.now())
                pem = certificate.public_bytes(serialization.Encoding.PEM)
                files.write_atomically(certificate_file, pem)
                log.info("authority.created", file=str(certificate_file))
        authority = cls(_read_authority(certificate_file), key, clock)
        authority._check(certificate_file, key_file)
        root_file = folder / ROOT_KEY
        if root_file.exists():
            authority._root = _parse_key(root_file, root_file.read_bytes())
        if (folder / NEXT_CERTIFICATE).exists():
            next_key = _parse_key(folder / NEXT_KEY, _read_or_make_key(folder / NEXT_KEY))
            authority.successor = cls(_read_authority(folder / NEXT_CERTIFICATE), next_key, clock)
            authority.successor._check(folder / NEXT_CERTIFICATE, folder / NEXT_KEY)
            authority._write_bundle(folder)
        return authority

    @property
    def key_pem(self) -> bytes:
        """The private key, not encrypted."""
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def root_digest(self) -> str:
        """Names the key that secrets are derived from."""
        return key_digest(self._root.public_key())

    @property
    def bundle_pem(self) -> bytes:
        """The certificates of all CAs that count: this one's first."""
        return self.certificate_pem + (b"" if self.successor is None else self.successor.certificate_pem)

    @property
    def newest(self) -> CertificateAuthority:
        """The one that newcomers are to know the cloud by."""
        return self.successor or self

    def cross_pem(self) -> bytes:
        """This CA, certified by its successor: with it in the chain of a server, those who know only the
        successor accept certificates of this one. Empty if there is none."""
        if self.successor is None:
            return b""
        signer, own = self.successor, self._certificate
        builder = (
            x509.CertificateBuilder()
            .subject_name(own.subject)
            .issuer_name(signer._certificate.subject)
            .public_key(own.public_key())
            .serial_number(_new_serial())
            .not_valid_before(_moment(math.floor(self._clock.now()) - BACKDATE_S))
            .not_valid_after(min(own.not_valid_after_utc, signer._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer._key.public_key()), critical=False
            )
        )
        signed = builder.sign(signer._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def adopt(self, folder: Path, successor: CertificateAuthority) -> None:
        """Have this successor from now on, and in the files of `folder`. Blocking."""
        with _alone_in(folder):
            files.write_atomically(folder / NEXT_KEY, successor.key_pem, files.PRIVATE)
            files.write_atomically(folder / NEXT_CERTIFICATE, successor.certificate_pem)
        self.successor = successor
        self._write_bundle(folder)

    def _write_bundle(self, folder: Path) -> None:
        """`ca.crt` is what clients of this machine trust: both, the present one first."""
        if (folder / "ca.crt").read_bytes() != self.bundle_pem:
            files.write_atomically(folder / "ca.crt", self.bundle_pem)

    def promote(self, folder: Path, failpoint: Callable[[str], None] = lambda step: None) -> None:
        """Become the successor, here and in the files of `folder`. Blocking.

        The key is written first: a process that dies then leaves one by which the next start knows what was
        under way.
        """
        successor = self.successor
        assert successor is not None, "there is a successor"
        with _alone_in(folder):
            if not (folder / ROOT_KEY).exists():
                files.write_atomically(folder / ROOT_KEY, self._root_pem(), files.PRIVATE)
            failpoint("root")
            files.write_atomically(folder / "ca.key", successor.key_pem, files.PRIVATE)
            failpoint("key")
            _finish_promotion(folder, failpoint)
        self.successor = None
        self._become(successor._certificate, successor._key)

    def _root_pem(self) -> bytes:
        return self._root.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def derive(self, use: bytes) -> bytes:
        """A secret of 32 bytes for one use, the same wherever this authority is: it reveals neither the key
        nor the secret of another use."""
        private = self._root.private_numbers().private_value.to_bytes(32, "big")
        return HKDF(hashes.SHA256(), length=32, salt=None, info=use).derive(private)

    def issue(
        self,
        request: SigningRequest,
        *,
        name: str,
        role: str,
        lifetime_s: float,
        server: bool = False,
        client: bool | None = None,
        hosts: Iterable[str] = (),
        units: Iterable[str] = (),
    ) -> IssuedCertificate:
        """A certificate for the key of `request`: for a server at `hosts`, for a client, or for both.

        Without `server` it is for a client. It never outlives the authority.
        """
        now = self._clock.now()
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
        if client or (client is None and not server):
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        ends = min(_moment(math.ceil(now + lifetime_s)), self._certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, role, units))
            .issuer_name(self._certificate.subject)
            .public_key(request.key)
            .serial_number(_new_serial())
            .not_valid_before(_moment(math.floor(now) - BACKDATE_S))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(request.key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if alternatives := [_general_name(host) for host in sorted(set(hosts))]:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return _describe(builder.sign(self._key, hashes.SHA256()))

    def read(self, der: bytes) -> IssuedCertificate:
        """The certificate in `der`; `InvalidCertificate` if neither this authority nor its successor signed
        it. Looks at no dates."""
        if self.successor is not None:
            with suppress(InvalidCertificate):
                return self.successor.read(der)
        try:
            certificate = x509.load_der_x509_certificate(der)
            certificate.verify_directly_issued_by(self._certificate)
        except InvalidSignature as error:
            raise InvalidCertificate("the certificate was not signed by this CA") from error
        except _UNREADABLE as error:
            raise InvalidCertificate("the certificate is unreadable or was issued by another CA") from error
        return _describe(certificate)

    def _check(self, certificate_file: Path, key_file: Path) -> None:
        if key_digest(self._certificate.public_key()) != key_digest(self._key.public_key()):
            raise UnusableKeyFiles(
                f"{key_file} does not belong to {certificate_file}: bring both back from the same backup"
            )
        try:
            constraints = self._certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = x509.BasicConstraints(ca=False, path_length=None)
        if not constraints.ca:
            raise UnusableKeyFiles(
                f"{certificate_file} is not the certificate of a CA: bring the right one back"
            )
        if self._certificate.not_valid_after_utc.timestamp() <= self._clock.now():
            raise UnusableKeyFiles(
                f"the CA in {certificate_file} expired on {self._certificate.not_valid_after_utc:%Y-%m-%d}: "
                "remove ca.crt and ca.key to start over with a new CA; every node must join again"
            )


def load_or_create_key(path: Path) -> bytes:
    """The ECDSA key in `path` as PEM; a new one on P-256, readable by this user only, if there is none."""
    with _alone_in(path.parent):
        pem = _read_or_make_key(path)
        _parse_key(path, pem)
        return pem


def new_key() -> bytes:
    """A new ECDSA key on P-256 as PEM, not encrypted."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_request(key_pem: bytes) -> bytes:
    """A signing request (PEM) for the key. It has no name: the authority decides on it."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "made by load_or_create_key"
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_certificate(pem: bytes) -> IssuedCertificate:
    """The certificate in `pem` in plain terms. Its signature is not verified."""
    try:
        return _describe(x509.load_pem_x509_certificate(pem))
    except _UNREADABLE as error:
        raise InvalidCertificate("this is not a PEM certificate") from error


def split_bundle(pem: bytes) -> list[bytes]:
    """The certificates of a PEM file, each by itself. Raises `InvalidCertificate`."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except _UNREADABLE as error:
        raise InvalidCertificate("this is not a PEM certificate") from error
    return [each.public_bytes(serialization.Encoding.PEM) for each in found]


def fingerprint(pem: bytes) -> str:
    """SHA-256 of the certificate's DER in hex, as `CertificateAuthority.fingerprint`."""
    try:
        return x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    except _UNREADABLE as error:
        raise InvalidCertificate("this is not a PEM certificate") from error


def is_issued_by(pem: bytes, authority_pem: bytes) -> bool:
    """Whether one of the authorities in `authority_pem` signed the certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        authorities = x509.load_pem_x509_certificates(authority_pem)
    except _UNREADABLE:
        return False
    return any(_is_signed_by(certificate, authority) for authority in authorities)


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def key_digest(key: PublicKeyTypes | bytes) -> str:
    """SHA-256 in hex of a public key, or of the public half of a private key in PEM."""
    if isinstance(key, bytes):
        key = serialization.load_pem_private_key(key, password=None).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _accept(key: object) -> LeafKey:
    match key:
        case ec.EllipticCurvePublicKey() if isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
            return key
        case ec.EllipticCurvePublicKey():
            raise InvalidSigningRequest(
                f"elliptic curve {key.curve.name} is not accepted: use P-256 or P-384"
            )
        case ed25519.Ed25519PublicKey():
            return key
        # The upper bound keeps one request from buying seconds of arithmetic.
        case rsa.RSAPublicKey() if 2048 <= key.key_size <= 8192:
            return key
        case rsa.RSAPublicKey():
            raise InvalidSigningRequest(
                f"an RSA key of {key.key_size} bits is not accepted: use 2048 to 8192 bits"
            )
        case _:
            raise InvalidSigningRequest(
                "this kind of key is not accepted: use ECDSA P-256 or P-384, Ed25519 or RSA"
            )


def _describe(certificate: x509.Certificate) -> IssuedCertificate:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    addresses = names.get_values_for_type(x509.IPAddress)
    try:
        issuer = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        issuer = x509.AuthorityKeyIdentifier(None, None, None)
    return IssuedCertificate(
        pem=certificate.public_bytes(serialization.Encoding.PEM),
        serial=f"{certificate.serial_number:032x}",
        name=_attribute(certificate.subject, NameOID.COMMON_NAME),
        role=_attribute(certificate.subject, NameOID.ORGANIZATION_NAME),
        hosts=frozenset([*names.get_values_for_type(x509.DNSName), *map(str, addresses)]),
        key=key_digest(certificate.public_key()),
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
        units=tuple(
            str(unit.value)
            for unit in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        ),
        issuer=(issuer.key_identifier or b"").hex(),
    )


def _attribute(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    values = name.get_attributes_for_oid(oid)
    return str(values[0].value) if values else ""


def _subject(name: str, role: str, units: Iterable[str]) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, role),
            *(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units),
            x509.NameAttribute(NameOID.COMMON_NAME, name[:_MAX_COMMON_NAME]),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _new_serial() -> int:
    return secrets.randbits(128) | 1 << 127  # the top bit makes every serial 32 hex digits long


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _self_sign(key: ec.EllipticCurvePrivateKey, now: float, *, path_length: int = 0) -> x509.Certificate:
    # Two clouds' authorities have different names, so that "unknown issuer" and a bad signature are different
    # errors.
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"Skerry CA {key_digest(key.public_key())[:8]}")]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(_new_serial())
        .not_valid_before(_moment(math.floor(now) - BACKDATE_S))
        .not_valid_after(_moment(math.floor(now) + AUTHORITY_LIFE_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _read_authority(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except _UNREADABLE as error:
        raise UnusableKeyFiles(f"{path} is not a PEM certificate: bring it back from a backup") from error


def _read_or_make_key(path: Path) -> bytes:
    """The content of `path`, written first if it does not exist."""
    try:
        pem = path.read_bytes()
    except FileNotFoundError:
        pem = new_key()
        files.write_atomically(path, pem, files.PRIVATE)
        return pem
    if path.stat().st_mode & 0o077:
        path.chmod(files.PRIVATE)
        log.warning("key.was_readable", file=str(path), now="0600", hint="others may have copied it")
    return pem


def _parse_key(path: Path, pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except _UNREADABLE as error:
        raise UnusableKeyFiles(
            f"{path} is not a PEM private key without a password: bring it back from a backup"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UnusableKeyFiles(f"{path} is no ECDSA key: bring the right one back from a backup")
    return key


def _finish_promotion(folder: Path, failpoint: Callable[[str], None] = lambda step: None) -> None:
    """Put the certificate of the successor in its place if its key is there already; the files of the
    successor are removed then."""
    next_key, next_certificate = folder / NEXT_KEY, folder / NEXT_CERTIFICATE
    try:
        is_begun = next_key.read_bytes() == (folder / "ca.key").read_bytes()
    except FileNotFoundError:
        return
    if not is_begun:
        return
    if next_certificate.exists():
        files.write_atomically(folder / "ca.crt", next_certificate.read_bytes())
        failpoint("certificate")
        next_certificate.unlink()
        failpoint("removed")
    next_key.unlink()
    files.sync_folder(folder)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time: of two that start together, the second finds what the first has made."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
