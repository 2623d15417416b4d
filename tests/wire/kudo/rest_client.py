"""A client of the REST routes, with the real server and the real control plane behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from skerry.model.statuses import InstanceStatus
from tests.transport.http.conftest import Site

WEB = {"name": "web", "uri": "example.org/web:1", "resources": {"cpu": 500, "memory": 64}}


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    body: Any
    headers: Any

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, code and text of an error."""
        return self.status, self.body["code"], self.body["error"]


@dataclass
class Rest:
    """One caller: the user who runs the server, unless headers say otherwise."""

    site: Site
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, json: Any = None, **options: Any) -> Answer:
        if json is not None:
            options["json"] = json
        async with self.session.request(method, path, allow_redirects=False, **options) as reply:
            is_json = reply.content_type.endswith("json")
            return Answer(
                reply.status,
                await reply.json(content_type=None) if is_json else await reply.read(),
                reply.headers,
            )

    async def get(self, path: str, **options: Any) -> Any:
        answer = await self.ask("GET", path, **options)
        assert answer.status == 200, answer
        return answer.body

    async def make(self, path: str, json: Any = None, **options: Any) -> Any:
        answer = await self.ask("PUT", path, json, **options)
        assert answer.status == 201, answer
        return answer.body

    async def running(self, json: Any = None) -> str:
        """The id of an instance that runs on node `n1`."""
        if not self.site.control.nodes.list():
            await self.site.control.join("n1")
        made = await self.make("/instance/", json or WEB)
        await self.site.control.bind(made["id"], "n1")
        await self.site.control.report(
            made["id"], InstanceStatus.STARTING, InstanceStatus.RUNNING, ip="10.64.0.2"
        )
        return str(made["id"])

    async def stored(self) -> int:
        """Changes with everything that is written."""
        return await self.site.plane.store.revision()
