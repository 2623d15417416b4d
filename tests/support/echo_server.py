"""A program for containers that answers by libraries of others: gRPC with grpclib, HTTP and WebSockets with
aiohttp. `tests.support.python_images` packs it.

    :9000  /echo.Echo/Say (one answer), /Count (a stream), /Talk (both ways), /Fail (an error in trailers)
    :80    GET /, POST /sink (counts a body), GET /bytes/N (streams zero bytes), GET /socket (WebSocket)
"""

from __future__ import annotations

import asyncio
import hashlib
import os

from aiohttp import web
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

_CHUNK = 1 << 16


class Texts(CodecBase):
    """Messages are texts."""

    __content_subtype__ = "proto"

    def encode(self, message: str, message_type: type[str]) -> bytes:
        return message.encode()

    def decode(self, data: bytes, message_type: type[str]) -> str:
        return data.decode()


class Echo:
    async def say(self, stream: Stream[str, str]) -> None:
        assert stream.metadata is not None
        text = await stream.recv_message()
        await stream.send_initial_metadata(metadata={"x-seen-for": str(stream.metadata["x-forwarded-for"])})
        await stream.send_message(f"{os.environ.get('VERSION', '')} {text}")
        await stream.send_trailing_metadata(metadata={"x-end": "trailer"})

    async def count(self, stream: Stream[str, str]) -> None:
        text = await stream.recv_message()
        for number in range(int(text or "0")):
            await stream.send_message(str(number))

    async def talk(self, stream: Stream[str, str]) -> None:
        async for text in stream:
            await stream.send_message(text.upper())

    async def fail(self, stream: Stream[str, str]) -> None:
        await stream.recv_message()
        raise GRPCError(Status.ABORTED, "as asked")

    def __mapping__(self) -> dict[str, Handler]:
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            "/echo.Echo/Say": Handler(self.say, one, str, str),
            "/echo.Echo/Count": Handler(self.count, many, str, str),
            "/echo.Echo/Talk": Handler(self.talk, Cardinality.STREAM_STREAM, str, str),
            "/echo.Echo/Fail": Handler(self.fail, one, str, str),
        }


async def _root(request: web.Request) -> web.StreamResponse:
    return web.Response(text=os.environ.get("VERSION", ""))


async def _sink(request: web.Request) -> web.StreamResponse:
    size, digest = 0, hashlib.sha256()
    async for part in request.content.iter_chunked(_CHUNK):
        size += len(part)
        digest.update(part)
    return web.json_response({"size": size, "sha256": digest.hexdigest()})


async def _bytes(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(int(request.match_info["count"]) // _CHUNK):
        await answer.write(bytes(_CHUNK))
    await answer.write_eof()
    return answer


async def _socket(request: web.Request) -> web.StreamResponse:
    echo = web.WebSocketResponse()
    await echo.prepare(request)
    async for message in echo:
        await echo.send_str(f"echo {message.data}")
    return echo


async def main() -> None:
    app = web.Application()
    app.router.add_get("/", _root)
    app.router.add_post("/sink", _sink)
    app.router.add_get("/bytes/{count}", _bytes)
    app.router.add_get("/socket", _socket)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 80).start()
    grpc = Server([Echo()], codec=Texts())
    await grpc.start("0.0.0.0", 9000)
    await grpc.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
