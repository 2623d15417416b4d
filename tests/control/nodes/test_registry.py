"""The registry of nodes: coming and going, subnets, what operators say, what placement may know."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.nodes import registry as registry
from skerry.control.nodes.subnets import SubnetPool
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import ForeignReport, Node, ReportedInstance
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import InstanceStatus, NodeStatus
from tests.support.fleets import FACTS, ROOM, Fleet, fleet_on, instance_on
from tests.support.waiting import eventually


def unschedulable_reason(fleet: Fleet, id: str) -> str:
    condition = fleet.nodes.condition(NodeId(id))
    assert condition is not None
    assert condition.view.is_schedulable == (not condition.view.unschedulable_reason)
    return condition.view.unschedulable_reason


# coming


async def test_a_new_node_is_ready_and_has_a_subnet_of_its_own(fleet):
    node = await fleet.join("n1", name="edge")
    assert node.status is NodeStatus.READY
    assert node.subnet == "10.64.0.0/24"
    assert (node.name, node.facts, node.resources) == ("edge", FACTS, ROOM)
    assert fleet.nodes.get("n1") == node
    [told] = await fleet.events("node.registered")
    assert told.subject == "node/n1"
    assert told.data == {"name": "edge", "subnet": "10.64.0.0/24"}


async def test_a_node_that_says_the_same_again_writes_nothing(fleet):
    node = await fleet.join("n1")
    before = await fleet.store.revision()
    assert await fleet.join("n1") == node
    assert await fleet.store.revision() == before


async def test_a_node_with_other_facts_or_room_is_written_and_keeps_its_subnet(fleet):
    before = await fleet.join("n1")
    more = Resources(Millicores(8000), ROOM.memory, ROOM.disk)
    after = await fleet.nodes.register("n1", NodeHello("machine-n1", replace(FACTS, kernel="6.2"), more))
    assert (after.facts.kernel, after.resources, after.subnet) == ("6.2", more, before.subnet)
    assert len(await fleet.events("node.changed")) == 1


async def test_labels_count_when_a_node_is_new_and_are_the_operators_from_then_on(fleet):
    await fleet.nodes.register("n1", NodeHello("a", FACTS, ROOM, {"zone": "edge"}))
    await fleet.nodes.relabel("n1", {"zone": "core", "disk": "fast"}, actor="test")
    node = await fleet.nodes.register("n1", NodeHello("a", FACTS, ROOM, {"zone": "edge"}))
    assert node.labels == {"zone": "core", "disk": "fast"}


@pytest.mark.parametrize("id", ["", "a/b", "../x", "-", "x" * 129])
async def test_an_id_that_is_none_is_refused(fleet, id):
    with pytest.raises(errors.Invalid):
        await fleet.join(id)
    assert not fleet.nodes.list()


async def test_bad_labels_and_names_are_refused_and_leave_nothing(fleet):
    for name, labels in [("x\n", {}), ("x", {"a b": "c"}), ("x", {"a": "\0"}), ("x" * 300, {})]:
        with pytest.raises(errors.Invalid):
            await fleet.nodes.register("n1", NodeHello(name, FACTS, ROOM, labels))
    assert not (await fleet.store.range("node/")).entries
    assert not (await fleet.store.range("subnet/")).entries


async def test_a_node_is_found_by_its_name_if_only_one_has_it(fleet):
    node = await fleet.join("n1", name="edge")
    assert fleet.nodes.get("edge") == node
    await fleet.join("n2", name="edge")
    with pytest.raises(errors.FailedPrecondition, match="n1, n2"):
        fleet.nodes.get("edge")
    with pytest.raises(errors.NotFound, match="skerry node list"):
        fleet.nodes.get("nowhere")


# subnets


async def test_each_node_gets_the_next_subnet_that_is_free(fleet):
    assert [(await fleet.join(f"n{i}")).subnet for i in range(3)] == [
        "10.64.0.0/24",
        "10.64.1.0/24",
        "10.64.2.0/24",
    ]


async def test_a_subnet_that_a_node_has_already_is_its_own_if_it_is_free(fleet):
    assert (await fleet.join("n1", subnet="10.70.3.0/24")).subnet == "10.70.3.0/24"
    assert (await fleet.join("n2", subnet="10.70.3.0/24")).subnet == "10.64.0.0/24"


async def test_a_known_node_gets_the_subnet_that_its_containers_have_if_it_is_free(fleet):
    assert (await fleet.join("n1")).subnet == "10.64.0.0/24"
    assert (await fleet.join("n1", subnet="10.70.3.0/24")).subnet == "10.70.3.0/24"
    assert (await fleet.join("n2", subnet="10.70.3.0/24")).subnet == "10.64.1.0/24", "it is n1's"
    assert (await fleet.join("n1", subnet="10.64.1.0/24")).subnet == "10.70.3.0/24", "it is n2's"
    kept = {entry.key for entry in (await fleet.store.range("subnet/")).entries}
    assert kept == {"subnet/10.64.0.0-24", "subnet/10.64.1.0-24", "subnet/10.70.3.0-24"}


async def test_a_former_subnet_is_nobody_elses_for_ten_minutes(fleet, clock):
    await fleet.join("n1")
    await fleet.join("n1", subnet="10.70.3.0/24")
    assert (await fleet.join("n2", subnet="10.64.0.0/24")).subnet == "10.64.1.0/24"
    clock.advance(600)
    await fleet.store.expire()
    await eventually(lambda: not fleet.nodes._subnets.former_of("n1"))
    assert (await fleet.join("n2", subnet="10.64.0.0/24")).subnet == "10.64.0.0/24"
    assert fleet.nodes.get("n1").subnet == "10.70.3.0/24"


async def test_a_former_subnet_is_kept_back_while_the_node_has_containers_with_its_addresses(fleet, clock):
    await fleet.join("n1")
    await fleet.join("n1", subnet="10.70.3.0/24")
    await fleet.join("n1", former=["10.64.0.0/24", "10.64.9.0/24"])
    clock.advance(10_000)
    await fleet.store.expire()
    assert (await fleet.join("n2", subnet="10.64.0.0/24")).subnet == "10.64.1.0/24"
    assert (await fleet.join("n3", subnet="10.64.9.0/24")).subnet == "10.64.9.0/24", "it was never n1's"
    before = await fleet.store.revision()
    await fleet.join("n1", former=["10.64.0.0/24"])
    assert await fleet.store.revision() == before, "nothing is new"
    await fleet.join("n1")  # the last of them has ended
    assert (await fleet.join("n4", subnet="10.64.0.0/24")).subnet == "10.64.2.0/24"
    clock.advance(600)
    await fleet.store.expire()
    await eventually(lambda: not fleet.nodes._subnets.former_of("n1"))
    assert (await fleet.join("n5", subnet="10.64.0.0/24")).subnet == "10.64.0.0/24"


async def test_a_node_gets_a_former_subnet_back_and_unregistering_keeps_all_of_them_for_a_while(fleet, clock):
    await fleet.join("n1")
    await fleet.join("n1", subnet="10.70.3.0/24")
    assert (await fleet.join("n1", subnet="10.64.0.0/24")).subnet == "10.64.0.0/24"
    await fleet.join("n1", former=["10.70.3.0/24"])
    await fleet.nodes.unregister("n1", actor="test")
    assert (await fleet.join("n2", subnet="10.70.3.0/24")).subnet == "10.64.1.0/24"
    clock.advance(600)
    await fleet.store.expire()
    assert [entry.key for entry in (await fleet.store.range("subnet/")).entries] == ["subnet/10.64.1.0-24"]


async def test_a_node_that_asks_for_one_subnet_after_another_keeps_a_few_of_them_back(fleet):
    for number in range(30):
        await fleet.join("n1", subnet=f"10.70.{number}.0/24")
    assert len((await fleet.store.range("subnet/")).entries) == 9
    assert fleet.nodes.get("n1").subnet == "10.70.29.0/24"


async def test_a_node_never_has_a_subnet_that_its_machine_reaches_otherwise(fleet):
    occupied = ("10.64.0.0/23", "192.0.2.0/24", "rubbish")
    assert (await fleet.join("n1", occupied=occupied)).subnet == "10.64.2.0/24"
    assert (await fleet.join("n2", subnet="10.64.1.0/24", occupied=occupied)).subnet == "10.64.3.0/24"
    again = await fleet.join("n1", subnet="10.64.2.0/24", occupied=("10.64.2.0/24",))
    assert again.subnet == "10.64.0.0/24", "it has one of its own since"
    with pytest.raises(errors.ResourcesExhausted, match="overlaps a network that the node reaches already"):
        await fleet.join("n3", occupied=("10.0.0.0/8",))


@pytest.mark.parametrize(
    "proposal", ["8.8.8.0/24", "10.64.0.0/16", "10.64.0.0/25", "10.0.0.0/8", "rubbish", "::/24"]
)
async def test_a_proposal_that_cannot_stand_beside_the_pool_is_not_taken(fleet, proposal):
    assert (await fleet.join("n1", subnet=proposal)).subnet == "10.64.0.0/24"


async def test_a_subnet_of_a_nodes_own_settings_may_lie_outside_of_the_pool(fleet):
    assert (await fleet.join("n1", subnet="192.168.7.0/25")).subnet == "192.168.7.0/25"
    assert (await fleet.join("n2", subnet="192.168.7.64/26")).subnet == "10.64.0.0/24", "it is n1's"
    assert (await fleet.join("n3", subnet="192.168.7.128/25")).subnet == "192.168.7.128/25"


async def test_many_nodes_at_once_get_different_subnets(fleet):
    joined = await asyncio.gather(*(fleet.join(f"n{i}") for i in range(100)))
    assert len({node.subnet for node in joined}) == 100


async def test_two_servers_never_give_one_subnet_twice(store, clock):
    async with fleet_on(store, clock) as one, fleet_on(store, clock, server="http://two") as two:
        joined = await asyncio.gather(
            *(server.join(f"n{i}-{number}") for number in range(20) for i, server in enumerate((one, two)))
        )
    assert len({node.subnet for node in joined}) == 40


async def test_one_node_at_two_servers_at_once_is_one_node(store, clock):
    async with fleet_on(store, clock) as one, fleet_on(store, clock, server="http://two") as two:
        first, second = await asyncio.gather(one.join("n1"), two.join("n1"))
    assert first.subnet == second.subnet
    assert len((await store.range("subnet/")).entries) == 1


async def test_when_all_subnets_are_taken_the_next_node_is_told_what_to_do(store, clock):
    async with fleet_on(store, clock, FleetSettings(subnets="10.9.0.0/23")) as fleet:
        await fleet.join("n1")
        await fleet.join("n2")
        with pytest.raises(errors.ResourcesExhausted, match=r"fleet\.subnets"):
            await fleet.join("n3")
        assert [node.id for node in fleet.nodes.list()] == ["n1", "n2"]


@pytest.mark.parametrize("pool", ["10.0.0.0/24", "10.0.0.0/7", "10.0.0.1/16", "fe80::/16", "x"])
def test_a_pool_that_is_none_is_refused(pool):
    with pytest.raises(errors.Invalid):
        SubnetPool(pool, 0)


def test_clouds_begin_at_different_places_of_the_pool():
    assert SubnetPool("10.64.0.0/10", 7).choose() == "10.64.7.0/24"
    assert SubnetPool("10.0.0.0/23", 3).choose() == "10.0.1.0/24"


@given(st.integers(0, 2**32), st.lists(st.integers(0, 9), max_size=60))
def test_a_pool_gives_the_first_free_subnet_after_its_start(start, moves):
    pool, model = SubnetPool("10.0.0.0/21", start), list[str]()
    order = [f"10.0.{(start + place) % 8}.0/24" for place in range(8)]
    for move in moves:
        if move < 5:
            free = next((subnet for subnet in order if subnet not in model), None)
            if free is None:
                with pytest.raises(errors.ResourcesExhausted):
                    pool.choose()
                continue
            assert pool.choose() == free
            pool.take(free)
            model.append(free)
        elif model:
            pool.free(model.pop(move % len(model)))
    assert all(pool.is_free(subnet) == (subnet not in model) for subnet in order)


# going


async def test_a_node_that_left_is_gone_and_its_subnet_is_kept_for_a_while(fleet):
    await fleet.join("n1")
    await fleet.nodes.unregister("n1", actor="token:x")
    assert not fleet.nodes.list()
    [told] = await fleet.events("node.unregistered")
    assert told.actor == "token:x"
    assert (await fleet.join("n2")).subnet == "10.64.1.0/24"
    await fleet.pass_time(registry.SUBNET_GRACE_S + 1)
    await eventually(lambda: len(fleet.nodes.list()) == 1)
    assert (await fleet.join("n3")).subnet == "10.64.0.0/24"


async def test_a_node_that_comes_back_soon_has_the_same_subnet_for_good(fleet):
    before = await fleet.join("n1")
    await fleet.nodes.unregister("n1", actor="test")
    assert (await fleet.join("n1")).subnet == before.subnet
    await fleet.pass_time(registry.SUBNET_GRACE_S + 1)
    assert (await fleet.join("n2")).subnet != before.subnet


async def test_a_node_with_instances_is_not_unregistered_unless_forced(fleet):
    await fleet.join("n1")
    await fleet.bind(instance_on("n1", "i1"))
    await fleet.bind(instance_on("n1", "i2", status=InstanceStatus.FAILED))
    with pytest.raises(errors.FailedPrecondition, match=r"1 instances.*drain"):
        await fleet.nodes.unregister("n1", actor="test")
    assert fleet.nodes.list()
    await fleet.nodes.unregister("n1", actor="test", force=True)
    assert not fleet.nodes.list()
    assert fleet.nodes.condition(NodeId("n1")) is None


async def test_an_unknown_node_cannot_be_spoken_of(fleet):
    for word in (
        fleet.nodes.unregister("n1", actor="test"),
        fleet.nodes.cordon("n1", actor="test"),
        fleet.nodes.uncordon("n1", actor="test"),
        fleet.nodes.drain("n1", actor="test"),
        fleet.nodes.relabel("n1", {}, actor="test"),
        fleet.nodes.report("n1", NodeStatus.READY),
    ):
        with pytest.raises(errors.NotFound):
            await word


async def test_a_node_whose_disk_takes_no_writes_takes_nothing_new_until_it_does(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    pressed = replace(FACTS, disk_pressure="the disk of /data takes no writes")
    await fleet.nodes.register("n1", NodeHello("machine-n1", pressed, ROOM))
    await eventually(lambda: unschedulable_reason(fleet, "n1") == "has DiskPressure")
    await fleet.join("n1")
    await eventually(lambda: unschedulable_reason(fleet, "n1") == "")


# what operators say


async def test_a_cordoned_node_takes_nothing_new(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    assert unschedulable_reason(fleet, "n1") == ""
    await fleet.nodes.cordon("n1", actor="token:x", reason="new disks")
    assert unschedulable_reason(fleet, "n1") == "is cordoned"
    [told] = await fleet.events("node.cordoned")
    assert (told.actor, told.reason) == ("token:x", "new disks")
    await fleet.nodes.cordon("n1", actor="token:x")
    assert len(await fleet.events("node.cordoned")) == 1
    await fleet.nodes.uncordon("n1", actor="token:x")
    assert unschedulable_reason(fleet, "n1") == ""


async def test_a_drain_ends_when_the_node_is_empty(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.bind(instance_on("n1", "i1"))
    node = await fleet.nodes.drain("n1", actor="test")
    assert node.status is NodeStatus.DRAINING
    assert node.drain_by == fleet.clock.now() + FleetSettings().drain_s
    assert unschedulable_reason(fleet, "n1") == "is draining"
    await fleet.settle()
    assert fleet.nodes.get("n1").status is NodeStatus.DRAINING
    await fleet.bind(instance_on("n2", "i1"))
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)
    assert unschedulable_reason(fleet, "n1") == "is drained"
    [told] = await fleet.events("node.drained")
    assert told.reason == "it is empty"


async def test_a_drain_ends_at_its_deadline_with_whatever_is_left(fleet):
    await fleet.join("n1")
    await fleet.bind(instance_on("n1", "i1"))
    await fleet.nodes.drain("n1", actor="test", by=fleet.clock.now() + 5)
    await fleet.hear("n1")
    fleet.clock.advance(5)
    await fleet.hear("n1")
    await fleet.nodes.relabel("n1", {"a": "b"}, actor="test")
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)
    assert (await fleet.events("node.drained"))[0].reason == "its time is up"
    condition = fleet.nodes.condition(NodeId("n1"))
    assert condition is not None
    assert condition.drain_by is not None


async def test_the_progress_of_a_drain_has_each_number_of_instances_until_the_node_is_empty(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    for id in ("i1", "i2"):
        await fleet.bind(instance_on("n1", id))
    await fleet.nodes.drain("n1", actor="test")
    progress = fleet.nodes.drain_progress(NodeId("n1"))
    assert await anext(progress) == 2
    for moved, left in (("i1", 1), ("i2", 0)):
        await fleet.bind(instance_on("n2", moved))
        assert await asyncio.wait_for(anext(progress), 5) == left
    with pytest.raises(StopAsyncIteration):
        await anext(progress)


async def test_the_progress_of_a_drain_ends_at_its_deadline(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.bind(instance_on("n1", "i1"))
    await fleet.nodes.drain("n1", actor="test", by=fleet.clock.now() + 5)
    progress = fleet.nodes.drain_progress(NodeId("n1"))
    assert await anext(progress) == 1
    fleet.clock.advance(5)
    await fleet.nodes.relabel("n1", {"a": "b"}, actor="test")
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(progress), 5)


async def test_the_end_of_a_drain_needs_no_other_news(store, clock):
    async with fleet_on(store, clock) as fleet:
        await fleet.join("n1")
        await fleet.bind(instance_on("n1", "i1"))
        await fleet.nodes.drain("n1", actor="test", by=clock.now() + 0.05)
        clock.advance(0.05)
        await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)


async def test_a_drained_node_that_is_uncordoned_takes_instances_again(fleet):
    await fleet.join("n1")
    await fleet.hear("n1")
    await fleet.nodes.drain("n1", actor="test")
    await eventually(lambda: fleet.nodes.get("n1").status is NodeStatus.DRAINED)
    node = await fleet.nodes.uncordon("n1", actor="test")
    assert (node.status, node.drain_by, node.is_cordoned, node.reason) == (NodeStatus.READY, None, False, "")
    assert unschedulable_reason(fleet, "n1") == ""
    assert await fleet.nodes.uncordon("n1", actor="test") == node
    assert len(await fleet.events("node.uncordoned")) == 1


async def test_two_operators_at_two_servers_do_not_undo_each_other(store, clock):
    async with fleet_on(store, clock) as one, fleet_on(store, clock, server="http://two") as two:
        await one.join("n1")
        await eventually(lambda: two.nodes.list())
        await asyncio.gather(
            one.nodes.cordon("n1", actor="a"), two.nodes.relabel("n1", {"zone": "edge"}, actor="b")
        )
        kept = json_codec.decode((await store.range("node/")).entries[0].value, Node)
    assert kept.is_cordoned
    assert kept.labels == {"zone": "edge"}


# what placement may know


async def test_the_reserve_is_not_offered(store, clock):
    async with fleet_on(store, clock, FleetSettings(reserve_percent=10)) as fleet:
        await fleet.join("n1")
        [condition] = fleet.nodes.conditions()
    assert condition.view.resources == Resources(Millicores(3600), Megabytes(7200), Gigabytes(90))
    assert condition.view.architecture == "amd64"


async def test_whoever_listens_hears_of_every_change(fleet):
    liveness = list[str]()
    stop = fleet.nodes.listen(liveness.append)
    await fleet.join("n1")
    await fleet.join("n2")
    await fleet.nodes.cordon("n2", actor="test")
    assert liveness == ["n1", "n2", "n2"]
    stop()
    await fleet.nodes.uncordon("n2", actor="test")
    assert len(liveness) == 3


# nodes of third parties


async def test_a_foreign_node_registers_reports_and_shows_up_but_takes_no_orders(fleet):
    node = await fleet.join("kudo", foreign=True)
    assert (node.status, node.is_foreign) == (NodeStatus.REGISTERING, True)
    assert node.subnet
    usage = Resources(Millicores(10), Megabytes(20), Gigabytes(1))
    instance = ReportedInstance(InstanceId("x"), "web", InstanceStatus.RUNNING, usage=usage)
    node = await fleet.nodes.report("kudo", NodeStatus.READY, usage=usage, instances=[instance])
    assert node.status is NodeStatus.READY
    assert fleet.nodes.get("kudo") == node
    assert unschedulable_reason(fleet, "kudo") == "takes no orders"
    told = ForeignReport(fleet.clock.now(), usage, (instance,))
    assert fleet.nodes.foreign_report(NodeId("kudo")) == told
    fleet.clock.advance(1)
    await fleet.nodes.report("kudo", NodeStatus.READY)  # what is left out stays
    assert fleet.nodes.foreign_report(NodeId("kudo")) == replace(told, at=fleet.clock.now())
    await eventually(lambda: fleet.nodes.heartbeat(NodeId("kudo")))


async def test_a_foreign_node_that_reports_the_same_writes_nothing_but_its_first_sign_of_life(fleet):
    await fleet.join("kudo", foreign=True)
    await fleet.nodes.report("kudo", NodeStatus.READY, resources=ROOM)
    await eventually(lambda: fleet.nodes.heartbeat(NodeId("kudo")))
    before = await fleet.store.revision()
    for number in range(10):
        await fleet.nodes.report("kudo", NodeStatus.READY, resources=ROOM, reason=f"report {number}")
    await fleet.nodes.heartbeats.publish()
    assert await fleet.store.revision() == before


async def test_nobody_reports_for_a_node_that_has_a_session(fleet):
    await fleet.join("n1")
    with pytest.raises(errors.FailedPrecondition, match="its own session"):
        await fleet.nodes.report("n1", NodeStatus.LOST)
    assert fleet.nodes.get("n1").status is NodeStatus.READY


async def test_nobody_takes_a_node_over_by_registering_as_the_other_kind(fleet):
    await fleet.join("n1")
    with pytest.raises(errors.AlreadyExists):
        await fleet.join("n1", foreign=True)
    await fleet.join("kudo", foreign=True)
    with pytest.raises(errors.AlreadyExists):
        await fleet.join("kudo")


async def test_a_foreign_node_that_left_comes_back_by_registering(fleet):
    await fleet.join("kudo", foreign=True)
    await fleet.nodes.report("kudo", NodeStatus.LEFT)
    assert (await fleet.join("kudo", foreign=True)).status is NodeStatus.REGISTERING


async def test_a_foreign_node_is_not_drained(fleet):
    await fleet.join("kudo", foreign=True)
    with pytest.raises(errors.FailedPrecondition):
        await fleet.nodes.drain("kudo", actor="test")


async def fall_silent(fleet: Fleet) -> None:
    """Let so much time pass without a word that every node is lost."""
    for _ in range(2):  # first its server does not hear it any more, then everybody knows that
        await fleet.pass_time(30)


@pytest.mark.parametrize("last_word", [NodeStatus.READY, NodeStatus.LEFT, NodeStatus.LOST])
async def test_a_foreign_node_that_is_lost_for_the_time_of_the_setting_is_forgotten(store, clock, last_word):
    async with fleet_on(store, clock, FleetSettings(forget_foreign_after_s=100)) as fleet:
        await fleet.join("n1")
        await fleet.join("kudo", foreign=True)
        await fleet.nodes.report("kudo", last_word)
        await fall_silent(fleet)
        assert fleet.nodes.get("kudo").status in (NodeStatus.LOST, NodeStatus.LEFT)
        lost_at = fleet.nodes.get("kudo").reported_at
        clock.advance(lost_at + 99 - clock.now())
        await fleet.settle()
        assert fleet.nodes.get("kudo").reported_at == lost_at
        clock.advance(1)
        await fleet.settle()
        await eventually(lambda: [node.id for node in fleet.nodes.list()] == ["n1"])
        [told] = await fleet.events("node.unregistered")
        assert (told.subject, told.actor, told.reason) == ("node/kudo", "skerry", "it was lost for 100 s")
        assert fleet.nodes.foreign_report(NodeId("kudo")) is None
        assert (await fleet.join("kudo", foreign=True)).status is NodeStatus.REGISTERING


async def test_that_a_foreign_node_is_forgotten_needs_no_other_news(store, clock):
    async with fleet_on(store, clock, FleetSettings(forget_foreign_after_s=0.05)) as fleet:
        await fleet.join("kudo", foreign=True)
        await fleet.nodes.report("kudo", NodeStatus.READY)
        await fall_silent(fleet)
        clock.advance(0.05)
        await eventually(lambda: fleet.nodes.list() == [])


async def test_a_foreign_node_that_is_heard_is_never_forgotten_whatever_it_says_of_itself(store, clock):
    async with fleet_on(store, clock, FleetSettings(forget_foreign_after_s=10)) as fleet:
        await fleet.join("n1")
        await fleet.join("kudo", foreign=True)
        for _ in range(10):
            await fleet.nodes.report("kudo", NodeStatus.LOST)
            clock.advance(5)
            await fleet.settle()
        assert fleet.nodes.get("kudo").status is NodeStatus.LOST


@pytest.mark.parametrize("setting", [0.0, 10.0])
async def test_a_node_with_a_session_is_never_forgotten_and_no_other_if_the_setting_is_0(
    store, clock, setting
):
    async with fleet_on(store, clock, FleetSettings(forget_foreign_after_s=setting)) as fleet:
        for id in ("n1", "n2"):
            await fleet.join(id)
        if not setting:
            await fleet.join("kudo", foreign=True)
        before = fleet.nodes.list()
        await fall_silent(fleet)
        clock.advance(1e6)
        await fleet.settle()
        assert len(fleet.nodes.list()) == len(before)
        assert await fleet.events("node.unregistered") == []


async def test_a_foreign_node_that_was_lost_before_this_server_started_has_the_time_to_speak(store, clock):
    async with fleet_on(store, clock) as before:
        await before.join("kudo", foreign=True)
        await fall_silent(before)
        assert before.nodes.get("kudo").status is NodeStatus.LOST
    clock.advance(1e6)
    async with fleet_on(store, clock) as after:
        await after.join("n1")
        await after.settle()
        assert after.nodes.get("kudo").status is NodeStatus.LOST
        await fall_silent(after)
        await eventually(lambda: [node.id for node in after.nodes.list()] == ["n1"])


@pytest.mark.parametrize("by", [float("nan"), float("inf"), float("-inf")])
async def test_a_drain_without_a_real_end_is_refused(fleet, by):
    await fleet.join("n1")
    with pytest.raises(errors.Invalid, match="number of seconds"):
        await fleet.nodes.drain("n1", actor="test", by=by)
    assert fleet.nodes.get("n1").status is NodeStatus.READY
