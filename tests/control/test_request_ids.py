"""The id of a request follows an instance: into its record, its orders and all events that come of it."""

from __future__ import annotations

import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from skerry.kit import json_codec, logs
from skerry.model.events import Event
from skerry.model.ids import NodeId
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, RolloutStrategy
from tests.control.worlds import Server, alone, condition, instance, spec
from tests.support.waiting import eventually


def louder(before: InstanceSpec) -> InstanceSpec:
    return replace(before, environment=("LOUD=1",))


async def told(server: Server, id: str) -> list[tuple[str, str]]:
    """What happened to an instance, and because of which request."""
    return [
        (one.event.kind.removeprefix("instance."), one.event.request_id)
        for one in await server.instances.events(id)
    ]


async def test_what_the_reconciler_and_the_node_do_carries_the_id_of_the_request() -> None:
    async with alone(condition("n")) as (server, _):
        with logs.request_context("put-1"):
            one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        (order,) = server.instances.orders(NodeId("n"))
        assert order.request_id == "put-1"
        with logs.request_context("session-of-the-node"):
            await server.obey("n")
        assert await told(server, one.id) == [
            ("scheduling", "put-1"),
            ("scheduled", "put-1"),
            ("starting", "put-1"),
            ("running", "put-1"),
        ]


async def test_the_last_request_that_changes_what_is_desired_counts() -> None:
    async with alone(condition("n")) as (server, _):
        with logs.request_context("put-1"):
            one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        with logs.request_context("patch-2"):
            await server.instances.stop(one.id, actor="me")
        with logs.request_context("patch-3"):  # which changes nothing
            await server.instances.stop(one.id, actor="me")
        await server.obey("n")
        assert (await told(server, one.id))[-3:] == [
            ("wished", "patch-2"),
            ("stopping", "patch-2"),
            ("stopped", "patch-2"),
        ]
        with logs.request_context("delete-4"):
            await server.instances.destroy(one.id, actor="me")
        assert (await told(server, one.id))[-1] == ("destroying", "delete-4")


async def test_what_no_request_asked_for_has_no_id() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="market")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        assert {id for _, id in await told(server, one.id)} == {""}
        with logs.request_context("patch-1"):
            await server.instances.stop(one.id, actor="me")
        assert (await told(server, one.id))[-1] == ("wished", "patch-1")
        await server.instances.start(one.id, actor="market")
        assert (await told(server, one.id))[-1] == ("wished", "")


async def test_a_repeat_of_a_request_keeps_the_id_of_the_one_that_made_it() -> None:
    async with alone(leads=False) as (server, _):
        with logs.request_context("put-1"):
            one, _ = await server.instances.create(spec(), id="mine", actor="me")
        with logs.request_context("put-2"):
            assert await server.instances.create(spec(), id="mine", actor="me") == (one, False)
        assert server.instances.get("mine").request_id == "put-1"


async def test_a_rollout_and_a_deletion_carry_the_id_of_the_request_for_the_workload() -> None:
    async with alone(condition("n")) as (server, _):
        with logs.request_context("put-1"):
            await server.workloads.create(spec(), actor="me")
            one, _ = await server.instances.create("web", actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.obey("n")
        with logs.request_context("patch-2"):
            await server.workloads.change("web", louder, actor="me", rollout=RolloutStrategy.ROLLING)
        await eventually(lambda: server.instances.get(one.id).version == 2)
        assert ("changed", "patch-2") in await told(server, one.id)
        with logs.request_context("delete-3"):
            await server.workloads.delete("web", actor="me")
        await eventually(lambda: server.instances.get(one.id).request_id == "delete-3")
        kept = await server.events.list_after("0", frozenset({"workload"}))
        assert [(each.event.kind, each.event.request_id) for each in kept] == [
            ("workload.created", "put-1"),
            ("workload.changed", "patch-2"),
            ("workload.deleted", "delete-3"),
        ]


async def test_a_refused_report_is_logged_under_the_id_of_the_instance() -> None:
    async with alone(condition("n")) as (server, _):
        with logs.request_context("put-1"):
            one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        report = InstanceReport(one.id, 1, InstanceStatus.SCHEDULING, server.clock.now())
        with (
            logs.request_context("session-of-the-node"),
            capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines,
        ):
            await server.instances.reported(NodeId("n"), [report])
        (line,) = lines
        assert (line["event"], line["instance"], line["request_id"]) == ("report.refused", one.id, "put-1")


def test_records_of_before_have_no_id() -> None:
    one = instance("old", request_id="put-1")
    stored = json_codec.decode(json_codec.encode(one), dict)
    assert stored.pop("request_id") == "put-1"
    assert json_codec.decode(json_codec.encode(stored), Instance).request_id == ""
    old = b'{"kind":"instance.running","subject":"instance/old","at":1.0}'
    assert json_codec.decode(old, Event).request_id == ""
    assert InstanceOrder.of(one).request_id == "put-1"
