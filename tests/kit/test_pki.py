"""The authority, its files and what it signs."""

from __future__ import annotations

import shutil
import ssl
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import files, pki
from skerry.kit.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(tmp_path: Path, clock: ManualClock) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path / "pki", clock)


def request_with(key: object, subject: str = "") -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    algorithm = hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) else None
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def a_request() -> pki.SigningRequest:
    return pki.SigningRequest.parse(request_with(ec.generate_private_key(ec.SECP256R1())))


def parsed(issued: pki.IssuedCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.pem)


def test_the_authority_is_made_once_and_found_again(tmp_path: Path, clock: ManualClock) -> None:
    first = pki.CertificateAuthority.load_or_create(tmp_path / "pki", clock)
    again = pki.CertificateAuthority.load_or_create(tmp_path / "pki", clock)
    assert first.fingerprint == again.fingerprint == pki.fingerprint(first.certificate_pem)


def test_nobody_else_can_read_the_authoritys_key(tmp_path: Path, authority: pki.CertificateAuthority) -> None:
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "pki" / "ca.key").stat().st_mode) == 0o600


def test_a_key_that_others_could_read_is_closed_to_them(
    tmp_path: Path, authority: pki.CertificateAuthority
) -> None:
    key = tmp_path / "pki" / "ca.key"
    key.chmod(0o644)
    pki.CertificateAuthority.load_or_create(tmp_path / "pki", ManualClock())
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_authority_lasts_ten_years_and_signs_no_other_authorities(
    authority: pki.CertificateAuthority,
) -> None:
    certificate = x509.load_pem_x509_certificate(authority.certificate_pem)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert life.days == 3650
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


def test_of_several_that_start_together_all_end_with_one_authority(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def make() -> str:
        start.wait()
        return pki.CertificateAuthority.load_or_create(tmp_path / "pki", ManualClock()).fingerprint

    with ThreadPoolExecutor(4) as pool:  # the lock is on the open file: threads race as processes do
        found = [future.result() for future in [pool.submit(make) for _ in range(4)]]
    assert len(set(found)) == 1
    assert found[0] == pki.CertificateAuthority.load_or_create(tmp_path / "pki", ManualClock()).fingerprint


def test_a_start_that_died_between_key_and_certificate_is_gone_on_with(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = files.private_folder(tmp_path / "pki")
    key = pki.load_or_create_key(folder / "ca.key")
    authority = pki.CertificateAuthority.load_or_create(folder, clock)
    assert pki.read_certificate(authority.certificate_pem).key == pki.key_digest(key)


def broken(folder: Path, clock: ManualClock) -> str:
    with pytest.raises(pki.UnusableKeyFiles) as caught:
        pki.CertificateAuthority.load_or_create(folder, clock)
    return str(caught.value)


def test_broken_files_are_named(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "pki"
    pki.CertificateAuthority.load_or_create(folder, clock)
    certificate, key = (folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()

    (folder / "ca.crt").write_bytes(certificate[:200])
    assert "ca.crt is not a PEM certificate" in broken(folder, clock)
    (folder / "ca.crt").write_bytes(certificate)

    (folder / "ca.key").write_bytes(b"")
    assert "ca.key is not a PEM private key" in broken(folder, clock)

    (folder / "ca.key").unlink()
    assert "ca.key is missing" in broken(folder, clock)
    assert not (folder / "ca.key").exists(), "a lost key must not be replaced in silence"

    other = ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.key").write_bytes(_pem(other))
    assert "does not belong to" in broken(folder, clock)

    (folder / "ca.key").write_bytes(_pem(ed25519.Ed25519PrivateKey.generate()))
    assert "is no ECDSA key" in broken(folder, clock)

    (folder / "ca.key").write_bytes(key)
    assert pki.CertificateAuthority.load_or_create(folder, clock).certificate_pem == certificate


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def test_an_ordinary_certificate_is_no_authority(tmp_path: Path, authority: pki.CertificateAuthority) -> None:
    folder = files.private_folder(tmp_path / "other")
    key = pki.load_or_create_key(folder / "ca.key")
    leaf = authority.issue(
        pki.SigningRequest.parse(pki.make_request(key)), name="a", role="admin", lifetime_s=3600
    )
    (folder / "ca.crt").write_bytes(leaf.pem)
    assert "is not the certificate of a CA" in broken(folder, ManualClock())


def test_an_expired_authority_is_refused_with_the_day(tmp_path: Path, clock: ManualClock) -> None:
    pki.CertificateAuthority.load_or_create(tmp_path / "pki", clock)
    clock.advance(pki.AUTHORITY_LIFE_S)
    assert "expired on 2033-" in broken(tmp_path / "pki", clock)


def test_no_authority_is_made_by_a_clock_that_was_never_set(tmp_path: Path) -> None:
    assert "clock says 1970-01-01" in broken(tmp_path / "pki", ManualClock(100.0))
    assert not (tmp_path / "pki" / "ca.crt").exists()


def test_names_come_from_us_and_only_the_key_from_the_request(authority: pki.CertificateAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    request = pki.SigningRequest.parse(request_with(key, subject="root"))
    issued = authority.issue(request, name="n1", role="node", lifetime_s=3600)
    assert (issued.name, issued.role, issued.hosts) == ("n1", "node", frozenset())
    assert issued.key == pki.key_digest(key.public_key())
    assert b"root" not in parsed(issued).public_bytes(serialization.Encoding.DER)


def test_a_certificate_starts_a_minute_ago_and_ends_when_told(
    authority: pki.CertificateAuthority, clock: ManualClock
) -> None:
    issued = authority.issue(a_request(), name="n1", role="node", lifetime_s=3600)
    assert issued.not_before == clock.now() - 60
    assert issued.issued_at == clock.now()
    assert issued.not_after == clock.now() + 3600


def test_no_certificate_outlives_the_authority(
    authority: pki.CertificateAuthority, clock: ManualClock
) -> None:
    ends = pki.read_certificate(authority.certificate_pem).not_after
    clock.advance(ends - clock.now() - 100)
    issued = authority.issue(a_request(), name="n1", role="node", lifetime_s=3600)
    assert issued.not_after == ends


def test_server_and_client_certificates_serve_one_side_only(authority: pki.CertificateAuthority) -> None:
    server = authority.issue(
        a_request(), name="s", role="server", lifetime_s=60, server=True, hosts=["a", "::1"]
    )
    client = authority.issue(a_request(), name="c", role="admin", lifetime_s=60)
    usages = [
        parsed(one).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        for one in (server, client)
    ]
    assert list(usages[0]) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert list(usages[1]) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert server.hosts == {"a", "::1"}


def test_serials_are_random_and_of_one_length(authority: pki.CertificateAuthority) -> None:
    request = a_request()
    serials = {authority.issue(request, name="n", role="node", lifetime_s=60).serial for _ in range(20)}
    assert len(serials) == 20
    assert {len(serial) for serial in serials} == {32}


@pytest.mark.parametrize(
    "new_key",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate,
        lambda: rsa.generate_private_key(65537, 2048),
    ],
    ids=["p384", "ed25519", "rsa2048"],
)
def test_strong_keys_of_other_kinds_are_accepted(
    authority: pki.CertificateAuthority, new_key: Callable[[], object]
) -> None:
    request = pki.SigningRequest.parse(request_with(new_key()))
    issued = authority.issue(request, name="n", role="node", lifetime_s=60)
    assert authority.read(ssl.PEM_cert_to_DER_cert(issued.pem.decode())) == issued


@pytest.mark.parametrize(
    ("new_key", "reason"),
    [
        (lambda: ec.generate_private_key(ec.SECP521R1()), "secp521r1 is not accepted"),
        (lambda: rsa.generate_private_key(65537, 1024), "1024 bits is not accepted"),
        (ed448.Ed448PrivateKey.generate, "this kind of key is not accepted"),
    ],
    ids=["p521", "rsa1024", "ed448"],
)
def test_weak_and_odd_keys_are_refused_with_a_reason(new_key: Callable[[], object], reason: str) -> None:
    with pytest.raises(pki.InvalidSigningRequest, match=reason):
        pki.SigningRequest.parse(request_with(new_key()))


def test_a_request_signed_by_another_key_is_refused() -> None:
    der = bytearray(
        ssl.PEM_cert_to_DER_cert(
            request_with(ec.generate_private_key(ec.SECP256R1()))
            .decode()
            .replace("CERTIFICATE REQUEST", "CERTIFICATE")
        )
    )
    der[-1] ^= 1
    pem = ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    with pytest.raises(pki.InvalidSigningRequest, match="not signed by its own key"):
        pki.SigningRequest.parse(pem.encode())


@given(st.binary(max_size=400))
def test_nonsense_is_never_more_than_a_bad_request(data: bytes) -> None:
    for pem in (data, b"-----BEGIN CERTIFICATE REQUEST-----\n" + data):
        with pytest.raises(pki.InvalidSigningRequest):
            pki.SigningRequest.parse(pem)
        with pytest.raises(pki.InvalidCertificate):
            pki.read_certificate(pem)


def test_an_oversize_request_is_refused_before_it_is_read() -> None:
    with pytest.raises(pki.InvalidSigningRequest, match="larger than"):
        pki.SigningRequest.parse(b"x" * (pki.MAX_REQUEST_BYTES + 1))


def test_an_authority_reads_only_what_it_signed(tmp_path: Path, authority: pki.CertificateAuthority) -> None:
    other = pki.CertificateAuthority.load_or_create(tmp_path / "other", ManualClock())
    issued = other.issue(a_request(), name="n", role="node", lifetime_s=60)
    der = ssl.PEM_cert_to_DER_cert(issued.pem.decode())
    assert other.read(der) == issued
    assert not pki.is_issued_by(issued.pem, authority.certificate_pem)
    with pytest.raises(pki.InvalidCertificate):
        authority.read(der)
    with pytest.raises(pki.InvalidCertificate):
        authority.read(b"nonsense")


def test_a_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    first = pki.load_or_create_key(tmp_path / "a.key")
    assert pki.load_or_create_key(tmp_path / "a.key") == first
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_secrets_of_an_authority_are_the_same_wherever_it_is_and_others_for_each_use(tmp_path: Path) -> None:
    clock = ManualClock()
    one = pki.CertificateAuthority.load_or_create(tmp_path / "one", clock)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = pki.CertificateAuthority.load_or_create(tmp_path / "copy", clock)
    other = pki.CertificateAuthority.load_or_create(tmp_path / "other", clock)
    assert one.derive(b"a") == copy.derive(b"a")
    assert len({one.derive(b"a"), one.derive(b"b"), other.derive(b"a")}) == 3
    assert len(one.derive(b"a")) == 32
