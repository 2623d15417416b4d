"""Chains with their keys, as people import them: good ones, and each kind of bad one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class ChainMaker:
    """A root and an intermediate CA; `now` is the time of the test."""

    def __init__(self, now: float) -> None:
        self.now = datetime.fromtimestamp(now, UTC)
        self.root_key, self.middle_key = new_key(), new_key()
        self.root = self.sign("root", self.root_key, "root", self.root_key, is_authority=True)
        self.middle = self.sign("middle", self.middle_key, "root", self.root_key, is_authority=True)

    def sign(
        self,
        name: str,
        key: PrivateKey,
        issuer: str,
        issuer_key: PrivateKey,
        *,
        domains: tuple[str, ...] = (),
        is_authority: bool = False,
        ends_in: timedelta = timedelta(days=90),
        begins_in: timedelta = timedelta(days=-1),
        extension: x509.ExtensionType | None = None,
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now + begins_in)
            .not_valid_after(self.now + ends_in)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if domains:
            names = x509.SubjectAlternativeName([x509.DNSName(each) for each in domains])
            builder = builder.add_extension(names, critical=False)
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def pair(
        self, *domains: str, key: PrivateKey | None = None, with_middle: bool = True, **more: Any
    ) -> tuple[bytes, bytes]:
        """Chain and key of a certificate for `domains`."""
        key = key or new_key()
        leaf = self.sign("leaf", key, "middle", self.middle_key, domains=domains, **more)
        return leaf + (self.middle if with_middle else b""), key_pem(key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
