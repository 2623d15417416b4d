"""Machines that join again, and whom they show their token: over real HTTP and HTTPS on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.control.identity import certificates
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.node.agent.node_identity import NodeIdentity
from skerry.store.protocol import Delete
from tests.support.clouds import Cloud, cloud_in, new_request
from tests.support.joining import (
    Answer,
    certificate_in,
    http_server,
    https_context,
    joined_in,
    joining,
    new_token,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))  # TLS itself looks at the real clock


@pytest.fixture
async def cloud(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Cloud]:
    async with cloud_in(tmp_path / "server", clock) as made:
        yield made


def refusing(cloud: Cloud) -> Answer:
    """What a server answers to a node whose certificate it does not take, whatever TLS is spoken."""
    real = joining(cloud)

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/join" and not body:
            return 401, json.dumps({"error": "it was not taken", "code": "unauthenticated"}).encode()
        return real(path, body)

    return answer


async def rejoin(folder: Path, cloud: Cloud, answer: Answer) -> tuple[NodeIdentity, str]:
    membership = NodeIdentity(folder, cloud.clock)
    with http_server(answer) as url:
        place = await membership.join(
            url, await new_token(cloud), "edge-1", fingerprint=cloud.authority.fingerprint
        )
    return membership, place.node


async def test_a_machine_that_joins_again_keeps_name_and_certificate_and_uses_up_no_token(
    cloud: Cloud, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    before = certificate_in(tmp_path / "node")
    membership, again = await rejoin(tmp_path / "node", cloud, joining(cloud))
    assert (again, certificate_in(tmp_path / "node")) == (node, before)
    assert "kept its name and certificate" in membership.outcome
    assert sorted(token.used_at is None for token in cloud.identity.tokens()) == [False, True]


async def test_a_machine_whose_server_moved_keeps_its_certificate_and_dials_the_new_address(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    real = joining(cloud)

    def moved(path: str, body: bytes) -> tuple[int, bytes]:
        return (200, b'{"grpc": "192.0.2.9:7000"}') if path == "/join" else real(path, body)

    membership = NodeIdentity(tmp_path / "node", clock)
    with http_server(moved) as url:
        place = await membership.join(f"http://127.0.0.1:1,{url}", await new_token(cloud), "edge-1")
    # At the host that answered first, and where it says that it is.
    assert (place.node, place.url, place.grpc, place.also) == (
        node,
        url,
        "127.0.0.1:7000",
        ("192.0.2.9:7000",),
    )
    assert f"the server is at {url} now" in membership.outcome
    assert NodeIdentity(tmp_path / "node", clock).read() == place


async def test_a_machine_that_the_store_does_not_know_any_more_is_the_same_node_again(
    cloud: Cloud, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    serial = certificate_in(tmp_path / "node").serial
    await cloud.store.commit([Delete(certificates.PREFIX + serial)])
    membership, again = await rejoin(tmp_path / "node", cloud, refusing(cloud))
    assert again == node
    assert certificate_in(tmp_path / "node").serial != serial
    assert "joined again as the same node" in membership.outcome


async def test_a_machine_that_was_revoked_joins_as_a_new_node_with_a_new_key_and_the_same_name(
    cloud: Cloud, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    before = certificate_in(tmp_path / "node")
    await cloud.identity.revoke_certificate(before.serial, actor="test")
    membership, again = await rejoin(tmp_path / "node", cloud, refusing(cloud))
    assert again != node
    assert certificate_in(tmp_path / "node").key != before.key
    assert f"`skerry node remove {node}`" in membership.outcome
    assert {record.name for record in cloud.identity.certificates()} == {"edge-1"}


async def test_nobody_takes_over_a_node_by_its_certificate_without_its_key(
    cloud: Cloud, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    stolen = certificate_in(tmp_path / "node").pem
    request = new_request(tmp_path, "thief")
    joined = await cloud.identity.join(await new_token(cloud), request, "edge-1", previous_pem=stolen)
    assert joined.node != node


async def test_without_a_server_a_machine_that_joins_again_stays_what_it_is(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    membership = NodeIdentity(tmp_path / "node", clock)
    place = await membership.join("http://127.0.0.1:1", await new_token(cloud), "edge-1")
    assert place.node == node
    assert "no server could be asked" in membership.outcome


async def test_an_invitation_moves_a_machine_to_another_cloud_and_only_once_that_has_taken_it(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    _, node = await joined_in(tmp_path / "node", cloud)
    before = certificate_in(tmp_path / "node")
    async with cloud_in(tmp_path / "other", clock) as other:
        invited = {"token": await new_token(other), "fingerprint": other.authority.fingerprint}
        with pytest.raises(errors.Unavailable):
            await NodeIdentity(tmp_path / "node", clock).join("http://127.0.0.1:1", name="edge-1", **invited)
        assert certificate_in(tmp_path / "node") == before
        membership = NodeIdentity(tmp_path / "node", clock)
        with http_server(joining(other)) as url:
            place = await membership.join(url, name="edge-1", **invited)
    assert membership.has_left_cloud
    assert f"was node {node} of another cloud" in membership.outcome
    assert certificate_in(tmp_path / "node").name == place.node != node


async def test_a_server_of_another_ca_never_sees_the_token_and_the_next_address_is_tried(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    seen: list[tuple[str, bytes]] = []
    async with cloud_in(tmp_path / "other", clock) as other:

        def stranger(path: str, body: bytes) -> tuple[int, bytes]:
            seen.append((path, body))
            return 200, other.authority.certificate_pem

        token = await new_token(cloud)
        invited = {"token": token, "fingerprint": cloud.authority.fingerprint}
        with (
            http_server(stranger, https_context(other, tmp_path)) as wrong,
            http_server(joining(cloud), https_context(cloud, tmp_path)) as right,
        ):
            with pytest.raises(errors.FailedPrecondition, match="the token was not sent"):
                await NodeIdentity(tmp_path / "node", clock).join(wrong, name="edge-1", **invited)
            place = await NodeIdentity(tmp_path / "node", clock).join(
                f"{wrong},{right}", name="edge-1", **invited
            )
    assert place.url == right
    assert seen == [("/ca.pem", b"")] * 2


async def test_the_whole_fingerprint_of_an_invitation_counts_and_not_only_its_first_half(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    forged = cloud.authority.fingerprint[:32] + "0" * 32
    with (
        http_server(joining(cloud)) as url,
        pytest.raises(errors.FailedPrecondition, match="the token was not sent"),
    ):
        await NodeIdentity(tmp_path / "node", clock).join(
            url, await new_token(cloud), "edge-1", fingerprint=forged
        )


async def test_dead_addresses_are_passed_over_and_all_are_named_if_none_answers(
    cloud: Cloud, clock: ManualClock, tmp_path: Path
) -> None:
    dead = "http://127.0.0.1:1,http://127.0.0.1:2"
    token = await new_token(cloud)
    with pytest.raises(errors.Unavailable, match=r"none of 2 addresses.*127\.0\.0\.1:1 .*127\.0\.0\.1:2 "):
        await NodeIdentity(tmp_path / "node", clock).join(dead, token, "edge-1")
    with http_server(joining(cloud)) as url:
        place = await NodeIdentity(tmp_path / "node", clock).join(f"{dead},{url}", token, "edge-1")
    assert place.url == url
