"""The doors of contracts over real WebSockets, with a real ledger; cells and the way to them are a test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
from aiohttp import WSMsgType

from skerry.control.instance_index import InstanceListener, InstanceRecord
from skerry.control.sessions.tunnels import TunnelBroker, TunnelEndpoint
from skerry.kit import json_codec, pki
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer.provider_client import RemoteContractStatus
from skerry.market.provider.contract_cells import cell_id_for, cell_spec_for
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.ids import ContractId, InstanceId, NodeId
from skerry.model.market import EndReason
from skerry.model.statuses import InstanceStatus
from skerry.model.streams import (
    MAX_FRAME,
    GuestSessionRequest,
    GuestStreamRequest,
    LogStreamRequest,
    StreamRequest,
    TunnelChannel,
    TunnelFrame,
)
from skerry.model.workloads import Instance, ObservedState
from skerry.store.tables.table import Record
from skerry.transport.proto import nodes_pb2 as pb
from skerry.wire.rear import client_documents
from skerry.wire.rear.contract_status import PROTOCOL, ContractStatusMessage
from skerry.wire.rear.tunnel_server import MAX_TUNNELS, ContractTunnelServer
from tests.support.deals import OPEN
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.http.conftest import serving
from tests.transport.http.talking import Answer
from tests.wire.rear.conftest import Market, market_of
from tests.wire.rear.nouns import CONTRACT, START

N = NodeId("n")
NodeSide = Callable[[StreamRequest, TunnelEndpoint], Awaitable[None]]


class Cells:
    """Instances as a test wants them."""

    def __init__(self) -> None:
        self._known: dict[str, InstanceRecord] = {}
        self._listeners: list[InstanceListener] = []

    def get(self, id: str) -> Instance:
        if id not in self._known:
            raise errors.NotFound("there is no such instance")
        return self._known[id].value

    def listen(self, changed: InstanceListener) -> Callable[[], None]:
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def put(self, one: Instance) -> None:
        before, after = self._known.get(one.id), Record(one, 1)
        self._known[one.id] = after
        for changed in self._listeners:
            changed(before, after)


async def echo(ask: StreamRequest, end: TunnelEndpoint) -> None:
    while (frame := await end.receive()) is not None:
        await end.send(frame)
    await end.end()


@dataclass
class Ways:
    """One node, which does what a test says with every tunnel that it is asked for."""

    node: NodeSide = echo
    asks: list[tuple[NodeId, InstanceId, StreamRequest]] = field(default_factory=list)
    tunnels: TunnelBroker = field(default_factory=TunnelBroker)

    @asynccontextmanager
    async def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: StreamRequest
    ) -> AsyncIterator[TunnelEndpoint]:
        self.asks.append((node, instance, ask))
        tasks: list[asyncio.Future[None]] = []

        async def dial(id: str) -> None:
            async with self.tunnels.dialled(node, id) as end:
                try:
                    await self.node(ask, end)
                except errors.SkerryError as error:
                    await end.fail(error)

        try:
            async with self.tunnels.open(
                node, lambda id: tasks.append(asyncio.ensure_future(dial(id)))
            ) as end:
                yield end
        finally:
            await cancel_and_wait(tasks)


@dataclass
class Visits:
    """Who is at its door, and who has ever come."""

    there: list[ContractId] = field(default_factory=list)
    came: list[ContractId] = field(default_factory=list)

    async def mark_connected(self, id: ContractId) -> None:
        self.came.append(id)

    @asynccontextmanager
    async def connected(self, id: ContractId) -> AsyncIterator[None]:
        self.there.append(id)
        try:
            yield
        finally:
            self.there.remove(id)


class Door:
    """A buyer's end."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def text(self) -> Any:
        return json.loads(await self.socket.receive_str(timeout=PATIENCE_S))

    async def frame(self) -> pb.Frame:
        frame = pb.Frame()
        frame.ParseFromString(await self.socket.receive_bytes(timeout=PATIENCE_S))
        return frame

    async def send(self, message: pb.Frame | pb.OpenTunnel) -> None:
        await self.socket.send_bytes(message.SerializeToString())

    async def closed(self) -> tuple[int, str]:
        """The code and the reason of the close, which comes next."""
        message = await self.socket.receive(timeout=PATIENCE_S)
        assert message.type is WSMsgType.CLOSE, message
        return message.data, message.extra


@dataclass
class Hall:
    """A provider with one contract, whose cell runs unless a test says otherwise."""

    market: Market
    cells: Cells
    ways: Ways
    visits: Visits
    contract: Any  # as the purchase answered it

    @property
    def id(self) -> ContractId:
        return ContractId(self.contract["ContractID"])

    @property
    def token(self) -> str:
        return str(self.contract["Credentials"]["token"])

    def seen(self, status: InstanceStatus, reason: str = "", node: NodeId | None = N) -> None:
        contract = self.market.ledger.contract(self.id).contract
        observed = ObservedState(status, 1.0, reason)
        self.cells.put(Instance(cell_id_for(self.id), cell_spec_for(contract), 1.0, observed, node=node))

    async def open(self, what: str = "door") -> Door:
        socket = await self.market.session.ws_connect(
            f"/api/contracts/{self.id}/{what}",
            protocols=(PROTOCOL,),
            headers={"Authorization": f"Skerry-Contract {self.token}"},
        )
        assert socket.protocol == PROTOCOL
        return Door(socket)

    async def ask(self, what: str = "door", token: str | None = None, id: str = "") -> Answer:
        """The handshake as plain HTTP, for what is refused."""
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        if token is not None:
            headers["Authorization"] = token
        return await self.market.get(f"/api/contracts/{id or self.id}/{what}", headers=headers)

    @property
    def good(self) -> str:
        return f"Skerry-Contract {self.token}"


@pytest.fixture
async def hall(cloud: pki.CertificateAuthority, provider: SigningKey) -> AsyncIterator[Hall]:
    clock, cells, ways, visits = ManualClock(), Cells(), Ways(), Visits()
    with structlog.testing.capture_logs() as logs:
        async with market_of(provider, clock, OPEN) as (ledger, rear):
            tunnels = ContractTunnelServer(
                ledger,
                ContractCredentials(provider),
                cells,
                ways,
                visits,
                provider=provider.cloud,
                name="skerry.example",
                url="https://192.0.2.1:1323",
            )
            rear = msgspec.structs.replace(rear, tunnels=tunnels)
            async with serving(cloud, rear=rear) as site:
                market = Market(site, await site.session(), ledger, rear, clock, provider)
                await market.sell()
                held = await market.reserve(2, 1024)
                bought = await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})
                one = Hall(market, cells, ways, visits, bought.json)
                one.seen(InstanceStatus.RUNNING)
                yield one
    assert one.token not in str(logs)


async def test_frames_go_both_ways_and_texts_tell_of_the_contract(hall: Hall) -> None:
    door = await hall.open()
    told = await door.text()
    contract = hall.market.ledger.contract(hall.id).contract
    assert (told["contract"], told["ended"], told["cell"]) == (hall.id, None, "running")
    assert told["ends"] == hall.contract["ExpirationTime"]
    assert hall.ways.asks == [(N, cell_id_for(hall.id), GuestSessionRequest())]
    await door.send(pb.Frame(data=b"hello"))
    assert (await door.frame()).data == b"hello"
    assert hall.visits.there == [hall.id]
    await hall.market.ledger.release(hall.id, contract.buyer)
    assert (await door.text())["ended"] == "released"
    assert await door.closed() == (1000, "")
    await eventually(lambda: hall.visits.there == [])


async def test_every_change_is_told(hall: Hall) -> None:
    door = await hall.open()
    first = await door.text()
    hall.seen(InstanceStatus.CRASHED, "its node restarts")
    told = await door.text()
    assert (told["cell"], told["cell_reason"]) == ("crashed", "its node restarts")
    contract = hall.market.ledger.contract(hall.id).contract
    await hall.market.ledger.renew(hall.id, contract.buyer, contract.ends_at + 3600)
    assert (await door.text())["ends"] > first["ends"]
    await hall.market.ledger.reclaim(hall.id, actor="ed", reason="repairs")
    told = await door.text()
    assert (told["reason"], told["ended"]) == ("repairs", None)
    assert told["reclaim"] is not None
    hall.market.clock.advance(120)
    await hall.market.ledger.sweep()
    assert (await door.text())["ended"] == "withdrawn"
    assert await door.closed() == (1000, "")


async def test_what_does_not_open_a_door_is_401(hall: Hall) -> None:
    foreign = ContractCredentials(SigningKey.generate()).of(hall.id)
    others = ContractCredentials(hall.market.key).of(ContractId("another"))
    for token in (
        None,
        "Bearer x",
        "Skerry-Contract",
        f"Skerry-Contract {foreign}",
        f"Skerry-Contract {others}",
    ):
        for what in ("door", "tunnel"):
            assert (await hall.ask(what, token)).status == 401
    assert hall.ways.asks == []


async def test_a_contract_that_is_over_is_410(hall: Hall) -> None:
    contract = hall.market.ledger.contract(hall.id).contract
    await hall.market.ledger.release(hall.id, contract.buyer)
    answer = await hall.ask(token=hall.good)
    assert (answer.status, answer.json["code"]) == (410, "expired")
    assert "has been released" in answer.json["error"]
    forgotten = ContractCredentials(hall.market.key).of(ContractId("forgotten"))
    assert (await hall.ask(token=f"Skerry-Contract {forgotten}", id="forgotten")).status == 410


async def test_a_cell_that_is_not_there_yet_is_503_with_the_reason(hall: Hall) -> None:
    hall.seen(InstanceStatus.SCHEDULING, "1 node: is cordoned", node=None)
    answer = await hall.ask(token=hall.good)
    assert answer.status == 503
    assert "SCHEDULING (1 node: is cordoned); try again" in answer.json["error"]
    assert hall.visits.came == [hall.id], "that its buyer could not be let in is no fault of it"
    hall.cells._known.clear()
    answer = await hall.ask("tunnel", hall.good)
    assert (answer.status, "is being made" in answer.json["error"]) == (503, True)


async def test_a_node_that_refuses_is_told_before_the_door_opens(hall: Hall) -> None:
    class Away(Ways):
        def open_tunnel(self, node: NodeId, instance: InstanceId, ask: StreamRequest) -> Any:
            raise errors.Unavailable("node n is not connected")

    tunnels = hall.market.rear.tunnels
    assert tunnels is not None
    tunnels.dialer = Away()
    answer = await hall.ask(token=hall.good)
    assert (answer.status, answer.json["error"]) == (503, "node n is not connected")
    assert hall.visits.there == []


async def test_a_server_that_does_not_lend_says_so(market: Market) -> None:
    hall = Hall(market, Cells(), Ways(), Visits(), {"ContractID": "c"})
    answer = await hall.ask(token="Skerry-Contract c.x")
    assert (answer.status, "lends nothing" in answer.json["error"]) == (503, True)


async def test_who_comes_anew_takes_the_place_of_who_was_there(hall: Hall) -> None:
    first = await hall.open()
    await first.text()
    second = await hall.open()
    await second.text()
    code, reason = await first.closed()
    assert (code, "replaced by a newer connection" in reason) == (1011, True)
    await second.send(pb.Frame(data=b"still here"))
    assert (await second.frame()).data == b"still here"
    await eventually(lambda: hall.visits.there == [hall.id])


async def test_what_goes_wrong_at_the_node_is_a_frame_and_the_end(hall: Hall) -> None:
    async def fail(ask: StreamRequest, end: TunnelEndpoint) -> None:
        await end.receive()
        raise errors.Unavailable("this cell was taken back")

    hall.ways.node = fail
    door = await hall.open()
    await door.text()
    await door.send(pb.Frame(data=b"x"))
    failure = (await door.frame()).failure
    assert (failure.code, failure.message) == ("unavailable", "this cell was taken back")
    assert (await door.closed())[0] == 1011


async def test_a_node_that_has_no_more_to_say_ends_the_visit(hall: Hall) -> None:
    door = await hall.open()
    await door.text()
    await door.send(pb.Frame(end=pb.End()))
    assert (await door.frame()).WhichOneof("frame") == "end"
    code, reason = await door.closed()
    assert (code, "connect again" in reason) == (1011, True)


async def test_a_failure_of_the_buyer_reaches_the_node(hall: Hall) -> None:
    heard: list[str] = []

    async def listen(ask: StreamRequest, end: TunnelEndpoint) -> None:
        try:
            await end.receive()
        except errors.SkerryError as error:
            heard.append(error.message)
            raise

    hall.ways.node = listen
    door = await hall.open()
    await door.text()
    await door.send(pb.Frame(failure=pb.Failure(code="refused", message="too many")))
    await door.frame()
    assert heard == ["too many"]


@pytest.mark.parametrize("message", [b"\xff\xff\xff", pb.Frame(open="id").SerializeToString(), b""])
async def test_a_message_that_is_no_frame_ends_the_visit(hall: Hall, message: bytes) -> None:
    door = await hall.open()
    await door.text()
    await door.socket.send_bytes(message)
    code, reason = await door.closed()
    assert code == 1008
    assert "frame" in reason


async def test_a_message_that_is_too_large_or_text_ends_the_visit(hall: Hall) -> None:
    door = await hall.open()
    await door.text()
    await door.socket.send_bytes(b"x" * (MAX_FRAME + 100))
    assert (await door.closed())[0] == 1009
    door = await hall.open()
    await door.text()
    await door.socket.send_str("hello")
    assert (await door.closed())[0] == 1003


async def test_output_of_an_instance_in_the_cell_comes_by_a_tunnel(hall: Hall) -> None:
    async def write(ask: StreamRequest, end: TunnelEndpoint) -> None:
        await end.send(TunnelFrame(TunnelChannel.OUTPUT, b"one\n").pack())
        await end.end()

    hall.ways.node = write
    tunnel = await hall.open("tunnel")
    await tunnel.send(pb.OpenTunnel(id="ignored", instance="theirs", logs=pb.LogsAsk(tail=3)))
    assert (await tunnel.frame()).data == TunnelFrame(TunnelChannel.OUTPUT, b"one\n").pack()
    assert (await tunnel.frame()).WhichOneof("frame") == "end"
    assert (await tunnel.closed())[0] == 1000
    ask = GuestStreamRequest(InstanceId("theirs"), LogStreamRequest(tail=3))
    assert hall.ways.asks == [(N, cell_id_for(hall.id), ask)]


async def test_a_program_is_spoken_to_by_a_tunnel(hall: Hall) -> None:
    tunnel = await hall.open("tunnel")
    await tunnel.send(pb.OpenTunnel(instance="theirs", exec=pb.ExecAsk(arguments=["sh"], takes_input=True)))
    await tunnel.send(pb.Frame(data=b"\4ls\n"))
    assert (await tunnel.frame()).data == b"\4ls\n"
    await tunnel.socket.close()
    await eventually(lambda: hall.market.rear.tunnels is not None and not hall.market.rear.tunnels._tunnels)


@pytest.mark.parametrize(
    "asked",
    [
        pb.OpenTunnel(instance="theirs", session=pb.SessionAsk()),
        pb.OpenTunnel(instance="theirs", guest=pb.GuestAsk(instance="deeper", logs=pb.LogsAsk())),
        pb.OpenTunnel(instance="../etc", logs=pb.LogsAsk()),
        pb.OpenTunnel(instance="theirs"),
    ],
    ids=["session", "guest", "name", "nothing"],
)
async def test_only_logs_and_programs_are_reached_by_a_tunnel(hall: Hall, asked: pb.OpenTunnel) -> None:
    tunnel = await hall.open("tunnel")
    await tunnel.send(asked)
    assert (await tunnel.closed())[0] == 1008
    assert hall.ways.asks == []


async def test_a_contract_has_so_many_tunnels_and_no_more(hall: Hall) -> None:
    opened = [await hall.open("tunnel") for _ in range(MAX_TUNNELS)]
    assert (await hall.ask("tunnel", hall.good)).status == 429
    await opened[0].socket.close()
    tunnels = hall.market.rear.tunnels
    assert tunnels is not None
    await eventually(lambda: tunnels._tunnels[hall.id].taken < MAX_TUNNELS)
    await hall.open("tunnel")


async def test_the_credentials_are_shown_to_the_buyer_and_nobody_else(hall: Hall) -> None:
    path = f"/api/contracts/{hall.id}"
    assert (await hall.market.get(path)).json["Credentials"] == hall.contract["Credentials"]
    for role in (Role.ADMIN, Role.VIEWER):
        other = await hall.market.buyer(role)
        assert (await other.get(path)).json["Credentials"] is None
        (listed,) = (await other.get("/api/contracts")).json["Items"]
        assert listed["Credentials"] is None
    released = await hall.market.post(f"{path}/release")
    assert released.json["Credentials"] is None


async def test_the_credentials_are_in_every_dialect_and_the_same_again(hall: Hall) -> None:
    id = hall.contract["TransactionID"]
    token = hall.token.encode()
    again = await hall.market.post("/api/purchaseflavor", {"TransactionID": id})
    assert json.loads(again.body) == hall.contract
    v1 = await hall.market.post(f"/api/purchaseflavour/{id}", {})
    assert v1.json["contract"]["sellerCredentials"] == hall.contract["Credentials"]
    v2 = await hall.market.post(f"/api/v2/transactions/{id}/purchase", {})
    config = msgspec.json.decode(msgspec.convert(v2.json["peeringTargetCredentials"]["kubeconfig"], bytes))
    assert config["users"][0]["user"]["token"].encode() == token
    assert config["clusters"][0]["cluster"]["server"] == hall.contract["Credentials"]["endpoint"]
    for path, first in ((f"/api/purchaseflavour/{id}", v1), (f"/api/v2/transactions/{id}/purchase", v2)):
        assert (await hall.market.post(path, {})).body == first.body


async def test_the_store_never_sees_a_credential(hall: Hall) -> None:
    door = await hall.open()
    await door.text()
    store = hall.market.ledger._cache._store
    code = hall.token.rpartition(".")[2].encode()
    entries = (await store.range("")).entries
    assert any(entry.key.startswith("market/contract/") for entry in entries)
    assert not any(code in entry.value for entry in entries)


def test_what_a_buyer_is_told_of_its_contract_is_what_it_reads() -> None:
    taken_back = msgspec.structs.replace(CONTRACT, reclaim_at=START + 65, reason="repairs")
    text = json_codec.encode(ContractStatusMessage.of(taken_back, "running", "", START)).decode()
    assert json.loads(text) == {
        "contract": CONTRACT.id,
        "ends": "2023-11-15T00:13:50.000Z",
        "reclaim": "2023-11-14T22:14:25.000Z",
        "reason": "repairs",
        "ended": None,
        "cell": "running",
        "cell_reason": "",
    }
    assert client_documents.decode_status_message(text) == RemoteContractStatus(
        CONTRACT.ends_at, START + 65, "repairs", "", "running", ""
    )


def test_a_buyer_is_told_how_its_contract_ended() -> None:
    def ended(now: float, **changes: Any) -> str | None:
        return ContractStatusMessage.of(msgspec.structs.replace(CONTRACT, **changes), "", "", now).ended

    assert ended(CONTRACT.ends_at) == "expired"
    assert ended(START, reclaim_at=START) == "withdrawn"
    assert ended(START, ending=EndReason.RELEASED) == "released"
