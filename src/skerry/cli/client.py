"""How a verb reaches the server: find it, call it, and say what went wrong in plain words.

Only the standard library: a verb must start quickly and must not load server code. The server is found by
`--url`, then `SKERRY_URL`, then the ready file that a running Skerry keeps in its data folder.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import click

from skerry.cli import places
from skerry.cli.options import gathered

_MAX_REPLY = 64 * 1024 * 1024
_PIECE = 64 * 1024
_TIMEOUT_S = 60.0
_MAX_LINE = 200  # longer texts are pages of somebody in between


class NoServer(click.ClickException):
    """Nothing answered where a server should be."""

    exit_code = 3


class ServerSaidNo(click.ClickException):
    """The server answered with an error; its own sentence is the message."""

    exit_code = 1

    def __init__(self, status: int, message: str, code: str, reply: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.reply = reply  # what else it said, as it said it


class Failures:
    """Of several things that are each tried: what goes wrong is told, and the exit code is 1 then."""

    def __enter__(self) -> Failures:
        self._is_any = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_any:
            raise SystemExit(1)

    @contextmanager
    def told(self) -> Iterator[None]:
        """For one of them."""
        try:
            yield
        except NoServer:
            raise  # which nothing else would reach either
        except click.ClickException as error:
            error.show()
            self._is_any = True


class Target(NamedTuple):
    """Where a server is, and what proves to it who we are."""

    url: str
    token: str | None
    ca: str | None
    found_by: str


class WebSocketCall(NamedTuple):
    """Where to, with which headers, and over which TLS."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None


def find(url: str | None, data: str | None, token: str | None, ca: str | None) -> Target:
    """Decide which server is meant; say how to name one if none can be found."""
    token = token or os.environ.get("SKERRY_TOKEN")
    ca = ca or os.environ.get("SKERRY_CA")
    if url:
        return Target(url, token, ca, "--url")
    if named := os.environ.get("SKERRY_URL"):
        return Target(named, token, ca, "SKERRY_URL")
    folder = places.data_folder(data or os.environ.get("SKERRY_DATA"))
    ready = read_ready(folder)
    return Target(ready["http"], token, ca or ready["ca"], f"{folder}/ready.json")


def read_ready(folder: Path) -> dict[str, Any]:
    """What the Skerry of `folder` wrote when it was ready; a clear error if none runs there."""
    start = "Start one with 'skerry up', or name a server with --url or SKERRY_URL."
    try:
        ready = json.loads((folder / "ready.json").read_text())
        pid = int(ready["pid"])
    except PermissionError:
        raise NoServer(
            f"{folder} belongs to another user. Name its server with --url and show a token with --token."
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise NoServer(f"No Skerry is running with the data folder {folder}. {start}") from None
    except (ValueError, KeyError, TypeError):
        raise NoServer(f"{folder}/ready.json cannot be read. {start}") from None
    if not Path(f"/proc/{pid}").exists():
        raise NoServer(f"The Skerry of {folder} (process {pid}) has ended without a clean stop. {start}")
    return cast(dict[str, Any], ready)


class Server:
    """One server, called over HTTP."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._split = _parsed(target.url)

    def get(self, *path: str, **query: str | None) -> Any:
        return self._call("GET", path, query)

    def post(self, *path: str, body: Any = None, timeout: float | None = _TIMEOUT_S) -> Any:
        """`body` is sent as JSON, or as it is if it is bytes."""
        return self._call("POST", path, {}, body, timeout)

    def put(self, *path: str, body: Any = None, **query: str | None) -> Any:
        return self._call("PUT", path, query, body)

    def patch(self, *path: str, body: Any, **query: str | None) -> Any:
        return self._call("PATCH", path, query, body)

    def delete(self, *path: str, **query: str | None) -> Any:
        return self._call("DELETE", path, query)

    def stream(self, *path: str, headers: dict[str, str] | None = None, **query: str | None) -> Iterator[str]:
        """The lines of an endless answer, as they come."""
        with self._open("GET", path, query, headers) as response:
            for line in response:
                yield line.decode("utf-8", "replace").rstrip("\r\n")

    def steps(self, *path: str, body: Any) -> Iterator[Any]:
        """What a POST is answered step by step, each a line of JSON; told if it breaks off."""
        with self._open("POST", path, {}, body=body) as response:
            try:
                for line in response:
                    yield _json(line)
            except (OSError, http.client.HTTPException):
                raise _broken_off() from None

    def output(self, *path: str, **query: str | None) -> Iterator[bytes]:
        """An answer that may be endless, byte for byte as it comes; told if it breaks off."""
        with self._open("GET", path, query, {"Accept": "*/*"}) as response:
            try:
                while data := response.read1(_PIECE):
                    yield data
            except (OSError, http.client.HTTPException):
                raise _broken_off() from None

    def websocket(self, *path: str, **query: Any) -> WebSocketCall:
        """What a WebSocket client needs to call `path`; lists in `query` are repeated."""
        scheme = "ws" if self._split.scheme == "http" else "wss"
        return WebSocketCall(
            f"{scheme}://{self._split.netloc}{self._target(path, query)}",
            self._headers({}),
            None if scheme == "ws" else self._tls(),
        )

    def ask(self, *path: str) -> tuple[int, Any]:
        """Status and JSON of a GET, also when the status is an error: for health."""
        connection, response = self._send("GET", path, {}, None)
        try:
            return response.status, _json(response.read(_MAX_REPLY))
        finally:
            connection.close()

    @contextmanager
    def _open(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        headers: dict[str, str] | None = None,
        body: Any = None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection, response = self._send(verb, path, query, body, timeout=None, headers=headers)
        try:
            self._raise_for(response)
            yield response
        finally:
            connection.close()

    def _call(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        body: Any = None,
        timeout: float | None = _TIMEOUT_S,
    ) -> Any:
        connection, response = self._send(verb, path, query, body, timeout)
        try:
            self._raise_for(response)
            return _json(response.read(_MAX_REPLY))
        finally:
            connection.close()

    def _send(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        body: Any,
        timeout: float | None = _TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        target = self._target(path, query)
        sent = self._headers({"Accept": "application/json", **(headers or {})})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        connection = self._connect(timeout)
        try:
            connection.request(verb, target, body=data, headers=sent)
            return connection, connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise self.not_trusted(error) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self.not_reached(error) from None

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        assert self._split.hostname is not None
        if self._split.scheme == "http":
            return http.client.HTTPConnection(self._split.hostname, self._split.port or 80, timeout=timeout)
        return http.client.HTTPSConnection(
            self._split.hostname, self._split.port or 443, timeout=timeout, context=self._tls()
        )

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.target.ca)
        except OSError as error:
            raise click.UsageError(f"The CA file {self.target.ca} cannot be read: {error}") from None

    def _target(self, path: tuple[str, ...], query: dict[str, Any]) -> str:
        where = "/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"?{urlencode(given, doseq=True)}" if given else ""
        return f"{self._split.path.rstrip('/')}{where}{asked}"

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        if self.target.token:
            return {**more, "Authorization": f"Bearer {self.target.token}"}
        return more

    def _raise_for(self, response: http.client.HTTPResponse) -> None:
        if response.status >= 400:
            raise refusal(response.status, response.reason, response.read(_MAX_REPLY))

    def not_reached(self, error: Exception) -> NoServer:
        """What to say if nobody answers."""
        return NoServer(
            f"Nothing answers at {self.target.url} (found by {self.target.found_by}): "
            f"{error or type(error).__name__}. Is Skerry running there?"
        )

    def not_trusted(self, error: ssl.SSLCertVerificationError) -> NoServer:
        """What to say of a server whose certificate is none."""
        return NoServer(
            f"{self.target.url} shows a certificate that cannot be verified ({error.verify_message}). "
            "Give the server's CA with --ca."
        )


def _server(url: str | None, data: str | None, token: str | None, ca: str | None) -> Server:
    return Server(find(url, data, token, ca))


def _server_without_ca(url: str | None, data: str | None, token: str | None) -> Server:
    return Server(find(url, data, token, None))


_URL = click.option("--url", metavar="URL", help="The server, e.g. http://127.0.0.1:1323. [env: SKERRY_URL]")
_DATA = click.option(
    "--data", metavar="DIR", help="Data folder of a Skerry on this machine. [env: SKERRY_DATA]"
)
_TOKEN = click.option(
    "--token", metavar="TEXT", help="Access token; your own Skerry needs none. [env: SKERRY_TOKEN]"
)
_CA = click.option("--ca", metavar="FILE", help="CA certificate of an https server. [env: SKERRY_CA]")

# Of every verb that talks to a server; they arrive together as `server`.
options = gathered("server", _server, _URL, _DATA, _TOKEN, _CA)
# Of one with a `--ca` of its own; that of the server can still be in the environment.
options_without_ca = gathered("server", _server_without_ca, _URL, _DATA, _TOKEN)


def _broken_off() -> NoServer:
    return NoServer("The answer of the server broke off, so this is not all. Is it still running? Try again.")


def refusal(status: int, reason: str, body: bytes) -> ServerSaidNo:
    """What an answer with an error says, in the server's own words if it has some."""
    reply = _json(body)
    said = reply if isinstance(reply, dict) else {}
    # Its own routes say `error`, Serverledge's `message`, or a line of plain text.
    line = reply.strip() if isinstance(reply, str) and len(reply) <= _MAX_LINE else ""
    message = str(
        said.get("error") or said.get("message") or line or f"the server answered {status} {reason}"
    )
    return ServerSaidNo(status, message, str(said.get("code", "")), reply)


def _parsed(url: str) -> SplitResult:
    try:
        split = urlsplit(url if "//" in url else f"http://{url}")
        if split.scheme in ("http", "https") and split.hostname and split.port != 0:
            return split
    except ValueError:
        pass  # said below
    raise click.UsageError(f"'{url}' is no server URL; one looks like http://127.0.0.1:1323")


def _json(data: bytes) -> Any:
    if not data:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "replace")
