"""A borrowed node in the mesh of its buyer: what it gets to know, and what is believed of it."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from skerry.model.ids import InstanceId, NodeId
from skerry.model.network_objects import NetworkObject, ObjectChange, ServiceSubnet
from skerry.model.node_messages import NetworkUpdate, ReportAck, ReportBatch
from skerry.model.offline_tokens import TokenKey
from skerry.model.orders import InstanceReport
from skerry.model.statuses import InstanceStatus
from tests.market.buyer.test_borrowed_node_controller import NODE, world
from tests.support.waiting import eventually


class FakeNetwork:
    """A source of network objects."""

    def objects(self, node: NodeId) -> list[NetworkObject]:
        return [ServiceSubnet("10.63.0.0/16"), TokenKey("1", "x")]

    def listen(self, changed: ObjectChange) -> None:
        pass

    async def ready(self) -> None:
        pass


async def test_a_node_of_a_trusted_peer_is_in_our_network_and_gets_no_more_of_it_than_that_takes() -> None:
    async with world(mesh=True) as made:
        made.network.add(FakeNetwork())
        await made.opened()
        node = made.fleet.nodes.get(NODE)
        assert node.has_network
        assert made.landlord.welcome is not None
        assert made.landlord.welcome.joins_mesh
        (update,) = await eventually(lambda: made.told(NetworkUpdate))
        assert update.objects == (ServiceSubnet("10.63.0.0/16"),)


async def test_a_node_leaves_our_network_when_its_peer_is_no_longer_trusted() -> None:
    async with world(mesh=True) as made:
        made.network.add(FakeNetwork())
        await made.opened()
        await made.set_peer(mesh=False)
        await made.until(lambda: made.landlord.doors == 2 and not made.fleet.nodes.get(NODE).has_network)
        assert made.landlord.welcome is not None
        await made.until(lambda: not made.landlord.welcome.joins_mesh)


@pytest.mark.parametrize("address", ["10.64.0.7", "10.65.0.7", "nonsense"])
async def test_a_node_in_our_network_has_addresses_of_its_own_subnet_only(address: str) -> None:
    async with world(mesh=True) as made:
        made.network.add(FakeNetwork())
        await made.opened()
        subnet = IPv4Network(made.fleet.nodes.get(NODE).subnet)
        own = str(subnet[7])
        assert made.landlord.guest is not None
        reports = [
            InstanceReport(InstanceId(id), 1, InstanceStatus.RUNNING, 1.0, ip=ip)
            for id, ip in (("a", own), ("b", address))
        ]
        await made.landlord.guest.send(ReportBatch(1, tuple(reports)))
        await eventually(lambda: made.told(ReportAck))
        ((_, seen),) = made.instances.reports
        assert [each.ip for each in seen] == [own, address if address == own else ""]
