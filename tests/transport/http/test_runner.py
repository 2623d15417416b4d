"""The endpoint runner: what a dialect may say of an endpoint, and what it need not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.settings import HttpSettings
from skerry.transport.access import rules
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.http.asgi import Message, Scope
from skerry.transport.http.endpoints import EncodedJson, Endpoint, RequestContext, Response, endpoint
from skerry.transport.http.runner import OWN, Dialect, EndpointRunner, build_route


class LocalConnection:
    """A connection of a process of this machine."""

    def peer(self) -> ConnectionPeer:
        return ConnectionPeer("127.0.0.1", loopback=True, uid=0)


class NamePath(msgspec.Struct, frozen=True):
    name: str


class CountQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 1


class Note(msgspec.Struct, frozen=True):
    text: str
    environment: tuple[str, ...] = ()


@endpoint("POST", "/note/{name}", summary="Echo", status=201)
async def echo(context: str, call: RequestContext, path: NamePath, body: Note | None) -> Note:
    return Note(f"{context} {path.name} {'nothing' if body is None else body.text}", ("SECRET=1",))


@endpoint("GET", "/judge", summary="Says what is wrong with its query")
async def judge(context: str, call: RequestContext, query: CountQuery | errors.Invalid) -> Response:
    return Response(EncodedJson(b'"judged"' if isinstance(query, errors.Invalid) else b'"fits"'))


async def run(
    declared: Endpoint,
    dialect: Dialect = OWN,
    *,
    path: str = "/note/a",
    query: bytes = b"",
    body: bytes = b"",
    role: Role = Role.ADMIN,
    prefix: str = "",
) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "method": declared.method,
        "path": path,
        "path_params": {"name": path.rpartition("/")[2]},
        "query_string": query,
        "client": None,
        "state": {
            "caller": Caller(origin=AuthMethod.TOKEN, name="token:1", role=role),
            "request_id": "r1",
            "headers": {},
            "connection": LocalConnection(),
            "started_s": 7.0,
        },
    }
    await EndpointRunner(declared, dialect, "here", prefix)(scope, receive, send)
    head, content = sent
    return head["status"], dict(head["headers"]), content["body"]


async def test_an_endpoint_is_given_its_context_and_inputs_and_its_value_is_encoded() -> None:
    status, headers, body = await run(echo, body=b'{"text":"hello"}')
    assert (status, body) == (201, b'{"text":"here a hello","environment":["SECRET=1"]}')
    assert headers[b"content-type"] == b"application/json"


async def test_a_body_that_may_be_left_out_is_none() -> None:
    assert b"here a nothing" in (await run(echo))[2]


async def test_values_of_variables_are_hidden_unless_the_dialect_has_none() -> None:
    assert b"SECRET=1" not in (await run(echo, role=Role.VIEWER))[2]
    assert b"SECRET=1" in (await run(echo, Dialect(redacts=False), role=Role.VIEWER))[2]


async def test_with_a_prefix_the_rest_of_the_path_is_the_name_with_its_slashes() -> None:
    assert b"here b/c nothing" in (await run(echo, path="/note/b/c", prefix="/note/"))[2]


async def test_who_judges_its_query_is_given_the_error() -> None:
    assert (await run(judge, query=b"count=2"))[2] == b'"fits"'
    assert (await run(judge, query=b"count=two"))[2] == b'"judged"'


async def test_a_dialect_reads_writes_and_knows_its_callers_in_its_own_way() -> None:
    async def identify(
        context: str, declared: Endpoint, call: RequestContext, scope: Scope, receive: Any, data: bytes
    ) -> RequestContext:
        assert data == b"in capitals"
        return msgspec.structs.replace(call, request_id="of the dialect")

    @endpoint("POST", "/note/{name}", summary="Who calls")
    async def whoever(context: str, call: RequestContext, path: NamePath, body: Note) -> Note:
        return Note(f"{body.text}, {call.request_id}")

    dialect = Dialect(
        body_reader=lambda declared: lambda data, scope: Note(data.decode().upper()),
        encode=lambda value, query_string: value.text.encode() + query_string,
        media="text/plain",
        identify=identify,
    )
    _, headers, body = await run(whoever, dialect, body=b"in capitals", query=b"!")
    assert (headers[b"content-type"], body) == (b"text/plain", b"IN CAPITALS, of the dialect!")


async def test_without_a_context_an_endpoint_says_what_is_lacking() -> None:
    def route(dialect: Dialect) -> Any:
        return build_route(judge, dialect, None, HttpSettings(), row=rules.OPEN_RULE).app

    with pytest.raises(errors.Unavailable, match="no market here"):
        await route(Dialect(unavailable="no market here"))({}, None, None)
    assert isinstance(route(OWN), EndpointRunner), "this one does without"
