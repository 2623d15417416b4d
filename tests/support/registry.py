"""Debian's docker-registry on loopback: real, with its own folder and port, stopped by its own pid.

    with Registry(tmp_path) as registry:
        registry.push(imagery.busybox(), "web:1")
        await images.pull(f"{registry.address}/web:1")

With `password` it asks for the user `USER` and `PASSWORD`; with `authority` it speaks TLS; with `token_realm`
it wants tokens that somebody else gives out there, signed by `authority`. With `host` it is not on loopback.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.support import imagery
from tests.support.certificates import TestAuthority
from tests.support.imagery import Made
from tests.support.shares import free_port
from tests.support.waiting import PATIENCE_S, eventually_sync

USER = "skerry"
PASSWORD = "correct horse"
SERVICE = "test registry"
ISSUER = "test issuer"
# bcrypt of PASSWORD, which is all that the registry accepts, and which the standard library cannot make.
_HASH = "$2b$04$rr2BJiGgf/diL/nIpie2QuOpoYiVkiZoJDxm2OWhA/.n8mfM/hrly"


class Registry:
    """One registry; a context manager, or `start` and `stop`."""

    def __init__(
        self,
        folder: Path,
        *,
        password: bool = False,
        authority: TestAuthority | None = None,
        tls: bool = False,
        token_realm: str = "",
        host: str = "127.0.0.1",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._password = password
        self._authority = authority
        self._tls = tls
        self._token_realm = token_realm
        self._host = host
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Registry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT, as a reference begins."""
        return f"{self._host}:{self._port}"

    def start(self) -> None:
        """With another port after a `stop`."""
        program = shutil.which("docker-registry")
        assert program, "docker-registry is missing: install the packages of system-packages.txt"
        for _ in range(5):  # another process may take the port between our looking and its binding
            self._port = free_port()
            config = self._folder / "config.json"  # JSON is YAML
            config.write_text(json.dumps(self._config()))
            with open(self._folder / "log", "ab") as log:
                self._process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
            eventually_sync(lambda: self._answers() or self._has_ended())
            if not self._has_ended():
                return
        raise AssertionError(f"docker-registry did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def log(self) -> str:
        """What it wrote: every request is a line."""
        return (self._folder / "log").read_text()

    def push(self, made: Made, name: str) -> str:
        """Store an image as `name`, `repository:tag` or `repository`; the digest of its manifest."""
        repository, _, tag = name.partition(":")
        for data in made.blobs().values():
            self.push_blob(repository, data)
        return self.push_manifest(repository, tag or "latest", made.manifest, made.media_type)

    def push_index(self, name: str, data: bytes, *images: Made) -> str:
        """Store an index of `images`, and them with it."""
        repository, _, tag = name.partition(":")
        for made in images:
            self.push(made, f"{repository}:{made.digest.removeprefix('sha256:')}")
        media_type = str(json.loads(data)["mediaType"])
        return self.push_manifest(repository, tag or "latest", data, media_type)

    def push_blob(self, repository: str, data: bytes) -> str:
        digest = imagery.digest_of(data)
        status, _ = self._ask("HEAD", f"/v2/{repository}/blobs/{digest}")
        if status != 200:
            status, place = self._ask("POST", f"/v2/{repository}/blobs/uploads/")
            assert status == 202, f"{status} instead of an upload"
            parts = urlsplit(place)
            path = f"{parts.path}?{parts.query}&digest={digest}"
            status, _ = self._ask("PUT", path, data, "application/octet-stream")
            assert status == 201, f"{status} for a blob"
        return digest

    def push_manifest(self, repository: str, tag: str, data: bytes, media_type: str) -> str:
        status, _ = self._ask("PUT", f"/v2/{repository}/manifests/{tag}", data, media_type)
        assert status == 201, f"{status} for a manifest: {self.log()[-2000:]}"
        return imagery.digest_of(data)

    def path_of_blob(self, digest: str) -> Path:
        """Where the registry keeps a blob, for tests that spoil it."""
        plain = digest.removeprefix("sha256:")
        return self._storage / "docker/registry/v2/blobs/sha256" / plain[:2] / plain / "data"

    @property
    def _storage(self) -> Path:
        return self._folder / "storage"

    def _config(self) -> dict[str, object]:
        server: dict[str, object] = {"addr": self.address, "relativeurls": True}
        config: dict[str, object] = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {
                "filesystem": {"rootdirectory": str(self._storage)},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": False}},
            },
            "http": server,
        }
        if self._tls:
            assert self._authority is not None, "TLS needs an authority"
            pair = self._authority.issue("registry", server=True)
            server["tls"] = {"certificate": str(pair.certificate), "key": str(pair.key)}
        if self._password:
            path = self._folder / "htpasswd"
            path.write_text(f"{USER}:{_HASH}\n")
            config["auth"] = {"htpasswd": {"realm": "basic-realm", "path": str(path)}}
        if self._token_realm:
            assert self._authority is not None, "tokens need an authority"
            config["auth"] = {
                "token": {
                    "realm": self._token_realm,
                    "service": SERVICE,
                    "issuer": ISSUER,
                    "rootcertbundle": str(self._authority.ca),
                }
            }
        return config

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/v2/")[0] in (200, 401)
        except OSError:
            return False

    def _ask(self, verb: str, path: str, body: bytes = b"", media_type: str = "") -> tuple[int, str]:
        """The status, and where the answer points."""
        headers = {"Content-Type": media_type} if media_type else {}
        if self._password:
            proof = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers["Authorization"] = f"Basic {proof}"
        connection = self._connection()
        try:
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("Location") or ""
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE_S)
        assert self._authority is not None
        context = ssl.create_default_context(cafile=str(self._authority.ca))
        return http.client.HTTPSConnection(self._host, self._port, timeout=PATIENCE_S, context=context)
