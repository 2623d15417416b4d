"""Request heads made by seeds, to a whole Skerry: its API, and a service through a route, without and with
TLS. Nothing may end, answer with an error of ours, keep a connection, or fill up.

A violation names the seed; `--seed N --rounds 1` repeats it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.support import imagery
from tests.support.http_heads import HeadFuzzer, send_heads
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

from bench.routes import free_ports

_HEADS = 1000  # of each round and address
_SPARE_FILES = 32  # that may be open beyond those of before: idle connections to copies
_OURS = {"500", "502", "503", "504"}


def run(rounds: int = 20, seed: int = 1) -> list[str]:
    plain, secure = free_ports(2)
    with tempfile.TemporaryDirectory() as name:
        made = imagery.busybox(command=("sh", "-c", "echo 1 > /www/index.html; exec httpd -f -p 80 -h /www"))
        image = f"oci-archive:{imagery.write_oci_archive(made, Path(name) / 'web.tar')}"
        flags = ("--set", f"routes.http=127.0.0.1:{plain}", "--set", f"routes.https=127.0.0.1:{secure}")
        with running(Path(name), *flags) as skerry:
            body = {"name": "web", "image": image, "resources": {"cpu": 100, "memory": 64}}
            skerry.call("PUT", "/service/", body)
            skerry.call("PUT", "/route/", {"host": "a.test", "to": "service/web:80"})
            eventually_sync(lambda: skerry.call("GET", "/service/web")[1]["ready"] == 1)
            api = int(skerry.ready["http"].rpartition(":")[2].strip("/"))
            try:
                addresses = {"API": (api, False), "route": (plain, False), "route with TLS": (secure, True)}
                return _rounds(skerry, addresses, range(seed, seed + rounds))
            finally:
                skerry.call("DELETE", "/service/web")
                eventually_sync(lambda: not skerry.call("GET", "/instance/")[1]["instances"])


def _rounds(skerry: Skerry, addresses: Mapping[str, tuple[int, bool]], seeds: range) -> list[str]:
    violations: list[str] = []
    answers: Counter[str] = Counter()
    before = _open_files(skerry)
    for seed in seeds:
        for what, (port, is_tls) in addresses.items():
            try:
                found = asyncio.run(_send(seed, port, is_tls))
            except (ExceptionGroup, OSError) as error:
                violations.append(f"{what}, seed {seed}: {error!r}")
                continue
            answers += found
            if what == "API" and found.keys() & _OURS:
                violations.append(f"{what}, seed {seed}: {found}")
            if skerry.process.poll() is not None:
                return [*violations, f"{what}, seed {seed}: Skerry has ended"]
    print(f"  {answers.total()} heads: {dict(answers.most_common())}", flush=True)
    try:
        eventually_sync(lambda: _open_files(skerry) <= before + _SPARE_FILES)
    except AssertionError:
        violations.append(f"{_open_files(skerry)} files are open, {before} were before")
    return violations


async def _send(seed: int, port: int, is_tls: bool) -> Counter[str]:
    context = None
    if is_tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    fuzzer = HeadFuzzer(seed, [b"a.test", b"127.0.0.1"])
    return await send_heads(
        fuzzer,
        lambda: asyncio.open_connection("127.0.0.1", port, ssl=context),
        count=_HEADS,
        within_s=90.0,
    )


def _open_files(skerry: Skerry) -> int:
    return len(os.listdir(f"/proc/{skerry.process.pid}/fd"))
