"""The registry of the demo: tags and digests of one folder, and nothing outside of it."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skerry.demo.registry import ImageFolder, RegistryHandler

MANIFEST = b'{"schemaVersion": 2}'
KIND = "application/vnd.oci.image.manifest.v1+json"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (MANIFEST, b"0123456789"):
        (blobs / digest(data).removeprefix("sha256:")).write_bytes(data)
    entry = {
        "digest": digest(MANIFEST),
        "mediaType": KIND,
        "annotations": {"org.opencontainers.image.ref.name": "1"},
    }
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [entry]}))
    handler = type("Handler", (RegistryHandler,), {"images": ImageFolder(tmp_path)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers={"Connection": "close", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Type", "")


def test_a_manifest_is_found_by_tag_and_by_digest_under_any_name(port: int) -> None:
    assert ask(port, "/v2/") == (200, b"{}", "application/json")
    assert ask(port, "/v2/shop/manifests/1") == (200, MANIFEST, KIND)
    assert ask(port, f"/v2/team/shop/manifests/{digest(MANIFEST)}") == (200, MANIFEST, KIND)
    assert ask(port, "/v2/shop/manifests/1", "HEAD") == (200, b"", KIND)


def test_a_download_continues_where_it_was_interrupted(port: int) -> None:
    path = f"/v2/shop/blobs/{digest(b'0123456789')}"
    assert ask(port, path)[:2] == (200, b"0123456789")
    assert ask(port, path, Range="bytes=4-")[:2] == (206, b"456789")
    assert ask(port, path, Range="bytes=10-")[:2] == (200, b"0123456789")


@pytest.mark.parametrize(
    "path",
    [
        "/v2/shop/manifests/2",
        f"/v2/shop/blobs/sha256:{'0' * 64}",
        "/v2/shop/blobs/sha256:..%2f..%2findex.json",
        "/v2/shop/blobs/../../index.json",
        "/index.json",
    ],
)
def test_nothing_else_is_served(port: int, path: str) -> None:
    assert ask(port, path)[0] == 404
