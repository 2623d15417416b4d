"""Web handlers in the programs of workers: what they get of a request, and what becomes of their response."""

from __future__ import annotations

import asyncio
import json
from textwrap import dedent

import pytest

from skerry.kit.response_stream import WINDOW
from skerry.model.calls import CallFailure
from tests.support.programs import Programs
from tests.support.waiting import eventually

PYTHON = dedent(
    """
    import asyncio, sys, time
    from types import SimpleNamespace
    closed = []
    def handler(request):
        return globals()[request.path.strip("/") or "index"](request)
    def index(request):
        return {
            "method": request.method, "path": request.path, "raw": request.raw_path,
            "query": request.query.pairs(), "first": request.query.get("a"), "all": request.query.all("a"),
            "host": request.headers["HOST"], "accept": request.headers.all("accept"),
            "body": request.text, "client": request.client, "root": request.root_path,
            "caller": request.caller, "context": request.context,
        }
    def text(request): return "grün"
    def raw(request): return b"\\xff\\x00"
    def nothing(request): return None
    def listed(request): return [1, None]
    def pair(request): return 201, {"made": True}
    def triple(request): return 404, [("X-A", "1"), ("x-a", "2"), ("content-type", "text/html")], "<p>"
    def as_dict(request): return {"status": 202, "headers": {"x-b": ["3", 4]}, "body": "later"}
    def as_object(request): return SimpleNamespace(status=418, headers={}, body=b"tea")
    def echo(request): return 200, {}, request.body
    def unchanged(request): return 304, {"etag": "x"}, "dropped"
    def parts(request):
        return 200, {"content-type": "text/event-stream"}, (f"data: {n}\\n\\n" for n in range(3))
    async def later(request):
        await asyncio.sleep(0)
        return "later"
    def stream(request):
        async def each():
            for n in range(3):
                await asyncio.sleep(0)
                yield str(n)
        return each()
    def endless(request):
        try:
            while True:
                yield b"x" * 100_000
        finally:
            closed.append(True)
    def was_closed(request): return len(closed)
    def raises(request):
        print("before")
        raise ValueError("a secret")
    def raises_later(request):
        yield "begun"
        raise ValueError("too late")
    def status(request): return 700, "x"
    def truth(request): return True, "x"
    def injected(request): return 200, {"x-a": "b\\r\\nx-c: d"}, ""
    def named(request): return 200, {"x a": "b"}, ""
    def no_headers(request): return 200, 7, ""
    def four(request): return 1, 2, 3, 4
    def many(request): return 200, {f"x-{n}": "y" for n in range(300)}, ""
    def odd(request): return object()
    def odd_part(request): yield 7
    def leaves(request): sys.exit(3)
    """
)


async def test_a_handler_gets_the_whole_request(python: Programs) -> None:
    headers = (("host", "a.example"), ("accept", "b"), ("accept", "c"))
    async with python.load(PYTHON, is_web=True) as worker:
        exchange = worker.request("PUT", "/", "ä".encode(), query="a=1&b&a=%20", headers=headers)
        status, given, body = await exchange.whole()
        assert (status, given["content-type"]) == (200, "application/json")
        assert given["content-length"] == str(len(body))
        assert json.loads(body) == {
            "method": "PUT",
            "path": "/",
            "raw": "/",
            "query": [["a", "1"], ["b", ""], ["a", " "]],
            "first": "1",
            "all": ["1", " "],
            "host": "a.example",
            "accept": ["b", "c"],
            "body": "ä",
            "client": "192.0.2.1",
            "root": "/web/hello",
            "caller": "somebody",
            "context": {"name": "hello", "version": 3},
        }


@pytest.mark.parametrize(
    ("path", "status", "media", "body"),
    [
        ("/text", 200, "text/plain; charset=utf-8", "grün".encode()),
        ("/raw", 200, "application/octet-stream", b"\xff\x00"),
        ("/nothing", 204, None, b""),
        ("/listed", 200, "application/json", b"[1, null]"),
        ("/pair", 201, "application/json", b'{"made": true}'),
        ("/triple", 404, "text/html", b"<p>"),
        ("/as_dict", 202, "text/plain; charset=utf-8", b"later"),
        ("/as_object", 418, "application/octet-stream", b"tea"),
        ("/unchanged", 304, None, b""),
        ("/parts", 200, "text/event-stream", b"data: 0\n\ndata: 1\n\ndata: 2\n\n"),
        ("/later", 200, "text/plain; charset=utf-8", b"later"),
        ("/stream", 200, "application/octet-stream", b"012"),
        ("/%65cho", 200, "application/octet-stream", b"sent"),
    ],
)
async def test_what_a_handler_returns_is_a_response(
    python: Programs, path: str, status: int, media: str | None, body: bytes
) -> None:
    async with python.load(PYTHON, is_web=True) as worker:
        got, headers, content = await worker.request("POST", path, b"sent").whole()
        assert (got, headers.get("content-type"), content) == (status, media, body)
        _, headers, content = await worker.request("HEAD", path).whole()
        assert content == b""
        assert headers.get("content-type") == media


async def test_headers_may_be_repeated(python: Programs) -> None:
    async with python.load(PYTHON, is_web=True) as worker:
        head = await worker.request(path="/triple").head()
        assert [value for name, value in head.headers if name == "x-a"] == ["1", "2"]
        head = await worker.request(path="/as_dict").head()
        assert [value for name, value in head.headers if name == "x-b"] == ["3", "4"]


@pytest.mark.parametrize(
    ("path", "failure", "said"),
    [
        ("/raises", CallFailure.HANDLER, "ValueError: a secret"),
        ("/missing", CallFailure.HANDLER, "KeyError: 'missing'"),
        ("/leaves", CallFailure.HANDLER, "sys.exit(3)"),
        ("/status", CallFailure.RESULT, "700 is no status"),
        ("/truth", CallFailure.RESULT, "True is no status"),
        ("/injected", CallFailure.RESULT, "the header 'x-a'"),
        ("/named", CallFailure.RESULT, "the header 'x a'"),
        ("/no_headers", CallFailure.RESULT, "headers must be"),
        ("/four", CallFailure.RESULT, "a tuple of 4"),
        ("/many", CallFailure.RESULT, "at most 256 headers"),
        ("/odd", CallFailure.RESULT, "what JSON cannot hold"),
    ],
)
async def test_a_handler_that_fails_or_returns_nonsense_has_no_response_and_the_worker_goes_on(
    python: Programs, path: str, failure: CallFailure, said: str
) -> None:
    async with python.load(PYTHON, is_web=True) as worker:
        exchange = worker.request(path=path)
        assert await exchange.response.wait_head() is None
        result = await exchange.call
        assert result.failure is failure
        assert said in result.error
        assert said in worker.logged()
        assert (await worker.request(path="/text").whole())[0] == 200


@pytest.mark.parametrize("path", ["/raises_later", "/odd_part"])
async def test_a_handler_that_fails_in_its_response_says_so_at_its_end(python: Programs, path: str) -> None:
    async with python.load(PYTHON, is_web=True) as worker:
        exchange = worker.request(path=path)
        await exchange.head()
        assert (await exchange.call).failure is not None


async def test_a_response_is_at_most_a_window_ahead_of_its_reader(python: Programs) -> None:
    async with python.load(PYTHON, is_web=True) as worker:
        exchange = worker.request(path="/endless")
        await exchange.head()
        await eventually(lambda: exchange.response.unread > WINDOW - 100_000)
        assert exchange.response.unread <= WINDOW
        for _ in range(20):
            assert await exchange.response.read()
            assert exchange.response.unread <= WINDOW
        exchange.response.abandon()
        assert (await exchange.call).failure is None
        # It has ended in order, and so has its generator.
        assert (await worker.request(path="/was_closed").whole())[2] == b"1"


async def test_a_large_body_comes_back_as_it_was_sent(python: Programs) -> None:
    body = bytes(range(256)) * 20_000
    async with python.load(PYTHON, is_web=True) as worker:
        assert (await worker.request("POST", "/echo", body).whole())[2] == body


async def test_many_requests_at_once_and_none_mixed(python: Programs) -> None:
    async with python.load(PYTHON, is_web=True, at_once=20) as worker:
        bodies = [b"%d," % n * 40_000 for n in range(20)]
        got = await asyncio.gather(*(worker.request("POST", "/echo", each).whole() for each in bodies))
        assert [body for _, _, body in got] == bodies


async def test_a_web_function_is_called_with_parameters_too(python: Programs) -> None:
    code = "def handler(request):\n    return 201, {'x-a': 'b'}, {'got': request.json()}"
    async with python.load(code, is_web=True) as worker:
        assert await worker.result({"n": 1}) == {
            "status": 201,
            "headers": [["x-a", "b"], ["content-type", "application/json"], ["content-length", "17"]],
            "body": {"got": {"n": 1}},
        }


WSGI = dedent(
    """
    class App:
        def __call__(self, environ, start_response):
            if environ["PATH_INFO"] == "/wrong":
                return [b"no head"]
            headers = [("Content-Type", "text/plain"), ("X-Method", environ["REQUEST_METHOD"])]
            write = start_response("201 Made", headers)
            if environ["PATH_INFO"] == "/write":
                write(b"written ")
            return [environ["wsgi.input"].read(), environ["HTTP_X_A"].encode()]
    handler = App()
    """
)


async def test_a_wsgi_application_is_a_web_handler(python: Programs) -> None:
    async with python.load(WSGI, is_web=True) as worker:
        exchange = worker.request("POST", "/write", b"body ", headers=(("x-a", "1"), ("x-a", "2")))
        status, headers, body = await exchange.whole()
        assert (status, headers["x-method"], body) == (201, "POST", b"written body 1,2")
        wrong = worker.request(path="/wrong")
        assert (await wrong.call).failure is CallFailure.RESULT


ASGI = dedent(
    """
    started = []
    async def handler(scope, receive, send):
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            scope["state"]["greeting"] = "hello"
            await send({"type": "lifespan.startup.complete"})
            await receive()
        message = await receive()
        if scope["path"] == "/nothing":
            return
        headers = [(b"x-a", scope["query_string"])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        greeting = scope["state"]["greeting"].encode()
        await send({"type": "http.response.body", "body": greeting, "more_body": True})
        while scope["path"] == "/endless":
            await send({"type": "http.response.body", "body": b"x" * 70_000, "more_body": True})
        await send({"type": "http.response.body", "body": message["body"]})
    """
)


async def test_an_asgi_application_is_a_web_handler(python: Programs) -> None:
    async with python.load(ASGI, is_web=True) as worker:
        status, headers, body = await worker.request("POST", "/", b" body", query="q").whole()
        assert (status, headers["x-a"], body) == (200, "q", b"hello body")
        assert (await worker.request(path="/nothing").call).failure is CallFailure.RESULT
        endless = worker.request(path="/endless")
        for _ in range(20):
            assert await endless.response.read()
        endless.response.abandon()
        assert (await endless.call).failure is None


NODE = dedent(
    """
    const { Readable } = require('node:stream');
    let closed = 0;
    exports.handler = (request, response) => doing[request.path.slice(1) || 'index'](request, response);
    const doing = {
      index: (request) => ({
        method: request.method, query: request.query.getAll('a'), host: request.headers.host,
        accept: request.headers.accept, body: request.text, client: request.client,
        name: request.context.name,
      }),
      text: () => 'grün',
      raw: () => Buffer.from([255, 0]),
      nothing: () => ({ status: 204 }),
      triple: () => ({ status: 404, headers: { 'X-A': ['1', '2'] }, body: '<p>' }),
      json: async () => [1, null],
      fetched: () => new Response('fetched', { status: 203, headers: { 'x-b': 'c' } }),
      parts: () => ({
        headers: { 'content-type': 'text/event-stream' },
        body: (function* () { yield 'a'; yield 'b'; })(),
      }),
      stream: () => ({ status: 200, body: Readable.from(['1', '2']) }),
      echo: (request) => ({ status: 200, body: request.body }),
      written: (request, response) => {
        response.writeHead(201, { 'x-c': 'd' });
        response.write('one ');
        setTimeout(() => response.end('two'), 1);
      },
      endless: () => ({
        status: 200,
        body: (async function* () {
          try { for (;;) yield Buffer.alloc(100000); } finally { closed += 1; }
        })(),
      }),
      closed: () => closed,
      raises: () => { throw new Error('a secret'); },
      status: () => ({ status: 700, body: '' }),
      injected: () => ({ status: 200, headers: { 'x-a': 'b\\r\\nx-c: d' }, body: '' }),
    };
    """
)


async def test_a_handler_of_node_gets_requests_and_gives_responses(node: Programs) -> None:
    headers = (("host", "a.example"), ("accept", "b"), ("accept", "c"))
    large = bytes(range(256)) * 8_000
    async with node.load(NODE, is_web=True, at_once=8) as worker:
        exchange = worker.request("PUT", "/", b"sent", query="a=1&a=2", headers=headers)
        assert json.loads((await exchange.whole())[2]) == {
            "method": "PUT",
            "query": ["1", "2"],
            "host": "a.example",
            "accept": "b, c",
            "body": "sent",
            "client": "192.0.2.1",
            "name": "hello",
        }
        expected = {
            "/text": (200, "grün".encode()),
            "/raw": (200, b"\xff\x00"),
            "/nothing": (204, b""),
            "/triple": (404, b"<p>"),
            "/json": (200, b"[1,null]"),
            "/fetched": (203, b"fetched"),
            "/parts": (200, b"ab"),
            "/stream": (200, b"12"),
            "/written": (201, b"one two"),
        }
        for path, (status, body) in expected.items():
            got, _, content = await worker.request(path=path).whole()
            assert (path, got, content) == (path, status, body)
        assert (await worker.request("HEAD", "/parts").whole())[2] == b""
        assert (await worker.request("POST", "/echo", large).whole())[2] == large
        assert (await worker.result({"n": 1}))["body"]["body"] == '{"n":1}'


async def test_a_handler_of_node_that_fails_has_no_response_and_one_that_is_left_ends(node: Programs) -> None:
    async with node.load(NODE, is_web=True) as worker:
        for path, failure, said in (
            ("/raises", CallFailure.HANDLER, "Error: a secret"),
            ("/status", CallFailure.RESULT, "700 is no status"),
            ("/injected", CallFailure.RESULT, "the header 'x-a'"),
        ):
            result = await worker.request(path=path).call
            assert result.failure is failure
            assert said in result.error
        endless = worker.request(path="/endless")
        for _ in range(20):
            assert await endless.response.read()
            assert endless.response.unread <= WINDOW
        endless.response.abandon()
        assert (await endless.call).failure is None
        assert (await worker.request(path="/closed").whole())[2] == b"1"
