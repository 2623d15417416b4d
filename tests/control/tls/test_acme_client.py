"""The connection to an ACME server that answers what it should not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.control.tls.acme_api import AcmeFailure
from skerry.control.tls.acme_client import AcmeClient, _seconds
from skerry.kit import pki, tls
from skerry.kit.clock import SystemClock
from skerry.model.tls_settings import TlsSettings
from tests.support.certificates import TestAuthority

JSON = "Content-Type: application/json\r\n"


class PlayedHttps:
    """A server that answers each path with what the test sets."""

    def __init__(self) -> None:
        self.port = 0
        self.answers: dict[str, tuple[str, str, bytes]] = {}  # status, more headers, body
        self.requests: list[str] = []

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.port}{path}"

    def answer(self, path: str, body: object, status: str = "200 OK", headers: str = JSON) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[path] = status, headers, data

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            self.requests.append(path)
            status, headers, body = self.answers.get(path, ("404 Not Found", "", b""))
            writer.write(
                f"HTTP/1.1 {status}\r\n{headers}Replay-Nonce: AAAA\r\nConnection: close\r\n\r\n".encode()
            )
            writer.write(body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server(acme_authority: TestAuthority) -> AsyncIterator[PlayedHttps]:
    made = PlayedHttps()
    context = acme_authority.server_context(required=False)
    context.set_alpn_protocols(list(tls.HTTP1))
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context) as listening:
        made.port = listening.sockets[0].getsockname()[1]
        made.answer("/dir", {name: made.url(f"/{name}") for name in ("newNonce", "newAccount", "newOrder")})
        made.answer("/newNonce", b"")
        yield made


@asynccontextmanager
async def connected(server: PlayedHttps, authority: TestAuthority) -> AsyncIterator[AcmeClient]:
    settings = TlsSettings(acme_directory=server.url("/dir"), acme_ca_file=str(authority.ca))
    client = AcmeClient(settings, SystemClock(), pki.new_key(), server.url("/account/1"))
    yield client
    client.close()


async def failure(server: PlayedHttps, authority: TestAuthority) -> AcmeFailure:
    async with connected(server, authority) as client:
        with pytest.raises(AcmeFailure) as failed:
            await client.place("shop.example.org")
    return failed.value


PROBLEM = "Content-Type: application/problem+json\r\n"
LIMITED = {"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many\x1b[31m orders"}


async def test_too_many_orders_come_with_the_time_to_wait(
    server: PlayedHttps, acme_authority: TestAuthority
) -> None:
    server.answer("/newOrder", LIMITED, "429 Too Many Requests", PROBLEM + "Retry-After: 1234\r\n")
    failed = await failure(server, acme_authority)
    assert failed.is_rate_limit
    assert failed.is_temporary
    assert failed.retry_after_s == 1234
    assert failed.message == "the ACME server refuses: too many [31m orders"
    server.answer("/newOrder", b"<html>", "429 Too Many Requests", "Retry-After: 60\r\n")
    failed = await failure(server, acme_authority)
    assert (failed.is_rate_limit, failed.retry_after_s) == (True, 60)


async def test_a_refusal_ends_the_order_and_a_fault_of_the_server_does_not(
    server: PlayedHttps, acme_authority: TestAuthority
) -> None:
    refused = {"type": "urn:ietf:params:acme:error:rejectedIdentifier", "detail": "policy"}
    server.answer("/newOrder", refused, "400 Bad Request", PROBLEM)
    assert not (await failure(server, acme_authority)).is_temporary
    unknown = {"type": "urn:ietf:params:acme:error:accountDoesNotExist"}
    server.answer("/newOrder", unknown, "400 Bad Request", PROBLEM)
    assert (await failure(server, acme_authority)).is_unknown_account
    server.answer("/newOrder", b"oops", "503 Service Unavailable", "Retry-After: 5\r\n")
    failed = await failure(server, acme_authority)
    assert (failed.is_temporary, failed.retry_after_s) == (True, 5)


async def test_nonces_that_are_always_refused_are_not_tried_for_ever(
    server: PlayedHttps, acme_authority: TestAuthority
) -> None:
    bad = {"type": "urn:ietf:params:acme:error:badNonce", "detail": "again"}
    server.answer("/newOrder", bad, "400 Bad Request", PROBLEM)
    assert (await failure(server, acme_authority)).is_temporary
    assert server.requests.count("/newOrder") == 10


async def test_redirects_other_schemes_long_answers_and_garbage_are_refused(
    server: PlayedHttps, acme_authority: TestAuthority
) -> None:
    server.answer("/newOrder", b"", "302 Found", f"Location: {server.url('/stolen')}\r\n")
    assert "redirect" in (await failure(server, acme_authority)).message
    assert "/stolen" not in server.requests
    server.answer("/newOrder", b"[" * (2 << 20))
    assert "more than 1048576 bytes" in (await failure(server, acme_authority)).message
    for body in ({}, [], {"status": "pending"}, b"\xff\xfe", {"authorizations": 5}, {"status": 5}):
        server.answer("/newOrder", body, headers=JSON + "Location: https://x/1\r\n")
        assert "not that of RFC 8555" in (await failure(server, acme_authority)).message, body
    server.answer("/dir", {"newNonce": f"http://127.0.0.1:{server.port}/newNonce", "newOrder": "x"})
    assert "not https://" in (await failure(server, acme_authority)).message


def test_the_time_to_wait_is_seconds_or_a_date() -> None:
    assert _seconds("120", 0.0) == 120
    assert _seconds("Thu, 01 Jan 1970 00:10:00 GMT", 60.0) == 540
    assert _seconds("Thu, 01 Jan 1970 00:10:00 GMT", 6000.0) == 0
    for text in ("", "-1", "soon", "1e9", "٣", "9" * 100):
        assert _seconds(text, 0.0) in (0.0, 999999999.0)
