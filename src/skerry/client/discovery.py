"""Discovery of the server: by option, by environment, by context, or by the Skerry on this machine.

In this order: `--url` or `--context`, `SKERRY_URL`, `--data`, `SKERRY_CONTEXT`, `SKERRY_DATA`, the current
context (`skerry.client.contexts`), and the ready file in the default data folder. The ready file of a server
names a unix socket, which is tried before its TCP address: it needs no TLS, and the kernel tells the server
who is calling. The ready file of a node names the server that it joined, which needs a token: the certificate
of a node is for the node alone and never used by a command. The token of a context is sent to the server of
that context alone. Nothing here connects. `os.environ` is read only here and in `skerry.cli.settings`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from skerry.client import contexts
from skerry.client.contexts import ContextFile, ServerContext
from skerry.client.errors import InvalidTarget, ServerUnreachable

_UNIX = "unix:"
_OFFLINE = "skerry-offline-"  # how tokens begin that nodes verify


class ServerTarget(NamedTuple):
    """Address of a server, and our credentials."""

    url: str
    token: str | None
    ca: str | None
    found_by: str
    socket: Path | None = None  # of the same server, tried first
    ca_text: str = ""  # PEM, instead of the file `ca`

    @property
    def split(self) -> SplitResult | None:
        """The parts of `url`; None if there is only a socket."""
        return None if self.url.startswith(_UNIX) else _split(self.url)


class ReadyFile(NamedTuple):
    """The ready file of a running Skerry; older versions write fewer fields."""

    pid: int
    role: str = ""
    node: str = ""
    http: str = ""
    http_socket: str = ""
    server: str = ""
    grpc: str = ""
    socket: str = ""
    ca: str = ""
    client_cert: str = ""
    client_key: str = ""


class TargetOptions(NamedTuple):
    """What a command line says about the server."""

    url: str | None = None
    data: str | None = None
    token: str | None = None
    ca: str | None = None
    context: str | None = None


def find(options: TargetOptions, *, at_node: bool = False) -> ServerTarget:
    """Find the server; `ServerUnreachable` says how to name one if there is none.

    With `at_node` the HTTP address of a node is accepted, if it has one: it serves functions.
    """
    token = options.token or os.environ.get("SKERRY_TOKEN")
    if token and not (token.isascii() and token.isprintable()):
        raise InvalidTarget("The token has invalid characters; give it as it was printed.")
    ca = options.ca or os.environ.get("SKERRY_CA")
    if options.url and options.context:
        raise InvalidTarget("--url and --context both name a server; give one of them.")
    if options.url:
        return _named(options.url, token, ca, "--url")
    if not options.context and (named := os.environ.get("SKERRY_URL")):
        return _named(named, token, ca, "SKERRY_URL")
    chosen = _chosen_context(options)
    if chosen is not None:
        # What the command line names, with its credentials, is before the environment.
        own, environment = (options.token, options.ca), (token, ca)
        token, ca = own if options.context else environment
        return _of_context(chosen, token, ca)
    return _on_this_machine(options.data, token, ca, at_node=at_node)


def _chosen_context(options: TargetOptions) -> ServerContext | None:
    """The context to use; None: the Skerry of this machine."""
    if options.context:
        return read_contexts().find(options.context, "--context")
    if options.data:
        return None
    if named := os.environ.get("SKERRY_CONTEXT"):
        return read_contexts().find(named, "SKERRY_CONTEXT")
    if os.environ.get("SKERRY_DATA"):
        return None
    file = read_contexts()
    return file.find(file.current, str(contexts_file()))


def _of_context(context: ServerContext, token: str | None, ca: str | None) -> ServerTarget:
    target = _named(context.url, token or context.token or None, ca, f"the context '{context.name}'")
    return target if ca else target._replace(ca_text=context.ca)


def read_contexts() -> ContextFile:
    """The contexts of this user."""
    return contexts.read(contexts_file())


def contexts_file() -> Path:
    """Where the contexts of this user are; `InvalidTarget` for a user without a home folder."""
    folder = config_folder()
    if folder is None:
        raise InvalidTarget("You have no home folder for contexts; set XDG_CONFIG_HOME.")
    return folder / "skerry" / contexts.FILE


def config_folder() -> Path | None:
    """Where files of settings of this user are; None for a user without a home folder."""
    if base := os.environ.get("XDG_CONFIG_HOME"):
        return Path(base)
    try:
        return Path.home() / ".config"
    except RuntimeError:
        return None


def _on_this_machine(data: str | None, token: str | None, ca: str | None, *, at_node: bool) -> ServerTarget:
    folder = data_folder(data or os.environ.get("SKERRY_DATA"))
    ready = read_ready(folder)
    found_by = f"{folder}/ready.json"
    # A node knows no tokens but offline ones.
    is_for_node = at_node and ready.http and (not token or token.startswith(_OFFLINE))
    if ready.role == "node" and not is_for_node:
        return _server_of_node(ready, token, ca, folder)
    if not ready.http:
        raise ServerUnreachable(f"{found_by} names no server. Give one with --url or SKERRY_URL.")
    socket = Path(ready.http_socket) if ready.http_socket else None
    return ServerTarget(_checked(ready.http), token, ca or ready.ca, found_by, socket)


def read_ready(folder: Path) -> ReadyFile:
    """The ready file of the Skerry that runs with the data folder `folder`."""
    start = "Start it with 'skerry up', or give a server with --url, SKERRY_URL or a context."
    try:
        ready = _parse_ready((folder / "ready.json").read_bytes())
    except PermissionError:
        raise ServerUnreachable(
            f"{folder} belongs to another user. Give its server with --url and a token with --token."
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise ServerUnreachable(f"No Skerry is running with the data folder {folder}. {start}") from None
    except (OSError, ValueError) as error:
        raise ServerUnreachable(f"{folder}/ready.json cannot be read ({error}). {start}") from None
    if not Path(f"/proc/{ready.pid}").exists():
        raise ServerUnreachable(
            f"The Skerry of {folder} (pid {ready.pid}) has crashed or was killed. Start it again with "
            f"'skerry {ready.role or 'up'}', or give a server with --url or SKERRY_URL."
        )
    return ready


def _parse_ready(data: bytes) -> ReadyFile:
    """Raises ValueError for an invalid file."""
    value = json.loads(data)
    if not isinstance(value, dict) or type(value.get("pid")) is not int:
        raise ValueError("it has no pid")
    known = {name: value[name] for name in ReadyFile._fields if name in value}
    for name, text in known.items():
        if name != "pid" and not isinstance(text, str):
            raise ValueError(f"its '{name}' is not a string")
    return ReadyFile(**known)


def _named(url: str, token: str | None, ca: str | None, found_by: str) -> ServerTarget:
    """The server at `url`, which may be `unix:PATH`."""
    if not url.startswith(_UNIX):
        return ServerTarget(_checked(url), token, ca, found_by)
    path = url.removeprefix(_UNIX).removeprefix("//")
    if not path.startswith("/"):
        raise InvalidTarget(f"'{url}' is not a socket; write it like unix:/run/skerry/http.sock")
    return ServerTarget(f"{_UNIX}{path}", token, ca, found_by, Path(path))


def _server_of_node(ready: ReadyFile, token: str | None, ca: str | None, folder: Path) -> ServerTarget:
    """The server that the node of this machine joined. A token is needed, unless that server is on this
    machine too, where the kernel tells it who is calling."""
    if not ready.server:
        raise ServerUnreachable(
            "This machine is a node, and this command needs a server. Give one with --url or SKERRY_URL."
        )
    target = ServerTarget(_checked(ready.server), token, ca or ready.ca, f"{folder}/ready.json", None)
    if token or _is_loopback(_split(ready.server).hostname or ""):
        return target
    raise ServerUnreachable(
        f"This machine is a node. Its server {ready.server} requires a token: create one on the machine of "
        "the server with 'skerry token create --role deployer' (or viewer, or admin), and give it here with "
        "--token or SKERRY_TOKEN."
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def check_url(url: str) -> None:
    """Raises `InvalidTarget`."""
    _named(url, None, None, "--url")


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
        pass  # reported below
    raise InvalidTarget(
        f"'{url}' is not a server URL; write it like http://127.0.0.1:1323 or unix:/run/skerry/http.sock"
    )


def data_folder(named: str | None) -> Path:
    """The data folder: the given one, else that of the system for root and of the user for others."""
    if named:
        return absolute(named)
    if os.geteuid() == 0:
        return Path("/var/lib/skerry")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else absolute("~/.local/share")) / "skerry"


def absolute(named: str) -> Path:
    """An absolute path, relative to the current folder."""
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError:
        raise InvalidTarget(f"'{named}': there is no such home folder. Give an absolute path.") from None
    except OSError:
        raise InvalidTarget(f"'{named}': the current folder was deleted. Give an absolute path.") from None
