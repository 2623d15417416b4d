"""A registry of images that can only be read: the tags of one folder in the OCI layout, under any name.

It runs on a machine of the demo, for sites and for the neighbour cloud, which pulls images of its guests from
registries alone:

    python -m skerry.demo.registry FOLDER ADDRESS PORT
"""

from __future__ import annotations

import http.server
import json
import re
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

_PATH: Final = re.compile(r"/v2/(?P<name>[a-z0-9/._-]+)/(?P<kind>manifests|blobs)/(?P<reference>[\w.:-]+)")
_DIGEST: Final = re.compile(r"sha256:(?P<hex>[0-9a-f]{64})")
_TAG: Final = "org.opencontainers.image.ref.name"


class ImageFolder:
    """A folder in the OCI layout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resolve(self, kind: str, reference: str) -> tuple[Path, str] | None:
        """The file of a manifest or blob and its media type; None if there is none."""
        manifests = json.loads((self._folder / "index.json").read_bytes())["manifests"]
        for each in manifests if kind == "manifests" else ():
            if reference in (each["digest"], each.get("annotations", {}).get(_TAG)):
                return self._blob(each["digest"]), each["mediaType"]
        if kind == "blobs" and _DIGEST.fullmatch(reference) and (path := self._blob(reference)).is_file():
            return path, "application/octet-stream"
        return None

    def _blob(self, digest: str) -> Path:
        return self._folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


class RegistryHandler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD as the distribution specification has them; a download begins where it was
    interrupted."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    images: ImageFolder

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        if self.path.rstrip("/") == "/v2":
            self._send(HTTPStatus.OK, b"{}", {"Content-Type": "application/json"}, has_body=has_body)
            return
        match = _PATH.fullmatch(self.path)
        found = match and self.images.resolve(match["kind"], match["reference"])
        if not found:
            problem = {"errors": [{"code": "NAME_UNKNOWN", "message": "there is no such image"}]}
            body = json.dumps(problem).encode()
            self._send(HTTPStatus.NOT_FOUND, body, {"Content-Type": "application/json"}, has_body=has_body)
            return
        path, kind = found
        data = path.read_bytes()
        headers = {"Content-Type": kind, "Docker-Content-Digest": f"sha256:{path.name}"}
        start = _start_of(self.headers.get("Range", ""))
        if 0 < start < len(data):
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(HTTPStatus.PARTIAL_CONTENT, data[start:], headers, has_body=has_body)
        else:
            self._send(HTTPStatus.OK, data, headers, has_body=has_body)

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str], *, has_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Nobody reads a log of pulls."""


def _start_of(text: str) -> int:
    """The first byte of a Range header such as `bytes=100-`; 0 for all others."""
    match = re.fullmatch(r"bytes=(\d+)-", text)
    return int(match[1]) if match else 0


def serve(folder: Path, address: str, port: int) -> None:
    handler = type("FolderHandler", (RegistryHandler,), {"images": ImageFolder(folder)})
    server = http.server.ThreadingHTTPServer((address, port), handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
