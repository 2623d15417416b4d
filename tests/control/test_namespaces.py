"""Namespaces: names are unique in one, instances stay with their workload, ids are the cloud's."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control import instance_index
from skerry.control.instance_index import InstanceIndex
from skerry.control.instances.registry import InstanceFilter
from skerry.control.workloads import registry as workloads_registry
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.callers import MARKET
from skerry.model.ids import DEFAULT_NAMESPACE, MARKET_NAMESPACE, Namespace, WorkloadId
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, Workload, WorkloadKind
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from tests.control.worlds import Server, Standings, alone, held, instance, spec
from tests.support.waiting import eventually

SHOP = Namespace("shop")
LAB = Namespace("lab")
_PLACES = st.sampled_from([DEFAULT_NAMESPACE, SHOP, LAB])
_NAMES = st.sampled_from(["web", "shop", "default"])


async def test_a_name_is_unique_in_its_namespace_and_free_in_others() -> None:
    async with alone(leads=False) as (server, _):
        made = {}
        for namespace in (DEFAULT_NAMESPACE, SHOP, LAB):
            made[namespace], is_new = await server.workloads.create(spec(), namespace=namespace, actor="me")
            assert (is_new, made[namespace].namespace) == (True, namespace)
            with pytest.raises(errors.AlreadyExists, match="the name 'web' belongs to workload"):
                await server.workloads.create(spec(cpu=7), namespace=namespace, actor="me")
        for namespace, one in made.items():
            assert server.workloads.get("web", namespace) == one
            assert (await server.workloads.read("web", namespace)).value == one
        assert server.workloads.get("web") == made[DEFAULT_NAMESPACE]


async def test_an_id_is_found_without_a_namespace_and_in_its_own_but_in_no_other() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.workloads.create(spec(), namespace=SHOP, actor="me")
        assert server.workloads.get(made.id) == server.workloads.get(made.id, SHOP) == made
        with pytest.raises(errors.NotFound, match=r"in the namespace 'lab'; `skerry get workloads -n lab`"):
            server.workloads.get(made.id, LAB)
        with pytest.raises(errors.NotFound):
            await server.workloads.read(made.id, LAB)
        one, _ = await server.instances.create(spec(), namespace=SHOP, actor="me")
        assert server.instances.get(one.id).namespace == SHOP
        await server.instances.check_in(SHOP, one.id)
        for namespace, id in ((LAB, one.id), (SHOP, "none")):
            with pytest.raises(errors.NotFound, match=f"in the namespace '{namespace}'"):
                await server.instances.check_in(namespace, id)


async def test_an_id_that_is_anothers_name_does_not_hide_it_in_its_namespace() -> None:
    async with alone(leads=False) as (server, _):
        await server.workloads.create(spec("other"), id="web", namespace=SHOP, actor="me")
        named, _ = await server.workloads.create(spec("web"), namespace=LAB, actor="me")
        assert server.workloads.get("web", LAB) == named
        assert (await server.instances.create("web", namespace=LAB, actor="me"))[0].workload == named.id


async def test_the_same_id_in_another_namespace_is_taken() -> None:
    async with alone(leads=False) as (server, _):
        await server.workloads.create(spec(), id="mine", namespace=SHOP, actor="me")
        await server.instances.create(spec(), id="mine", namespace=SHOP, actor="me")
        with pytest.raises(errors.AlreadyExists, match="exists in another namespace"):
            await server.workloads.create(spec(), id="mine", actor="me")
        with pytest.raises(errors.AlreadyExists, match="exists in another namespace"):
            await server.instances.create(spec(), id="mine", actor="me")


async def test_an_idempotency_key_is_one_in_each_namespace() -> None:
    async with alone(leads=False) as (server, _):
        for make in (server.workloads.create, server.instances.create):
            key = make.__qualname__
            here, _ = await make(spec(), idempotency_key=key, actor="me")
            there, is_new = await make(spec(), idempotency_key=key, namespace=SHOP, actor="me")
            assert is_new
            assert here.id != there.id
            assert await make(spec(), idempotency_key=key, namespace=SHOP, actor="me") == (there, False)
            assert await make(spec(), idempotency_key=key, actor="me") == (here, False)


async def test_an_instance_is_made_only_where_its_workload_is() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.workloads.create(spec(), namespace=SHOP, actor="me")
        for name in ("web", made.id):
            one, _ = await server.instances.create(name, namespace=SHOP, actor="me")
            assert (one.namespace, one.workload) == (SHOP, made.id)
        before = await server.revision()
        with pytest.raises(
            errors.Unprocessable, match="is in the namespace 'shop', and its instances must be"
        ):
            await server.instances.create(made.id, actor="me")
        with pytest.raises(errors.NotFound, match="no workload 'web' in the namespace 'lab'"):
            await server.instances.create("web", namespace=LAB, actor="me")
        assert await server.revision() == before


async def test_an_instance_follows_only_a_workload_of_its_namespace() -> None:
    async with alone(leads=False) as (server, _):
        elsewhere, _ = await server.workloads.create(spec("far"), namespace=SHOP, actor="me")
        near, _ = await server.workloads.create(spec("near"), namespace=LAB, actor="me")
        one, _ = await server.instances.create(spec(), namespace=LAB, actor="me")
        with pytest.raises(errors.Unprocessable, match="is in the namespace 'shop'"):
            await server.instances.change(one.id, workload=elsewhere.id, actor="me")
        changed = await server.instances.change(one.id, workload="near", actor="me")
        assert (changed.workload, changed.namespace) == (near.id, LAB)


async def test_lists_and_their_totals_and_cursors_are_of_one_namespace_or_of_all() -> None:
    async with alone(leads=False) as (server, _):
        for number in range(6):
            namespace = (DEFAULT_NAMESPACE, SHOP)[number % 2]
            await server.workloads.create(spec(f"w{number}"), namespace=namespace, actor="me")
            await server.instances.create(spec(f"w{number}"), namespace=namespace, actor="me")
            server.clock.advance(1)
        for kept in (server.workloads, server.instances):
            first = kept.list(limit=2, namespace=SHOP)
            assert (first.total, [one.spec.name for one in first.items]) == (3, ["w1", "w3"])
            rest = kept.list(limit=2, namespace=SHOP, cursor=first.cursor)
            assert (rest.total, [one.spec.name for one in rest.items], rest.cursor) == (3, ["w5"], None)
            assert [one.spec.name for one in kept.list().items] == [f"w{number}" for number in range(6)]
            assert (kept.list().total, kept.list(namespace=LAB)) == (6, type(first)(0, ()))
        wanted = InstanceFilter(name="w2", states=frozenset({InstanceStatus.SCHEDULING}))
        named = server.instances.list(wanted, namespace=SHOP)
        assert named.total == 0


async def test_a_deleted_workload_takes_the_instances_of_its_own_namespace_alone() -> None:
    async with alone() as (server, _):
        for namespace in (SHOP, LAB):
            await server.workloads.create(spec(), namespace=namespace, actor="me")
        gone, _ = await server.instances.create("web", namespace=SHOP, actor="me")
        stays, _ = await server.instances.create("web", namespace=LAB, actor="me")
        await server.workloads.delete("web", namespace=SHOP, actor="me")
        await server.becomes(gone.id, None)
        assert server.status(stays.id) is InstanceStatus.SCHEDULING
        assert server.workloads.get("web", LAB).id == stays.workload
        with pytest.raises(errors.NotFound):
            server.workloads.get("web", SHOP)


async def test_what_was_stored_before_there_were_namespaces_is_in_the_default_one() -> None:
    async with alone(leads=False) as (server, _):
        old = Workload(WorkloadId("w-old"), spec(), 1.0)
        for noun, key in ((old, "workload/w-old"), (instance("i-old", workload=old.id), "instance/i-old")):
            fields = msgspec.to_builtins(noun)
            del fields["namespace"]
            await server.store.commit([Put(key, json_codec.encode(fields))])
        await server.store.commit([Put("workload-name/web", b"w-old")])
        await server.instance_table.sync()
        assert server.instances.list(namespace=DEFAULT_NAMESPACE).items[0].id == "i-old"
        assert (await server.workloads.read("web", DEFAULT_NAMESPACE)).value == old
        with pytest.raises(errors.AlreadyExists, match="belongs to workload w-old"):
            await server.workloads.create(spec(), actor="me")
        renamed = await server.workloads.change("w-old", lambda one: replace(one, name="new"), actor="me")
        assert renamed.namespace == DEFAULT_NAMESPACE
        assert (await server.workloads.create(spec(), actor="me"))[1]


def test_an_id_that_is_used_again_elsewhere_leaves_nothing_behind_where_it_was() -> None:
    before = held(instance(namespace=SHOP))
    index = InstanceIndex([before])
    index.update(before, held(replace(before.value, namespace=LAB, created_at=9.0), 2))
    assert (index.count(SHOP), index.count(LAB), index.count()) == (0, 1, 1)
    assert [known.value.namespace for known in index] == [LAB]


@given(st.lists(st.tuples(_PLACES, _NAMES, st.floats(0, 3)), max_size=30), st.data())
def test_a_census_of_many_namespaces_is_in_the_order_of_age(
    made: list[tuple[Namespace, str, float]], data: st.DataObject
) -> None:
    known = [
        held(replace(instance(f"{name}-{number}"), namespace=namespace, created_at=at))
        for number, (namespace, name, at) in enumerate(made)
    ]
    index = InstanceIndex(known)
    for gone in data.draw(st.lists(st.sampled_from(known), unique=True)) if known else ():
        index.update(gone, None)
        known.remove(gone)

    def ages(values: list[Instance]) -> list[tuple[int, str]]:
        return [(int(one.created_at * 1e6), one.id) for one in values]

    assert ages([one.value for one in index]) == sorted(ages([one.value for one in known]))
    for namespace in (DEFAULT_NAMESPACE, SHOP, LAB):
        there = [one.value for one in known if one.value.namespace == namespace]
        found = [one.value for one in index.after(None, namespace)]
        assert ages(found) == sorted(ages(there))
        assert index.count(namespace) == len(there)


@given(st.lists(st.tuples(_PLACES, _NAMES), unique=True, max_size=9))
def test_no_two_names_share_a_key(named: list[tuple[Namespace, str]]) -> None:
    assert len({workloads_registry.name_key(*one) for one in named}) == len(named)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["make", "rename", "delete"]), _PLACES, _NAMES, _NAMES), max_size=12)
)
def test_whatever_is_done_a_name_leads_to_one_workload_and_none_is_kept_for_nobody(
    deeds: list[tuple[str, Namespace, str, str]],
) -> None:
    async def live() -> None:
        async with alone(leads=False) as (server, _):
            expected: dict[tuple[Namespace, str], WorkloadId] = {}
            for deed, namespace, name, other in deeds:
                try:
                    match deed:
                        case "make":
                            made, _ = await server.workloads.create(
                                spec(name), namespace=namespace, actor="me"
                            )
                            assert (namespace, name) not in expected
                            expected[namespace, name] = made.id
                        case "rename":
                            await server.workloads.change(
                                name,
                                lambda one, other=other: replace(one, name=other),
                                namespace=namespace,
                                actor="me",
                            )
                            expected[namespace, other] = expected.pop((namespace, name))
                        case "delete":
                            await server.workloads.delete(name, namespace=namespace, actor="me")
                            del expected[namespace, name]
                except errors.NotFound:
                    assert (namespace, name) not in expected
                except errors.AlreadyExists:
                    assert (namespace, name if deed == "make" else other) in expected
            names = await server.store.range("workload-name/")
            assert {entry.key: entry.value.decode() for entry in names.entries} == {
                workloads_registry.name_key(*key): id for key, id in expected.items()
            }
            for (namespace, name), id in expected.items():
                assert server.workloads.get(name, namespace).id == id

    asyncio.run(live())


async def test_another_server_finds_what_is_in_a_namespace_before_its_mirror_does() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.workloads.create(spec(), namespace=SHOP, actor="me")
        one, _ = await server.instances.create("web", namespace=SHOP, actor="me")
        assert isinstance(server.store, MemoryStore)
        behind = Server(server.store, Standings(), server.clock, "b")  # which follows nothing
        await behind.instances.check_in(SHOP, one.id)
        with pytest.raises(errors.NotFound):
            await behind.instances.check_in(LAB, one.id)
        assert (await behind.workloads.template("web", SHOP)).value == made
        with pytest.raises(errors.Unprocessable, match="is in the namespace 'shop'"):
            await behind.workloads.template(made.id, LAB)


# the market's


CONTRACT_CELL = replace(spec("contract-01hx"), kind=WorkloadKind.CELL, uri="contract:01hx")


async def test_only_the_market_makes_anything_in_its_namespace() -> None:
    async with alone(leads=False) as (server, _):
        for actor in ("token:deployer", "uid:0", "certificate:market"):
            with pytest.raises(errors.Forbidden, match="'market' is for the cells of contracts"):
                await server.instances.create(spec(), namespace=MARKET_NAMESPACE, actor=actor)
            with pytest.raises(errors.Forbidden, match="'market' is for the cells of contracts"):
                await server.workloads.create(spec(), namespace=MARKET_NAMESPACE, actor=actor)
        made, _ = await server.instances.create(CONTRACT_CELL, namespace=MARKET_NAMESPACE, actor=MARKET)
        assert server.instances.get(made.id) == made


async def test_only_the_market_changes_the_cell_of_a_contract() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.instances.create(CONTRACT_CELL, namespace=MARKET_NAMESPACE, actor=MARKET)
        instances = server.instances
        for refused in (
            instances.stop(made.id, actor="token:deployer"),
            instances.start(made.id, actor="token:deployer"),
            instances.destroy(made.id, actor="uid:0"),
            instances.change(made.id, actor="token:deployer", merge=lambda one: replace(one, uri="other:1")),
            instances.change(made.id, actor="token:deployer", desired=DesiredStatus.STOPPED),
        ):
            with pytest.raises(errors.Forbidden, match=r"the cell of a contract.* `skerry market reclaim`"):
                await refused
        assert instances.get(made.id) == made
        assert (await instances.destroy(made.id, actor=MARKET)).desired is DesiredStatus.DESTROYED


async def test_what_somebody_made_there_before_it_was_the_markets_can_be_removed() -> None:
    async with alone(leads=False) as (server, _):
        made, _ = await server.instances.create(spec(), namespace=MARKET_NAMESPACE, actor=MARKET)
        assert (await server.instances.destroy(made.id, actor="uid:0")).desired is DesiredStatus.DESTROYED


async def test_the_cell_of_a_contract_that_was_adopted_is_destroyed_by_an_admin_and_by_no_other() -> None:
    """The ledger of a restored store may not know its contract."""
    async with alone(leads=False) as (server, _):
        made, _ = await server.instances.create(CONTRACT_CELL, namespace=MARKET_NAMESPACE, actor=MARKET)
        adopted = replace(made, is_adopted=True)
        await server.store.commit([Put(f"{instance_index.PREFIX}{made.id}", json_codec.encode(adopted))])
        await eventually(lambda: server.instances.get(made.id).is_adopted)
        for refused in (
            server.instances.stop(made.id, actor="token:deployer"),
            server.instances.destroy(made.id, actor="token:deployer"),
        ):
            with pytest.raises(errors.Forbidden, match="the cell of a contract"):
                await refused
        gone = await server.instances.destroy(made.id, actor="uid:0", by_admin=True)
        assert gone.desired is DesiredStatus.DESTROYED
