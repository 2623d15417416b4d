"""A real etcd on loopback: started with its own folder and ports, stopped and started again by its own pid.

Clients need no exemption from the leak check: grpcio's poller thread and its descriptors go away with the
last channel, and `assert_nothing_leaked` waits for that.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.certificates import Pair, TestAuthority
from tests.support.shares import free_port
from tests.support.waiting import PATIENCE_S


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdServer:
    """One member, alone in its cluster. `start` again after `stop` or `kill` finds its data."""

    def __init__(self, folder: Path, authority: TestAuthority | None = None, *, quota_bytes: int = 0) -> None:
        """With an authority it speaks TLS, and only to clients with a certificate of that authority.

        With a quota its database holds at most so many bytes.
        """
        self._folder = folder
        self._authority = authority
        self._quota_bytes = quota_bytes
        self.client: Pair | None = None
        self._client_port = free_port()
        self._peer_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._client_port}"

    @property
    def port(self) -> int:
        return self._client_port

    def start(self) -> None:
        program = shutil.which("etcd")
        assert program, "etcd is missing: install the packages of system-packages.txt"
        scheme = "https" if self._authority else "http"
        client = f"{scheme}://{self.address}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [
            program,
            "--name",
            "test",
            "--data-dir",
            str(self._folder / "data"),
            "--log-level",
            "error",
        ]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"test={peer}", "--logger", "zap"]
        if self._quota_bytes:
            command += ["--quota-backend-bytes", str(self._quota_bytes)]
        if self._authority:
            own = self._authority.issue("etcd", server=True)
            self.client = self._authority.issue("client")
            command += ["--cert-file", str(own.certificate), "--key-file", str(own.key)]
            command += ["--trusted-ca-file", str(self._authority.ca), "--client-cert-auth"]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"etcd did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """As an operator would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def fill(self) -> None:
        """Write until it says that its space is used up, and raises its alarm."""
        value = _text(bytes(500_000))
        for number in range(100):
            put = {"key": _text(b"/ballast/%d" % number), "value": value}
            if "exceeded" in self._gateway("kv/put", put).get("error", ""):
                return
        raise AssertionError("etcd was not full after 50 MB")

    def make_space(self) -> None:
        """What an operator does: remove something, compact, defragment."""
        whole = {"key": _text(b"/ballast/"), "range_end": _text(b"/ballast0")}
        revision = self._gateway("kv/deleterange", whole)["header"]["revision"]
        self._gateway("kv/compaction", {"revision": revision, "physical": True})
        self._gateway("maintenance/defragment", {})

    def disarm(self) -> None:
        """And then `etcdctl alarm disarm`: for each alarm that there is."""
        for alarm in self._gateway("maintenance/alarm", {"action": "GET"}).get("alarms", []):
            self._gateway("maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def _gateway(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request to the JSON gateway of an etcd without TLS."""
        connection = http.client.HTTPConnection("127.0.0.1", self._client_port, timeout=PATIENCE_S)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()

    def _is_healthy(self) -> bool:
        context = None
        if self._authority and self.client:
            context = ssl.create_default_context(cafile=str(self._authority.ca))
            context.load_cert_chain(self.client.certificate, self.client.key)
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection("127.0.0.1", self._client_port, timeout=2, context=context)
            if context
            else http.client.HTTPConnection("127.0.0.1", self._client_port, timeout=2)
        )
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read().startswith(b'{"health":"true"')
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
