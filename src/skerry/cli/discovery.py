"""Which server a verb means, and how it is reached: by option, by environment, by the Skerry of this machine.

In this order: `--url`, `SKERRY_URL`, and the ready file that a running Skerry keeps in its data folder. That
of a server names a unix socket, which is tried before its TCP address: it needs no TLS, whatever address HTTP
listens on, and the kernel tells the server who is calling. That of a node names the server that it joined,
where a token is needed: the certificate of a node is for the node alone and never shown by a verb. Only the
standard library and click; nothing here connects.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import click

from skerry.cli import paths

_UNIX = "unix:"


class ServerUnreachable(click.ClickException):
    """Nothing answered where a server should be."""

    exit_code = 3


class ServerTarget(NamedTuple):
    """Where a server is, and what proves to it who we are."""

    url: str
    token: str | None
    ca: str | None
    found_by: str
    socket: Path | None = None  # of the same server, tried first

    @property
    def split(self) -> SplitResult | None:
        """`url` taken apart; None if there is a socket alone."""
        return None if self.url.startswith(_UNIX) else _split(self.url)


class ReadyFile(NamedTuple):
    """What a running Skerry says of itself; older ones say less."""

    pid: int
    role: str = ""
    node: str = ""
    http: str = ""
    http_socket: str = ""
    server: str = ""
    socket: str = ""
    ca: str = ""
    client_cert: str = ""
    client_key: str = ""


def find(
    url: str | None, data: str | None, token: str | None, ca: str | None, *, at_node: bool = False
) -> ServerTarget:
    """Decide which server is meant; say how to name one if none can be found.

    With `at_node` the HTTP address of a node will do, if it has one: that is enough for functions.
    """
    token = token or os.environ.get("SKERRY_TOKEN")
    if token and not (token.isascii() and token.isprintable()):
        raise click.UsageError("The token has letters that no token has; give it as it was printed.")
    ca = ca or os.environ.get("SKERRY_CA")
    if url:
        return _named(url, token, ca, "--url")
    if named := os.environ.get("SKERRY_URL"):
        return _named(named, token, ca, "SKERRY_URL")
    folder = paths.data_folder(data or os.environ.get("SKERRY_DATA"))
    ready = read_ready(folder)
    found_by = f"{folder}/ready.json"
    if ready.role == "node" and not (at_node and ready.http and not token):  # a node knows no tokens
        return _server_of_node(ready, token, ca, folder)
    if not ready.http:
        raise ServerUnreachable(f"{found_by} names no server. Name one with --url or SKERRY_URL.")
    socket = Path(ready.http_socket) if ready.http_socket else None
    return ServerTarget(_checked(ready.http), token, ca or ready.ca, found_by, socket)


def read_ready(folder: Path) -> ReadyFile:
    """What the Skerry of `folder` wrote when it was ready; a clear error if none runs there."""
    start = "Start one with 'skerry up', or name a server with --url or SKERRY_URL."
    try:
        ready = _parse_ready((folder / "ready.json").read_bytes())
    except PermissionError:
        raise ServerUnreachable(
            f"{folder} belongs to another user. Name its server with --url and show a token with --token."
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise ServerUnreachable(f"No Skerry is running with the data folder {folder}. {start}") from None
    except (OSError, ValueError) as error:
        raise ServerUnreachable(f"{folder}/ready.json cannot be read ({error}). {start}") from None
    if not Path(f"/proc/{ready.pid}").exists():
        raise ServerUnreachable(
            f"The Skerry of {folder} (process {ready.pid}) has ended without a clean stop. Start it again "
            f"with 'skerry {ready.role or 'up'}', or name a server with --url or SKERRY_URL."
        )
    return ready


def _parse_ready(data: bytes) -> ReadyFile:
    """Raises ValueError for what no Skerry writes."""
    value = json.loads(data)
    if not isinstance(value, dict) or type(value.get("pid")) is not int:
        raise ValueError("it names no process")
    known = {name: value[name] for name in ReadyFile._fields if name in value}
    for name, text in known.items():
        if name != "pid" and not isinstance(text, str):
            raise ValueError(f"its '{name}' is no text")
    return ReadyFile(**known)


def _named(url: str, token: str | None, ca: str | None, found_by: str) -> ServerTarget:
    """The server at `url`, which may be `unix:PATH`."""
    if not url.startswith(_UNIX):
        return ServerTarget(_checked(url), token, ca, found_by)
    path = url.removeprefix(_UNIX).removeprefix("//")
    if not path.startswith("/"):
        raise click.UsageError(f"'{url}' names no socket; one looks like unix:/run/skerry/http.sock")
    return ServerTarget(f"{_UNIX}{path}", token, ca, found_by, Path(path))


def _server_of_node(ready: ReadyFile, token: str | None, ca: str | None, folder: Path) -> ServerTarget:
    """The server that this machine's node joined: for whoever has a token, and without one if that server is
    on this machine too, where the kernel tells who is calling."""
    if not ready.server:
        raise ServerUnreachable(
            "This machine is a node, and this needs a server. Name one with --url or SKERRY_URL."
        )
    target = ServerTarget(_checked(ready.server), token, ca or ready.ca, f"{folder}/ready.json", None)
    if token or _is_loopback(_split(ready.server).hostname or ""):
        return target
    raise ServerUnreachable(
        f"This machine is a node. Its server is {ready.server}, which asks for a token: make one on the "
        "server's machine with 'skerry token create --role deployer' (or viewer, or admin), and give it here "
        "with --token or SKERRY_TOKEN."
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _checked(url: str) -> str:
    _split(url)
    return url


def _split(url: str) -> SplitResult:
    try:
        split = urlsplit(url if "//" in url else f"http://{url}")
        is_plain = url.isprintable() and " " not in url
        if is_plain and split.scheme in ("http", "https") and split.hostname and split.port != 0:
            return split
    except ValueError:
        pass  # said below
    raise click.UsageError(
        f"'{url}' is no server URL; one looks like http://127.0.0.1:1323 or unix:/run/skerry/http.sock"
    )
