"""An edge node without a server: HAProxy serves what tests put into its network state."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, web
from msgspec.structs import replace
from multidict import CIMultiDictProxy

from skerry.kit.tasks import TaskSupervisor
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import (
    EndpointState,
    NetworkObject,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
)
from skerry.model.node_messages import NetworkUpdate
from skerry.model.route_settings import RouteSettings
from skerry.model.routes import RouteObject, RouteSpec, RouteTarget
from skerry.node.agent.network_state import NetworkState
from skerry.node.routes.config import EdgeFiles
from skerry.node.routes.edge import EdgeRoutes
from tests.support.waiting import eventually

DEFAULT = Namespace("default")
_NAME = web.AppKey("name", str)
_SEEN: web.AppKey[list[tuple[str, CIMultiDictProxy[str]]]] = web.AppKey("seen")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Copies:
    """HTTP servers on addresses of loopback that play the copies of services: each answers with its name and
    with what it saw of the request, and echoes WebSockets."""

    def __init__(self) -> None:
        self.port = free_port()
        self.seen: list[tuple[str, CIMultiDictProxy[str]]] = []  # paths and headers of requests
        self._runners: dict[str, web.AppRunner] = {}

    async def start(self, name: str, address: str) -> ServiceEndpoint:
        app = web.Application(client_max_size=1 << 30)
        app[_NAME] = name
        app[_SEEN] = self.seen
        app.router.add_route("*", "/{path:.*}", _answer)
        runner = self._runners[name] = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, self.port).start()
        return ServiceEndpoint(InstanceId(name), NodeId("n1"), address)

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self._runners):
            await self._runners.pop(name).cleanup()


async def _answer(request: web.Request) -> web.StreamResponse:
    request.app[_SEEN].append((request.raw_path, request.headers))
    if request.headers.get("Upgrade", "").lower() == "websocket":
        echo = web.WebSocketResponse()
        await echo.prepare(request)
        async for message in echo:
            await echo.send_str(f"{request.app[_NAME]} {message.data}")
        return echo
    size = 0
    async for part in request.content.iter_chunked(1 << 16):
        size += len(part)
    seen = {
        "copy": request.app[_NAME],
        "path": request.raw_path,
        "method": request.method,
        "size": size,
        "headers": {name.lower(): value for name, value in request.headers.items()},
    }
    return web.json_response(seen)


class Edge:
    """An edge node, and a client of it."""

    def __init__(self, folder: Path, settings: RouteSettings) -> None:
        self.settings = settings
        # HAProxy runs as a user of its own, which cannot enter the folders of tests.
        key = f"test-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        sockets = Path("/run/skerry-routes") / key if os.geteuid() == 0 else folder / "sockets"
        self.files = EdgeFiles(folder / "routes", sockets, sockets / "web.sock")
        self.state = NetworkState(folder / "network.json")
        self.routes = EdgeRoutes(self.files, settings, self.state)
        self.copies = Copies()
        self._undo = contextlib.AsyncExitStack()
        self._objects: dict[Any, NetworkObject] = {}
        self._loops: TaskSupervisor | None = None

    async def open(self) -> None:
        await self.routes.open()
        self._loops = await self._undo.enter_async_context(TaskSupervisor("edge"))
        self._loops.forever("routes", self.routes.run)
        self.client = await self._undo.enter_async_context(
            ClientSession(connector=TCPConnector(ssl=False, limit=0), auto_decompress=False)
        )

    async def close(self) -> None:
        await self.client.close()
        await self.routes.close()  # while its loop runs, as in the agent
        await self._undo.aclose()
        await self.copies.stop()

    async def crash(self) -> None:
        """As after a `kill -9` of the agent: nothing is cleaned up."""
        await self._undo.aclose()
        await self.routes._wakes.close()  # its descriptors go with the process
        await self.copies.stop()

    def put(self, *objects: NetworkObject) -> None:
        self._objects |= {each.network_key: each for each in objects}
        self.state.apply(NetworkUpdate(True, tuple(self._objects.values())))

    def remove(self, *objects: NetworkObject) -> None:
        for each in objects:
            del self._objects[each.network_key]
        self.state.apply(NetworkUpdate(True, tuple(self._objects.values())))

    def service(self, *endpoints: ServiceEndpoint, name: str = "web") -> ServiceAddress:
        return ServiceAddress(
            ServiceId(f"s-{name}"),
            name,
            DEFAULT,
            ports=(ServicePort(80, self.copies.port),),
            endpoints=endpoints,
        )

    async def get(self, host: str, path: str = "/", **options: Any) -> tuple[int, Any, dict[str, str]]:
        """The status, the body and the headers of an answer."""
        method = options.pop("method", "GET")
        headers = {"Host": host} | options.pop("headers", {})
        base = f"http://{self.settings.http}"
        if options.pop("tls", False):
            base = f"https://{self.settings.https}"
        from yarl import URL

        url = URL(f"{base}{path}", encoded=True)
        async with self.client.request(
            method, url, headers=headers, allow_redirects=False, **options
        ) as answer:
            is_json = answer.content_type == "application/json"
            body = await answer.json() if is_json else await answer.text()
            return answer.status, body, {name.lower(): value for name, value in answer.headers.items()}

    async def until(self, host: str, path: str = "/", *, status: int = 200, **options: Any) -> Any:
        """The body of the first answer with this status."""

        async def look() -> Any:
            with contextlib.suppress(OSError):
                found, body, _ = await self.get(host, path, **dict(options))
                return (body,) if found == status else None

        return (await eventually(look, what=f"{host}{path} answers {status}"))[0]


def route(id: str, place: str = "shop.test", to: str = "service/web", **fields: Any) -> RouteObject:
    host, slash, path = place.partition("/")
    wakes = fields.pop("wakes", False)
    target = RouteTarget.parse(to) if to else None
    spec = RouteSpec(host, f"/{path}" if slash else "/", target, **fields)
    return RouteObject(id, id, DEFAULT, spec, wakes)


def in_state(service: ServiceAddress, state: EndpointState, *names: str) -> ServiceAddress:
    """The service with some copies in another state."""
    return replace(
        service,
        endpoints=tuple(
            replace(one, state=state) if one.instance in names else one for one in service.endpoints
        ),
    )


def settings(**fields: Any) -> RouteSettings:
    return RouteSettings(
        http=f"127.0.0.1:{free_port()}", https=f"127.0.0.1:{free_port()}", drain_s=60, **fields
    )


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    made = Edge(tmp_path, settings())
    await made.open()
    yield made
    await made.close()


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes_with(folder: Path) -> list[int]:
    """Processes whose arguments name something in a folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


async def gather_all(calls: Iterable[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls))
