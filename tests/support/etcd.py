"""A real etcd on loopback: started with its own folder and ports, stopped and started again by its own pid.

Clients need no exemption from the leak check: grpcio's poller thread and its descriptors go away with the
last channel, and `assert_nothing_leaked` waits for that.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

from tests.support.certificates import Pair, TestAuthority


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EtcdServer:
    """One member, alone in its cluster. `start` again after `stop` or `kill` finds its data."""

    def __init__(self, folder: Path, authority: TestAuthority | None = None) -> None:
        """With an authority it speaks TLS, and only to clients with a certificate of that authority."""
        self._folder = folder
        self._authority = authority
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
        if self._authority:
            own = self._authority.issue("etcd", server=True)
            self.client = self._authority.issue("client")
            command += ["--cert-file", str(own.certificate), "--key-file", str(own.key)]
            command += ["--trusted-ca-file", str(self._authority.ca), "--client-cert-auth"]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"etcd did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """As an operator would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """As a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

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
        except OSError:
            return False
        finally:
            connection.close()
