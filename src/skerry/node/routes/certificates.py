"""Certificates of the edge: as files that HAProxy reads at its start, and as commands while it runs.

A list names each file with the hosts that it is for; the first one is for all others. Files are readable for
root alone: HAProxy reads them before it gives up its rights.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skerry.kit import files
from skerry.model import errors
from skerry.model.routes import check_host
from skerry.node.routes import runtime_api
from skerry.node.routes.config import EdgeFiles

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DEFAULT_DAYS = 3650


class CertificateFiles:
    """The certificates of one edge node."""

    def __init__(self, paths: EdgeFiles) -> None:
        self._paths = paths
        self._hosts: dict[str, tuple[str, ...]] = {}  # by name; the default one is not in it

    def open(self) -> None:
        """Read what is there, and make the default certificate."""
        files.private_folder(self._paths.certificates)
        if not (default := self._path(DEFAULT)).exists():
            files.write_atomically(default, self_signed_pem(), files.PRIVATE)
        with contextlib.suppress(OSError):
            for line in self._paths.certificate_list.read_text().splitlines()[1:]:
                path, *hosts = line.split()
                if Path(path).exists():
                    self._hosts[Path(path).stem] = tuple(hosts)
        self._write_list()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._hosts)

    async def set(self, name: str, domains: Sequence[str], pem: bytes, *, running: bool) -> None:
        """Use this certificate (with its chain and key) for these hosts; open connections keep theirs."""
        path, hosts = self._path(name), tuple(check_host(one) for one in domains)
        if name == DEFAULT or not hosts:
            raise errors.Invalid("a certificate has a name of its own, and hosts", field="name")
        was_there, before = path.exists(), self._hosts.get(name)
        if was_there and before == hosts and path.read_bytes() == pem:
            return
        files.write_atomically(path, pem, files.PRIVATE)
        self._hosts[name] = hosts
        self._write_list()
        if not running:
            return
        admin, listed = self._paths.admin_socket, self._paths.certificate_list
        if before is None:
            await runtime_api.send(admin, f"new ssl cert {path}")
        await runtime_api.execute_payload(admin, f"set ssl cert {path}", pem.decode())
        answer = await runtime_api.send(admin, f"commit ssl cert {path}")
        if "Success" not in answer:
            raise errors.Unavailable(f"HAProxy refused the certificate {name}", detail=answer.strip()[:500])
        if before != hosts:
            if before is not None:
                await runtime_api.send(admin, f"del ssl crt-list {listed} {path}")
            await runtime_api.execute_payload(
                admin, f"add ssl crt-list {listed}", f"{path} {' '.join(hosts)}"
            )

    async def remove(self, name: str, *, running: bool) -> None:
        """Its hosts get the default certificate."""
        if self._hosts.pop(name, None) is None:
            return
        path = self._path(name)
        self._write_list()
        if running:
            admin = self._paths.admin_socket
            await runtime_api.send(admin, f"del ssl crt-list {self._paths.certificate_list} {path}")
            await runtime_api.send(admin, f"del ssl cert {path}")
        path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise errors.Invalid(f"certificate name {name[:80]!r} is no file name", field="name")
        return self._paths.certificates / f"{name}.pem"

    def _write_list(self) -> None:
        lines = [str(self._path(DEFAULT))]
        lines += [f"{self._path(name)} {' '.join(hosts)}" for name, hosts in sorted(self._hosts.items())]
        text = "".join(f"{line}\n" for line in lines)
        files.write_atomically(self._paths.certificate_list, text.encode(), files.PRIVATE)


def self_signed_pem() -> bytes:
    """A certificate that nobody trusts, with its key: for hosts that have no other."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "no certificate for this host")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DEFAULT_DAYS))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
