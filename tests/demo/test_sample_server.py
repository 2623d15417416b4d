"""The program of the sample image, asked over HTTP."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from skerry.demo.sample_server import SampleHandler, SampleServer, open_server


@contextmanager
def serving(server: SampleServer) -> Iterator[int]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    with serving(SampleServer(("127.0.0.1", 0), SampleHandler)) as number:
        yield number


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_the_page_has_the_version_and_the_name_of_the_machine(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERSION", "7")
    status, page = get(port, "/?from=here")
    assert status == 200
    assert "Version 7" in page
    assert socket.gethostname() in page
    assert get(port, "/whoami") == (200, f"{socket.gethostname()} 7\n")


def test_it_is_healthy_unless_it_is_broken(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(port, "/health") == (200, "ok\n")
    monkeypatch.setenv("BROKEN", "1")
    assert get(port, "/health") == (500, "broken\n")


def test_other_paths_are_not_found(port: int) -> None:
    assert get(port, "/secret") == (404, "there is no /secret\n")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_serves_both_protocols_at_one_port() -> None:
    with serving(open_server(0)) as port:
        assert [get(port, "/health", host) for host in ("127.0.0.1", "::1")] == [(200, "ok\n")] * 2
