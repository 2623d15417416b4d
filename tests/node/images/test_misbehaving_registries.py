"""Servers that break off, stall, lie, send us elsewhere or are no registries: each told in plain words."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from skerry.model import errors
from skerry.node.images.registry_source import TRIES
from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground, diff_ids
from tests.support import imagery
from tests.support.shares import free_port
from tests.support.waiting import eventually

LARGE = imagery.layer(imagery.file("large", bytes(range(256)) * 2000), compression="")
IMAGE = imagery.image(LARGE)
LOGIN = base64.b64encode(b"user:secret").decode()


def log_in(ground: Ground, registry: FakeRegistry) -> None:
    Path(ground.settings.credentials).write_text(json.dumps({"auths": {registry.address: {"auth": LOGIN}}}))


def asking_for_a_password(request: web.Request) -> web.Response | None:
    if request.headers.get("Authorization") == f"Basic {LOGIN}":
        return None
    return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="r"'})


class Answers:
    """Gives these statuses, one after the other, to requests with `part` in their path."""

    def __init__(self, part: str, *statuses: int, **headers: str) -> None:
        self.part = part
        self.statuses = list(statuses)
        self.headers = headers

    def __call__(self, request: web.Request) -> web.Response | None:
        if self.part in request.path and self.statuses:
            return web.Response(status=self.statuses.pop(0), headers=self.headers)
        return None


async def test_a_layer_goes_on_where_its_connection_broke(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(IMAGE)
    fake.cuts = [1000, 0, 50_000]
    async with ground.images() as images:
        assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id
        (layer,) = images.layers(images.list()[0])
        assert (layer / "large").read_bytes() == bytes(range(256)) * 2000
    starts = [int(each.removeprefix("bytes=").removesuffix("-")) for each in fake.ranges if each]
    assert len(starts) >= 2
    assert starts == sorted(starts)
    assert starts[0] > 0


async def test_a_server_that_knows_no_parts_sends_all_again_and_none_of_it_counts_twice(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    fake.knows_ranges = False
    fake.cuts = [100_000, 200_000]
    async with ground.images() as images:
        assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id
    assert ground.stored_layers() == diff_ids(IMAGE)


async def test_a_connection_that_breaks_again_and_again_is_given_up_and_what_was_whole_is_kept_for_later(
    fake: FakeRegistry, ground: Ground
) -> None:
    small = imagery.layer(imagery.file("small"))
    created = fake.hold(imagery.image(small, LARGE))
    breaks = False

    def before(request: web.Request) -> web.StreamResponse | None:
        if breaks and LARGE.digest in request.path:
            assert request.transport is not None
            request.transport.abort()
        return None

    fake.before = before
    breaks = True
    ground.set(parallel=1)
    async with ground.images() as images:
        with pytest.raises(errors.Unavailable, match=r"the connection to .* broke"):
            await images.pull(f"{fake.address}/web:1")
        # A connection that was used before may break for no fault of the server: that is asked again at once.
        assert TRIES <= len(fake.requested(LARGE.digest)) <= 2 * TRIES
        assert images.list() == []
        assert ground.stored_layers() == {small.diff_id}
        breaks = False
        assert (await images.pull(f"{fake.address}/web:1")).id == created.id
        assert len(fake.requested(small.digest)) == 1
    async with ground.images() as images:
        assert [image.id for image in images.list()] == [created.id]


@pytest.mark.parametrize("part", ["/v2/", "/manifests/", f"/blobs/{IMAGE.id}", f"/blobs/{LARGE.digest}"])
async def test_answers_that_may_pass_are_asked_for_again(
    fake: FakeRegistry, ground: Ground, part: str
) -> None:
    fake.hold(IMAGE)
    fake.before = Answers(part, 503, 500, 429, 502, **{"Retry-After": "0"})
    async with ground.images() as images:
        assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (429, errors.Overloaded, "limits the rate of requests"),
        (503, errors.Unavailable, "returned 503"),
        (418, errors.Unavailable, "returned 418 for"),
        (403, errors.FailedPrecondition, "denies access to"),
    ],
)
async def test_answers_that_do_not_pass_end_the_pull(
    fake: FakeRegistry, ground: Ground, status: int, error: type[errors.SkerryError], message: str
) -> None:
    fake.hold(IMAGE)
    fake.before = Answers("/blobs/", *[status] * 20)
    async with ground.images() as images:
        with pytest.raises(error, match=message):
            await images.pull(f"{fake.address}/web:1")
    assert ground.stored() == []
    assert len(fake.requested("/blobs/")) == (TRIES if status in (429, 503) else 1)


async def test_a_login_is_not_shown_to_the_host_that_blobs_are_redirected_to(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    log_in(ground, fake)
    async with FakeRegistry().serving() as storage:
        storage.blobs = fake.blobs

        def before(request: web.Request) -> web.StreamResponse | None:
            if "/blobs/" in request.path and request.path.startswith("/v2/web"):
                # First within the host, where the login goes along, then out of it.
                return web.Response(status=307, headers={"Location": f"/again{request.path}?sig=a%2Fb"})
            if request.path.startswith("/again"):
                assert request.raw_path.endswith("?sig=a%2Fb")
                where = f"http://{storage.address}{request.raw_path}"
                return asking_for_a_password(request) or web.Response(status=302, headers={"Location": where})
            return asking_for_a_password(request)

        fake.before = before
        storage.cuts = [70_000]  # and a part is asked for where the whole was
        async with ground.images() as images:
            assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id
        assert len(storage.visible) == 3
        assert set(storage.visible) == {""}


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ("http://registry.example/x", errors.FailedPrecondition, "redirects to registry.example without TLS"),
        ("ftp://127.0.0.1/x", errors.Unavailable, "which is not a valid"),
        ("http://[/x", errors.Unavailable, "which is not a valid"),
        ("/v2/web/manifests/1", errors.Unavailable, "redirects more than"),
    ],
)
async def test_redirects_to_nowhere_end_the_pull(
    fake: FakeRegistry, ground: Ground, location: str, error: type[errors.SkerryError], message: str
) -> None:
    fake.before = Answers("/manifests/", *[307] * 20, Location=location)
    async with ground.images() as images:
        with pytest.raises(error, match=message):
            await images.pull(f"{fake.address}/web:1")


async def test_a_registry_that_does_not_know_head_is_asked_in_full(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    fake.before = lambda request: web.Response(status=405) if request.method == "HEAD" else None
    async with ground.images() as images:
        for _ in range(2):
            assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id
    assert ground.fake.begun == 1


async def test_a_manifest_other_than_the_one_that_was_asked_for_is_refused(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    other = imagery.image(imagery.layer(imagery.file("other")))
    fake.manifests[other.digest] = fake.manifests["1"]
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match=r"the manifest of .* has the wrong digest"):
            await images.pull(f"{fake.address}/web@{other.digest}")


async def test_a_configuration_other_than_the_one_that_was_asked_for_is_refused(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    fake.blobs[IMAGE.id] = IMAGE.config.replace(b"linux", b"LINUX")
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match=r"the configuration of .* has the wrong digest"):
            await images.pull(f"{fake.address}/web:1")
        fake.blobs[IMAGE.id] = IMAGE.config[:-2]
        with pytest.raises(errors.Unprocessable, match=r"the configuration of .* is truncated"):
            await images.pull(f"{fake.address}/web:1")


async def test_documents_beyond_their_bounds_are_not_read(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(IMAGE)
    descriptor = json.loads(IMAGE.manifest)["config"] | {"size": 5 * 1024 * 1024}
    fake.hold(imagery.Made(IMAGE.layers, IMAGE.config, manifest_fields={"config": descriptor}), "config")
    fake.manifests["manifest"] = (b" " * (5 * 1024 * 1024), IMAGE.media_type)
    async with ground.images() as images:
        for tag in ("config", "manifest"):
            with pytest.raises(errors.TooLarge, match=f"the {tag}.* of"):
                await images.pull(f"{fake.address}/web:{tag}")


async def test_a_blob_that_is_longer_than_its_manifest_says_is_refused(
    fake: FakeRegistry, ground: Ground
) -> None:
    fake.hold(IMAGE)
    fake.blobs[LARGE.digest] += b"more"
    async with ground.images() as images:
        with pytest.raises(errors.Unprocessable, match="is longer than the"):
            await images.pull(f"{fake.address}/web:1")
    assert ground.stored() == []


async def test_a_registry_that_is_silent_is_given_up(fake: FakeRegistry, ground: Ground) -> None:
    ground.set(timeout_s=0.05)
    async with (
        raw_server(lambda reader, writer: asyncio.Event().wait()) as address,
        ground.images() as images,
    ):
        with pytest.raises(errors.TimedOut, match=r"did not respond for 0.05 s"):
            await images.pull(f"{address}/web:1")


async def test_a_blob_that_stalls_is_asked_for_again(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(IMAGE)
    ground.set(timeout_s=0.3)
    stalled = False

    async def stall(request: web.Request) -> web.StreamResponse:
        nonlocal stalled
        stalled = True
        answer = web.StreamResponse(headers={"Content-Length": str(len(LARGE.data))})
        await answer.prepare(request)
        await answer.write(LARGE.data[:10_000])
        await asyncio.Event().wait()
        return answer

    usual = fake._blob

    async def blob(request: web.Request, data: bytes) -> web.StreamResponse:
        return await (stall(request) if not stalled and data == LARGE.data else usual(request, data))

    fake._blob = blob  # type: ignore[method-assign] # a server that stalls once
    async with ground.images() as images:
        assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id
    assert fake.ranges[-1] == "bytes=10000-"


async def test_something_that_speaks_no_http_is_told_so(ground: Ground) -> None:
    async def gibberish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n")

    ground.set(timeout_s=0.5)
    async with raw_server(gibberish) as address, ground.images() as images:
        with pytest.raises(errors.Unavailable, match=f"{address} returned no valid HTTP"):
            await images.pull(f"{address}/web:1")


async def test_a_server_that_is_no_registry_is_told_so(fake: FakeRegistry, ground: Ground) -> None:
    fake.before = lambda request: web.Response(status=404, text="hello")
    async with ground.images() as images:
        with pytest.raises(errors.Unavailable, match=r"is not a registry: it returned 404 for /v2/"):
            await images.pull(f"{fake.address}/web:1")


async def test_nobody_there_is_told_so(ground: Ground) -> None:
    async with ground.images() as images:
        with pytest.raises(errors.Unavailable, match=r"cannot be reached: .*refused"):
            await images.pull(f"127.0.0.1:{free_port()}/web:1")


async def test_off_loopback_plain_http_is_only_for_registries_that_are_named(
    fake: FakeRegistry, ground: Ground
) -> None:
    # To the kernel this is the loopback; by its spelling it is not.
    address = fake.address.replace("127.0.0.1", "0.0.0.0")
    fake.hold(IMAGE)
    async with ground.images() as images:
        with pytest.raises(
            errors.FailedPrecondition, match=rf"{address} does not support TLS: .* images\.insecure"
        ):
            await images.pull(f"{address}/web:1")
        assert fake.requests == []
    ground.set(insecure=(address,))
    async with ground.images() as images:
        assert (await images.pull(f"{address}/web:1")).id == IMAGE.id


@pytest.mark.parametrize(
    ("challenge", "error", "message"),
    [
        ("", errors.FailedPrecondition, "an unsupported authentication scheme: none"),
        ("Negotiate", errors.FailedPrecondition, "an unsupported authentication scheme: negotiate"),
        ('Bearer realm="ftp://x/"', errors.Unavailable, "names no valid token server"),
        ('Bearer realm="http://["', errors.Unavailable, "names no valid token server"),
        ("Bearer", errors.Unavailable, "names no valid token server"),
    ],
)
async def test_challenges_that_cannot_be_met_end_the_pull(
    fake: FakeRegistry, ground: Ground, challenge: str, error: type[errors.SkerryError], message: str
) -> None:
    fake.before = Answers("/v2/", *[401] * 20, **{"WWW-Authenticate": challenge})
    async with ground.images() as images:
        with pytest.raises(error, match=message):
            await images.pull(f"{fake.address}/web:1")


@pytest.mark.parametrize("answer", ["{}", "no json", '{"token": "a\\nb"}', '{"token": 3}'])
async def test_a_token_server_that_gives_no_token_is_told_so(
    fake: FakeRegistry, ground: Ground, answer: str
) -> None:
    def before(request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            return web.Response(text=answer)
        challenge = f'Bearer realm="http://{fake.address}/token",service="s"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    fake.before = before
    async with ground.images() as images:
        with pytest.raises(errors.Unavailable, match="token server"):
            await images.pull(f"{fake.address}/web:1")


async def test_a_pull_that_is_cancelled_leaves_nothing_half_done(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(IMAGE)
    ground.fake.gate.clear()
    async with ground.images() as images:
        pull = asyncio.create_task(images.pull(f"{fake.address}/web:1"))
        await eventually(lambda: ground.fake.begun)
        assert ground.stored() != []
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        assert ground.stored() == []
        ground.fake.gate.set()
        assert (await images.pull(f"{fake.address}/web:1")).id == IMAGE.id


async def test_closing_ends_pulls_and_tells_who_waits(fake: FakeRegistry, ground: Ground) -> None:
    fake.hold(IMAGE)
    ground.fake.gate.clear()
    async with ground.images() as images:
        pull = asyncio.create_task(images.pull(f"{fake.address}/web:1"))
        await eventually(lambda: ground.fake.begun)
        await images.close()
        with pytest.raises(errors.Unavailable, match="stopping"):
            await pull
        with pytest.raises(errors.Unavailable, match="stopping"):
            await images.pull(f"{fake.address}/web:1")
    assert ground.stored() == []


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[str]:
    """A server that talks as it is told; connections end when the test does."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
            await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()
