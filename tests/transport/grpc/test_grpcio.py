"""The same server, seen by grpcio: another implementation of HTTP/2, TLS and gRPC."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.support.certificates import SERVER_NAME

WELL = {
    "health": "SERVING",
    "request_id": "io-1",
    "concurrent": 100,
    "services": [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "skerry.identity.v1.IdentityService",
    ],
    "error": "UNIMPLEMENTED",  # the last call is one to a service that is not there
}


async def grpcio(**wanted: str) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.transport.grpc.grpcio_client",
        json.dumps(wanted),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(out)


@pytest.fixture
def shown(authority) -> dict[str, str]:
    pair = authority.issue("operator", "viewer")
    return {"ca": str(authority.ca), "certificate": str(pair.certificate), "key": str(pair.key)}


async def test_over_tcp_with_mutual_tls(serve, shown):
    served = await serve(plaintext=False)
    assert await grpcio(target=f"localhost:{served.port}", **shown) == WELL


async def test_over_plaintext_on_loopback(serve):
    served = await serve()
    assert await grpcio(target=served.target) == WELL


async def test_over_the_unix_socket_with_mutual_tls(serve, shown):
    served = await serve(unix=True)
    assert await grpcio(target=f"unix:{served.path}", server_name=SERVER_NAME, **shown) == WELL


async def test_a_stranger_is_unavailable(serve, authority, stranger):
    served = await serve(plaintext=False)
    pair = stranger.issue("foreigner", "admin")
    told = await grpcio(
        target=f"localhost:{served.port}",
        ca=str(authority.ca),
        certificate=str(pair.certificate),
        key=str(pair.key),
    )
    assert told == {"error": "UNAVAILABLE"}
