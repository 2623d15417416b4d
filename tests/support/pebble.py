"""A real ACME server on loopback: pebble of Let's Encrypt, strict, with its DNS server for challenges."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from skerry.model.tls_settings import TlsSettings
from tests.support.certificates import TestAuthority
from tests.support.shares import free_port
from tests.support.waiting import PATIENCE_S

_HOOK = """#!{python} -ISs
import json, os, sys, time, urllib.request
verb, domain, name, value = sys.argv[1:]
with open({log!r}, "a") as file:
    print(verb, domain, name, *sorted(os.environ), file=file)
while os.path.exists({hold!r}):
    time.sleep(0.02)
path, body = ("set-txt", {{"host": name + ".", "value": value}}) if verb == "present" else (
    "clear-txt", {{"host": name + "."}})
urllib.request.urlopen("http://127.0.0.1:{port}/" + path, json.dumps(body).encode(), timeout=10).read()
"""


class PebbleServer:
    """One ACME server. Every name resolves to 127.0.0.1, where `http_port` is checked."""

    def __init__(
        self, folder: Path, authority: TestAuthority, *, life_s: int = 86400, bad_nonces: int = 0
    ) -> None:
        """`bad_nonces` is how many percent of valid nonces it refuses."""
        self.folder = folder
        self.port, self._management_port = free_port(), free_port()
        self.http_port, self.dns_port, self._dns_management_port = free_port(), free_port(), free_port()
        pair = authority.issue("acme", server=True)
        self.ca_file = authority.ca
        config = {
            "pebble": {
                "listenAddress": f"127.0.0.1:{self.port}",
                "managementListenAddress": f"127.0.0.1:{self._management_port}",
                "certificate": str(pair.certificate),
                "privateKey": str(pair.key),
                "httpPort": self.http_port,
                "tlsPort": free_port(),
                "ocspResponderURL": "",
                "externalAccountBindingRequired": False,
                "certificateValidityPeriod": life_s,
            }
        }
        (folder / "pebble.json").write_text(json.dumps(config))
        self._bad_nonces = bad_nonces
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def directory(self) -> str:
        return f"https://127.0.0.1:{self.port}/dir"

    def settings(self, **more: object) -> TlsSettings:
        """Of a Skerry that orders here."""
        return TlsSettings(
            acme_directory=self.directory,
            acme_terms_agreed=True,
            acme_email="admin@example.org",
            acme_ca_file=str(self.ca_file),
            challenge_delay_s=0.0,
            **more,  # type: ignore[arg-type]
        )

    def dns_hook(self) -> Path:
        """A program that sets records in its DNS server, notes each call in `hook.log`, and waits while there
        is a file `hold`."""
        path = self.folder / "hook"
        text = _HOOK.format(
            python=sys.executable,
            log=str(self.folder / "hook.log"),
            hold=str(self.folder / "hold"),
            port=self._dns_management_port,
        )
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def start(self) -> None:
        dns = [
            *("pebble-challtestsrv", "-dns01", f"127.0.0.1:{self.dns_port}", "-defaultIPv6", ""),
            *("-management", f"127.0.0.1:{self._dns_management_port}"),
            *("-http01", "", "-https01", "", "-tlsalpn01", ""),
        ]
        acme = [
            *("pebble", "-strict", "-config", str(self.folder / "pebble.json")),
            *("-dnsserver", f"127.0.0.1:{self.dns_port}"),
        ]
        for command in (dns, acme):
            program = shutil.which(command[0])
            assert program, "pebble is missing: install the packages of system-packages.txt"
            with open(self.folder / f"{command[0]}.log", "ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [program, *command[1:]],
                        stdout=log,
                        stderr=log,
                        env={
                            "PEBBLE_VA_NOSLEEP": "1",
                            "PEBBLE_WFE_NONCEREJECT": str(self._bad_nonces),
                            # Every order is authorized anew.
                            "PEBBLE_AUTHZREUSE": "0",
                        },
                    )
                )
        for port in (self._dns_management_port, self.port, self._management_port):
            self._wait_for(port)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(PATIENCE_S)
        self._processes.clear()

    def log(self) -> str:
        return (self.folder / "pebble.log").read_text()

    def hook_calls(self) -> list[list[str]]:
        path = self.folder / "hook.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def orders(self) -> int:
        """How many orders it has."""
        return self._newest(r"There are now (\d+) orders in the db")

    def accounts(self) -> int:
        """How many accounts it has."""
        return self._newest(r"There are now (\d+) accounts in memory")

    def _newest(self, pattern: str) -> int:
        found = re.findall(pattern, self.log())
        return int(found[-1]) if found else 0

    def root(self) -> bytes:
        """The CA of its certificates, in PEM."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        url = f"https://127.0.0.1:{self._management_port}/roots/0"
        with urllib.request.urlopen(url, context=context, timeout=PATIENCE_S) as response:
            data: bytes = response.read()
        return data

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if any(process.poll() is not None for process in self._processes) or (
                    time.monotonic() > deadline
                ):
                    raise AssertionError(f"pebble did not start: {self.log()[-2000:]}") from None
                time.sleep(0.02)
