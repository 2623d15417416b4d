"""This version on the data folder of an earlier one, and with a node that says what an earlier one said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from skerry.kit import pki, tls
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model.settings import StoreSettings
from skerry.store.factory import open_store
from skerry.store.protocol import Put
from skerry.transport.grpc.channels import dial
from skerry.transport.proto.nodes_grpc import NodeServiceStub
from tests.support import functions
from tests.support.etcd import EtcdServer
from tests.support.recordings import RECORDINGS, Recording, version_of
from tests.support.skerry import Skerry, running
from tests.support.waiting import PATIENCE_S, eventually, eventually_sync

pytestmark = pytest.mark.parametrize("recording", RECORDINGS, ids=version_of)

# A recording gets older: what would be dropped for its age is to be seen.
PATIENT = [
    *("--set", "functions.result_ttl_s=1e9"),
    *("--set", "functions.spare_workers=0"),
    *("--set", "fleet.suspect_after_s=100000"),
    *("--set", "fleet.lost_after_s=100000"),
]
JSON = {"Content-Type": "application/json"}


@contextmanager
def started(recording: Recording, folder: Path, *flags: str, role: str = "server") -> Iterator[Skerry]:
    """This version on a copy of the recorded data folder."""
    recording.copy_data(folder / "data")
    with running(folder, *PATIENT, *flags, role=role) as server:
        yield server


def get(server: Skerry, path: str) -> Any:
    status, answer = server.call("GET", path)
    assert status == 200, f"{path}: {status} {answer}"
    return answer


def check_everything_is_there(server: Skerry, facts: dict[str, Any]) -> None:
    workload = get(server, f"/workload/{facts['workload']}")
    assert (workload["name"], workload["environment"]) == ("web", ["A=1"])
    instances = {name: get(server, f"/instance/{facts[name]}") for name in ("running", "stopped", "waiting")}
    assert instances["running"]["workload_id"] == facts["workload"]
    assert instances["stopped"]["namespace"] == "shop"
    assert instances["stopped"]["status"] == "STOPPED"
    assert instances["waiting"]["status"] == "SCHEDULING"
    node = get(server, "/node/edge-1")
    assert (node["id"], node["facts"]["version"]) == (facts["node"], facts["version"])
    assert get(server, "/node/hub")["is_cordoned"] is True
    assert {each["role"] for each in get(server, "/token/")["tokens"]} >= facts["tokens"].keys()
    assert facts["flavor"] in {each["id"] for each in get(server, "/market/ledger")["flavors"]}
    assert get(server, "/market/ledger")["is_balanced"] is True


def check_tokens_still_count(server: Skerry, tokens: dict[str, str]) -> None:
    def create_as(role: str) -> int:
        headers = {**JSON, "Authorization": f"Bearer {tokens[role]}"}
        return server.call("PUT", "/workload/", {"name": f"by-{role}", "uri": "x.example/y"}, headers)[0]

    assert (create_as("admin"), create_as("viewer")) == (201, 403)


def test_all_that_an_earlier_version_stored_is_there_and_can_be_used(
    recording: Recording, tmp_path: Path
) -> None:
    with started(recording, tmp_path) as server:
        check_everything_is_there(server, recording.facts)
        check_tokens_still_count(server, recording.facts["tokens"])
        # Can be changed, too.
        path = f"/instance/{recording.facts['waiting']}"
        assert server.call("DELETE", path)[0] < 300
        eventually_sync(lambda: server.call("GET", path)[0] == 404)


async def copy_to_etcd(recording: Recording, folder: Path, url: str) -> None:
    """The records as they are, from the recorded SQLite file into etcd."""
    recording.copy_data(folder)
    old = await open_store(StoreSettings(), folder, ManualClock())
    new = await open_store(StoreSettings(url=url), folder, ManualClock())
    for entry in (await old.range("")).entries:
        if not entry.lease:  # those are of processes that have ended
            await new.commit([Put(entry.key, entry.value)])
    await old.close()
    await new.close()


def test_records_of_an_earlier_version_are_read_from_etcd_as_from_sqlite(
    recording: Recording, tmp_path: Path
) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(tmp_path / "etcd")
    etcd.start()
    try:
        url = f"etcd://{etcd.address}"
        asyncio.run(copy_to_etcd(recording, tmp_path / "old", url))
        with started(recording, tmp_path, "--store", url) as server:
            check_everything_is_there(server, recording.facts)
    finally:
        etcd.stop()


@pytest.mark.root
def test_a_function_of_an_earlier_version_is_called_and_its_results_are_found(
    recording: Recording, tmp_path: Path
) -> None:
    with started(recording, tmp_path, role="up") as server:
        assert recording.facts["function"] in str(get(server, "/function"))
        assert functions.poll(server, recording.facts["async"])["State"] == "done"
        said = functions.result(server, recording.facts["function"], {"name": "later"})
        assert "later" in str(said)


async def test_a_node_that_speaks_as_an_earlier_version_did_is_welcome_and_its_instances_are_shown(
    recording: Recording, tmp_path: Path
) -> None:
    facts = recording.facts
    with started(recording, tmp_path) as server:
        authority = pki.CertificateAuthority.load_or_create(server.data / "pki", SystemClock())
        key = pki.load_or_create_key(tmp_path / "node.key")
        request = pki.SigningRequest.parse(pki.make_request(key))
        issued = authority.issue(request, name=facts["node"], role="node", lifetime_s=3600)
        (tmp_path / "node.crt").write_bytes(issued.pem)
        context = tls.client(authority.certificate_pem)
        tls.load(context, tmp_path / "node.crt", tmp_path / "node.key")
        async with AsyncExitStack() as stack:
            channel = dial(server.ready["grpc"], context)
            stack.callback(channel.close)
            stream = NodeServiceStub(channel).Session.open()
            await stack.enter_async_context(stream)
            hello, *reports = recording.sent()
            await stream.send_message(hello)
            welcome = await stream.recv_message()
            assert welcome is not None
            assert welcome.welcome.node == facts["node"]
            for message in reports:
                await stream.send_message(message)
            unordered, acknowledged = {facts["running"], facts["stopped"]}, 0
            async with asyncio.timeout(PATIENCE_S):
                while acknowledged < len(reports) or unordered:
                    told = await stream.recv_message()
                    assert told is not None
                    unordered -= {order.instance for order in told.orders.orders}
                    acknowledged = max(acknowledged, told.acknowledged.sequence)
            await eventually(lambda: get(server, "/node/edge-1")["status"] == "ready")
            instance = get(server, f"/instance/{facts['running']}")
            assert (instance["status"], instance["node_id"]) == ("RUNNING", facts["node"])
            assert get(server, f"/instance/{facts['stopped']}")["status"] == "STOPPED"
            await stream.cancel()
