"""Joining over real HTTP and HTTPS on loopback, and renewing while running."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.identity_settings import IdentitySettings
from skerry.node.agent import join
from skerry.node.agent.node_identity import NodeIdentity
from tests.support.clouds import Cloud, cloud_in, new_request
from tests.support.joining import (
    GRPC,
    certificate_in,
    http_server,
    https_context,
    joined_in,
    joining,
    new_token,
)


class Enough(BaseException):
    """Ends a loop that never ends."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))  # TLS itself looks at the real clock


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path / "server", clock) as made:
        yield made


async def test_a_machine_joins_over_https_with_nothing_but_url_and_token(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    with http_server(joining(cloud), https_context(cloud, tmp_path)) as url:
        place = await NodeIdentity(folder, clock).join(url, await new_token(cloud), "edge-1")
    assert (place.name, place.url, place.grpc) == ("edge-1", url, GRPC)
    assert certificate_in(folder).name == place.node
    assert (folder / "ca.crt").read_bytes() == cloud.authority.certificate_pem
    assert stat.S_IMODE((folder / "node.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_the_token_and_the_key_stay_out_of_log_and_files(cloud: Cloud, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs, http_server(joining(cloud)) as url:
        token = await new_token(cloud)
        await NodeIdentity(tmp_path / "node", cloud.clock).join(url, token, "edge-1")
    secret = token.split("_")[2]
    assert secret not in repr(logs)
    assert "PRIVATE KEY" not in repr(logs)
    assert not [p.name for p in (tmp_path / "node").iterdir() if secret.encode() in p.read_bytes()]


async def test_a_joined_machine_stays_the_same_node_and_needs_no_server_or_token(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    first, node = await joined_in(tmp_path / "node", cloud)
    again = NodeIdentity(tmp_path / "node", clock)
    assert (await again.join("http://127.0.0.1:1", "", "edge-1")).node == node
    assert again.context is not first.context


async def test_of_several_servers_the_first_that_answers_is_joined(tmp_path: Path, cloud: Cloud) -> None:
    token = await new_token(cloud)
    with http_server(joining(cloud)) as url:
        place = await NodeIdentity(tmp_path / "node", cloud.clock).join(
            f"http://127.0.0.1:1, {url}", token, "edge-1"
        )
    assert place.url == url
    with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:2"):
        await NodeIdentity(tmp_path / "other", cloud.clock).join(
            "http://127.0.0.1:1,http://127.0.0.1:2", token, "edge-2"
        )


async def test_a_refusal_is_the_word_of_all_servers(tmp_path: Path, cloud: Cloud) -> None:
    with http_server(joining(cloud)) as url, pytest.raises(errors.Unauthenticated):
        await NodeIdentity(tmp_path / "node", cloud.clock).join(
            f"{url},http://127.0.0.1:1", (await new_token(cloud))[:-1], "edge-1"
        )


async def test_a_token_of_another_cloud_does_not_move_a_joined_machine(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    await joined_in(tmp_path / "node", cloud)
    async with cloud_in(tmp_path / "other", clock) as other:
        token = await new_token(other)
    with pytest.raises(errors.FailedPrecondition, match="the token is of another cloud"):
        await NodeIdentity(tmp_path / "node", clock).join("http://127.0.0.1:1", token, "edge-1")


async def test_a_machine_whose_certificate_expired_needs_a_token_and_is_the_same_node_again(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    clock.advance(24 * 3600)
    with pytest.raises(errors.Unauthenticated, match="give it an invitation"):
        await NodeIdentity(tmp_path / "node", clock).join("http://127.0.0.1:1", "", "edge-1")
    serving = NodeIdentity(tmp_path / "node", clock)
    record = await serving.join("http://127.0.0.1:1", "", "edge-1", keeps_expired=True)
    assert record.node == node
    assert "goes on without a server" in serving.outcome
    membership, again = await joined_in(tmp_path / "node", cloud)
    assert again == node
    assert "had expired" in membership.outcome
    assert "joined again as the same node" in membership.outcome
    assert certificate_in(tmp_path / "node").not_after > clock.now()


async def test_a_lost_answer_is_asked_for_again_with_the_same_token(cloud: Cloud, tmp_path: Path) -> None:
    real = joining(cloud)
    lost: list[bytes] = []

    def lose_the_first(path: str, body: bytes) -> tuple[int, bytes]:
        status, output = real(path, body)
        if path == "/join" and not lost:
            lost.append(output)
            return 502, b"the proxy lost it"
        return status, output

    membership = NodeIdentity(tmp_path / "node", cloud.clock)
    with http_server(lose_the_first) as url:
        token = await new_token(cloud)
        with pytest.raises(errors.Unavailable, match="answered 502"):
            await membership.join(url, token, "edge-1")
        place = await membership.join(url, token, "edge-1")
    assert place.node == json.loads(lost[0])["node"]


async def test_a_crash_between_the_files_is_mended_by_joining_again(cloud: Cloud, tmp_path: Path) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    (tmp_path / "node" / "join.json").write_bytes(b'{"node": "some')
    _, other = await joined_in(tmp_path / "node", cloud)
    assert other != node
    assert certificate_in(tmp_path / "node").name == other


async def test_a_ca_that_the_token_does_not_name_never_sees_the_token(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    paths: list[str] = []
    async with cloud_in(tmp_path / "impostor", clock) as impostor:
        real = joining(impostor)

        def watch(path: str, body: bytes) -> tuple[int, bytes]:
            paths.append(path)
            return real(path, body)

        with (
            http_server(watch, https_context(impostor, tmp_path)) as url,
            pytest.raises(errors.FailedPrecondition, match="not the one in this token"),
        ):
            await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")
    assert paths == ["/ca.pem"]


async def test_an_impostor_that_shows_the_right_ca_never_sees_the_token(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    paths: list[str] = []

    def watch(path: str, body: bytes) -> tuple[int, bytes]:
        paths.append(path)
        return 200, cloud.authority.certificate_pem

    async with cloud_in(tmp_path / "impostor", clock) as impostor:
        with (
            http_server(watch, https_context(impostor, tmp_path)) as url,
            pytest.raises(errors.Unavailable, match="issued by another CA"),
        ):
            await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")
    assert paths == ["/ca.pem"]


async def test_an_impostor_that_adds_its_own_ca_to_the_right_one_never_sees_the_token(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    paths: list[str] = []
    async with cloud_in(tmp_path / "impostor", clock) as impostor:

        def watch(path: str, body: bytes) -> tuple[int, bytes]:
            paths.append(path)
            return 200, cloud.authority.certificate_pem + impostor.authority.certificate_pem

        with (
            http_server(watch, https_context(impostor, tmp_path)) as url,
            pytest.raises(errors.Unavailable, match="issued by another CA"),
        ):
            await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")
    assert paths == ["/ca.pem"]


async def test_a_server_called_by_a_name_it_does_not_have_says_what_to_do(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    context = https_context(cloud, tmp_path, hosts=("elsewhere.example",))
    with (
        http_server(joining(cloud), context) as url,
        pytest.raises(errors.Unavailable, match=r"does not name the address.*http\.names"),
    ):
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")


async def test_the_servers_reason_is_what_the_machine_reports(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    token = await new_token(cloud)
    await cloud.identity.join(token, new_request(tmp_path), "quicker")
    with http_server(joining(cloud)) as url, pytest.raises(errors.Unauthenticated, match="was used at"):
        await NodeIdentity(tmp_path / "node", clock).join(url, token, "edge-1")


async def test_a_server_cannot_write_to_the_terminal_in_its_reason(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        if path == "/ca.pem":
            return 200, cloud.authority.certificate_pem
        return 403, json.dumps({"error": "\x1b[2Jno" + "!" * 9999, "code": "forbidden"}).encode()

    with http_server(answer) as url, pytest.raises(errors.Forbidden) as caught:
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) <= 500


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b"", "invalid response to a join"),
        (b"[1]", "invalid response to a join"),
        (b"x" * 100_000, "more than 65536 bytes"),
        (b'{"node":"n","certificate":"x","ca":"x","grpc":"x"}', "cannot be used"),
    ],
    ids=["empty", "another shape", "too large", "no certificate"],
)
async def test_a_strange_answer_is_an_error_and_leaves_the_machine_unjoined(
    cloud: Cloud, clock: ManualClock, tmp_path: Path, output: bytes, reason: str
) -> None:
    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        return 200, cloud.authority.certificate_pem if path == "/ca.pem" else output

    with http_server(answer) as url, pytest.raises(errors.SkerryError, match=reason):
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")
    assert not (tmp_path / "node" / "join.json").exists()


async def test_somebody_elses_certificate_is_not_taken(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    other = await cloud.identity.join(await new_token(cloud), new_request(tmp_path), "other")

    def answer(path: str, _: bytes) -> tuple[int, bytes]:
        if path == "/ca.pem":
            return 200, cloud.authority.certificate_pem
        output = {"node": other.node, "certificate": other.certificate_pem.decode(), "ca": "", "grpc": GRPC}
        return 200, json.dumps(output).encode()

    with http_server(answer) as url, pytest.raises(errors.FailedPrecondition, match="for another key"):
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")


async def test_a_url_that_is_no_ca_says_so(cloud: Cloud, clock: ManualClock, tmp_path: Path) -> None:
    with (
        http_server(lambda *_: (200, b"<html>")) as url,
        pytest.raises(errors.FailedPrecondition, match="is this a Skerry server"),
    ):
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")


async def test_a_server_that_is_away_is_named(cloud: Cloud, clock: ManualClock, tmp_path: Path) -> None:
    with http_server(joining(cloud)) as url:
        pass
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        await NodeIdentity(tmp_path / "node", clock).join(url, await new_token(cloud), "edge-1")


@pytest.mark.parametrize("token", ["", "nonsense", "admin"])
async def test_without_a_join_token_nothing_is_sent(
    cloud: Cloud, clock: ManualClock, tmp_path: Path, token: str
) -> None:
    text = await new_token(cloud, Role.ADMIN) if token == "admin" else token
    with pytest.raises(errors.Unauthenticated, match="token"):
        await NodeIdentity(tmp_path / "node", clock).join("http://127.0.0.1:1", text, "edge-1")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "edge-1:1323",
        "ftp://edge-1",
        "https://",
        "https://a:port",
        "https://u@a",
        "https://[::1",
        "http:///x",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid, match="given as a URL"):
        join.JoinServer.parse(url)


@pytest.mark.parametrize(
    "url", ["http://server.example:1323", "http://192.0.2.1", "http://localhost.example"]
)
def test_plain_http_is_for_loopback_only(url: str) -> None:
    with pytest.raises(errors.Invalid, match="use https"):
        join.JoinServer.parse(url)


def test_loopback_may_be_called_over_plain_http_and_a_path_is_kept() -> None:
    assert join.JoinServer.parse("http://[::1]:1323").host == "::1"
    assert join.JoinServer.parse("http://localhost").port == 80
    server = join.JoinServer.parse("https://server.example/cloud/")
    assert (server.port, server.path) == (443, "/cloud")


# renewing


def renewing(cloud: Cloud, folder: Path) -> Callable[[bytes], object]:
    """What the gRPC call does: the caller is whoever the present certificate says."""

    async def renew(csr: bytes) -> bytes:
        der = ssl.PEM_cert_to_DER_cert((folder / "node.crt").read_text())
        return await cloud.identity.renew(cloud.identity.caller_from_certificate(der), csr)

    return renew


async def test_a_node_renews_before_two_thirds_of_its_life_into_the_same_context(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    seen: dict[str, pki.IssuedCertificate] = {}

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        issued = certificate_in(folder)
        assert clock.now() < issued.issued_at + 24 * 3600 * 2 / 3
        seen[issued.serial] = issued
        if len(seen) == 3:
            raise Enough

    membership, node = await joined_in(folder, cloud, sleep=nap, chance=lambda: 0.99)
    context, key = membership.context, (folder / "node.key").read_bytes()
    with pytest.raises(Enough):
        await membership.run(renewing(cloud, folder))  # type: ignore[arg-type]
    assert {issued.name for issued in seen.values()} == {node}
    assert membership.context is context
    assert (folder / "node.key").read_bytes() == key


async def test_a_server_that_is_away_is_asked_again_until_it_is_back(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    real = renewing(cloud, folder)
    requested: list[float] = []

    async def renew(csr: bytes) -> bytes:
        requested.append(clock.now())
        if len(requested) < 4:
            raise errors.Unavailable("the server is away")
        return await real(csr)  # type: ignore[misc,no-any-return]

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        if certificate_in(folder).serial != first:
            raise Enough

    membership, _ = await joined_in(folder, cloud, sleep=nap)
    first = certificate_in(folder).serial
    with pytest.raises(Enough):
        await membership.run(renew)
    assert len(requested) == 4
    assert requested == sorted(set(requested))


async def test_a_node_whose_certificate_expired_meanwhile_says_what_to_do(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    async def renew(_: bytes) -> bytes:
        raise errors.Unavailable("the server is away")

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        if any(line["event"] == "certificate.expired" for line in logs):
            raise Enough

    membership, _ = await joined_in(tmp_path / "node", cloud, sleep=nap)
    clock.advance(24 * 3600 - 60)
    with structlog.testing.capture_logs() as logs, pytest.raises(Enough):
        await membership.run(renew)
    events = [line["event"] for line in logs]
    assert events[0] == "certificate.not_renewed"
    assert "skerry node --join" in logs[events.index("certificate.expired")]["hint"]


async def test_a_bad_answer_to_a_renewal_leaves_the_good_certificate(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    answers = [b"nonsense", cloud.authority.certificate_pem]

    async def renew(_: bytes) -> bytes:
        return answers.pop()

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        if not answers:
            raise Enough

    membership, _ = await joined_in(folder, cloud, sleep=nap)
    before = certificate_in(folder)
    with pytest.raises(Enough):
        await membership.run(renew)
    assert certificate_in(folder) == before


@asynccontextmanager
async def mutual_listener(context: ssl.SSLContext, seen: list[str]) -> AsyncIterator[int]:
    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        seen.append(pki.read_certificate(ssl.DER_cert_to_PEM_cert(der).encode()).serial)
        writer.close()

    server = await asyncio.start_server(look, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_next_connection_after_a_renewal_shows_the_new_certificate(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = tmp_path / "node"
    # TLS looks at the real clock, which is then in the last of three days, where both certificates are good.
    clock.advance(-2 * 86400)
    async with cloud_in(tmp_path / "server", clock, IdentitySettings(node_certificate_s=3 * 86400)) as cloud:
        first: list[str] = []

        async def nap(seconds: float) -> None:
            clock.advance(seconds)
            if certificate_in(folder).serial not in first:
                raise Enough

        membership, _ = await joined_in(folder, cloud, sleep=nap)
        first.append(certificate_in(folder).serial)
        listener = https_context(cloud, tmp_path)
        listener.verify_mode = ssl.CERT_REQUIRED
        seen: list[str] = []
        async with mutual_listener(listener, seen) as port:
            await _call(port, membership.context)
            with pytest.raises(Enough):
                await membership.run(renewing(cloud, folder))  # type: ignore[arg-type]
            await _call(port, membership.context)
    assert seen == [first[0], certificate_in(folder).serial]
    assert seen[0] != seen[1]


async def _call(port: int, context: ssl.SSLContext) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1"
    )
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
