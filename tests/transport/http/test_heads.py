"""Request heads made by a seed: none is answered with an error of ours, or keeps its connection.

`make soak ARGS="heads"` sends many more, to a whole Skerry.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from skerry.kit import pki, tls
from skerry.model.callers import SERVER
from skerry.model.settings import HttpSettings
from tests.support.http_heads import HeadFuzzer, send_heads
from tests.transport.http.conftest import Serve
from tests.transport.http.test_hostile import emptied, still_serves

QUICK = HttpSettings(header_timeout_s=1, body_timeout_s=1, keep_alive_s=2)
# What a request can be at fault for, and what this server does not do.
EXPECTED = {"gone", "closed", "reset", "200", "204"} | {
    str(status) for status in (400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 421, 426, 431, 501, 505)
}


@pytest.mark.parametrize("seed", [1, 2])
async def test_heads_over_tcp(serve: Serve, seed: int, logged: list[structlog.typing.EventDict]) -> None:
    site = await serve(http=QUICK)
    found = await send_heads(
        HeadFuzzer(seed, [b"localhost", b"127.0.0.1"]),
        lambda: asyncio.open_connection(*site.server.address),
        count=700,
    )
    assert set(found) <= EXPECTED, found
    assert min(found[status] for status in ("400", "404")) > 20, "both good and bad ones are among them"
    await emptied(site)
    assert [one for one in logged if one["log_level"] in ("error", "critical")] == []
    await still_serves(site)


async def test_heads_over_tls(
    serve: Serve,
    tmp_path: Path,
    authority: pki.CertificateAuthority,
    logged: list[structlog.typing.EventDict],
) -> None:
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(key)))
    issued = authority.issue(
        request, name="server", role=SERVER, lifetime_s=60, server=True, hosts=["127.0.0.1"]
    )
    certificate.write_bytes(issued.pem)
    context = tls.https_server(authority.certificate_pem)
    tls.load(context, certificate, key)
    site = await serve(http=QUICK, tls=context)
    client = tls.client(authority.certificate_pem, alpn=tls.HTTP1)
    found = await send_heads(
        HeadFuzzer(3, [b"127.0.0.1"]),
        lambda: asyncio.open_connection(*site.server.address, ssl=client),
        count=250,
    )
    assert set(found) <= EXPECTED, found
    await emptied(site)
    assert [one for one in logged if one["log_level"] in ("error", "critical")] == []
