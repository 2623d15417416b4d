"""A guest and whoever borrows its cell: hello, orders, reports, who is heard of several, and tunnels."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.model.ids import InstanceId
from skerry.model.node_messages import ServerList, SessionClose, TunnelRequest
from skerry.model.ports import PortMapping
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.streams import ExecStreamRequest, GuestStreamRequest, LogStreamRequest, TunnelChannel
from skerry.model.workloads import WorkloadKind
from skerry.node.agent import agent
from tests.node.agent.instances.worlds import ID, order
from tests.node.guests.buyers import QUICK
from tests.node.guests.ground import BOUGHT, CELL, CONTRACT, Ground
from tests.support.waiting import eventually


class TestAConversation:
    async def test_begins_with_a_node_that_has_what_was_bought(self, ground: Ground) -> None:
        await ground.lend()
        hello = await ground.buyer().welcomed()
        assert (hello.name, hello.resources) == (CONTRACT, BOUGHT)
        assert (hello.facts, hello.labels, hello.subnet) == (agent.facts(), {}, "")

    async def test_carries_orders_down_and_reports_up_until_they_are_known(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order(environment=("A=1",)))
        report = await buyer.until("RUNNING")
        view = ground.view()
        assert view is not None
        assert (view.spec.inside, view.spec.is_isolated, view.spec.environment) == (CELL, True, ("A=1",))
        assert report.ip == view.address
        await buyer.order(order(DesiredStatus.DESTROYED))
        await buyer.until("TERMINATED")
        assert buyer.statuses() == ["STARTING", "RUNNING", "TERMINATED"]
        copies = ground.folder / "lent" / CELL / "instances" / "copies"
        await eventually(lambda: list(copies.iterdir()) == [])

    async def test_tells_what_was_missed_to_who_comes_back(self, ground: Ground) -> None:
        await ground.lend()
        first = ground.buyer()
        await first.order(order())
        await first.until("RUNNING")
        first.hang_up()
        await eventually(lambda: ground.leased._guest(CELL)._talking is None)
        ground.process().exit(code=3)
        second = ground.buyer()

        def is_back() -> bool:
            last = second.last()
            return last is not None and (last.status, last.restarts) == (InstanceStatus.RUNNING, 1)

        await ground.later(is_back)
        assert "CRASHED" in second.statuses()

    async def test_is_one_and_the_newest_is_it(self, ground: Ground) -> None:
        await ground.lend()
        older, newer = ground.buyer(), ground.buyer()
        await eventually(lambda: older.failure)
        assert isinstance(older.failure, errors.FailedPrecondition)
        await newer.order(order())
        await newer.until("RUNNING")
        newest = ground.buyer()
        await newest.order()
        await eventually(lambda: not ground.runs())
        assert "a newer session" in str(newer.failure)

    async def test_passes_over_what_is_not_for_a_guest(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.welcomed()
        await buyer.say(ServerList(("10.0.0.1:1",)), TunnelRequest("t", InstanceId(ID), LogStreamRequest()))
        await buyer.order(order())
        await buyer.until("RUNNING")

    async def test_ends_with_a_goodbye(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.welcomed()
        await buyer.say(SessionClose("this server stops"))
        await eventually(lambda: buyer.failure)
        assert "this server stops" in str(buyer.failure)

    async def test_ends_if_what_is_said_makes_no_sense(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.welcomed()
        await buyer.near.send(b"\1\xff\xff\xff")
        await eventually(lambda: buyer.failure)
        assert isinstance(buyer.failure, errors.Invalid)

    async def test_keeps_to_no_terms_that_would_cost_the_machine(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer(welcome=replace(QUICK, report_s=0.0, restart_base_s=0.0))
        await buyer.order(order())
        await buyer.until("RUNNING")
        terms = ground.leased._guest(CELL)._instances.config
        assert (terms.report_s, terms.restart_base_s) == (0.5, 0.1)


class TestOrders:
    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            ({"ports": (PortMapping(8080, 80),)}, "cannot publish ports"),
            ({"kind": WorkloadKind.CELL}, "cannot lease cells"),
            ({"resources": replace(BOUGHT, memory=BOUGHT.memory + 1)}, "lacks 1 MB of memory"),
        ],
    )
    async def test_that_reach_out_of_the_cell_fail_and_say_why(
        self, ground: Ground, wanted: dict[str, Any], why: str
    ) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order(**wanted, restart="on-failure"))
        report = await buyer.until("FAILED")
        assert why in report.reason
        assert ground.containers.list() == []

    async def test_that_reach_out_of_the_cell_are_tried_again_for_ever_with_restart_always(
        self, ground: Ground
    ) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order(ports=(PortMapping(8080, 80),)))

        def is_tried_again() -> bool:
            ground.machine.clock.advance(1)
            report = buyer.last()
            return (
                report is not None and "cannot publish ports" in report.reason and "tried 3" in report.reason
            )

        await eventually(is_tried_again)
        last = buyer.last()
        assert last is not None
        assert last.status is InstanceStatus.STARTING
        assert last.reason.startswith("not started yet: ")
        assert last.retry_at is not None
        # What the node refuses is mended by another order, like anything else.
        await buyer.order(order(generation=2))
        await buyer.until("RUNNING")

    async def test_beyond_the_most_there_may_be_fail_and_leave_nothing(self, ground: Ground) -> None:
        await ground.leave()
        await ground.open(max_instances=2)
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(*(order(id=f"i{number}") for number in range(5)))
        for number in range(5):
            await buyer.until("RUNNING" if number < 2 else "FAILED", f"i{number}")
        assert buyer.last("i4").reason == "not started: at most 2 instances are allowed"  # type: ignore[union-attr]
        copies = ground.folder / "lent" / CELL / "instances" / "copies"
        assert {path.name for path in copies.iterdir()} == {"i0.json", "i1.json"}
        # What is gone makes place, and what never was is gone when it should be.
        await buyer.order(
            order(DesiredStatus.DESTROYED, id="i0"), order(DesiredStatus.DESTROYED, id="i4"), whole=False
        )
        for id in ("i0", "i4"):
            await buyer.until("TERMINATED", id)
        await eventually(lambda: len(list(copies.iterdir())) == 1)
        await buyer.order(order(id="i5"), whole=False)
        await buyer.until("RUNNING", "i5")

    async def test_for_names_that_others_have_touch_nothing_of_theirs(self, ground: Ground) -> None:
        mine = order(id="web")
        await ground.instances.apply([mine], is_full=False)
        await ground.until("RUNNING", InstanceId("web"))
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order(id="web"), order(id="i-web"))
        await buyer.until("RUNNING", "web")
        await buyer.order()
        await eventually(lambda: [view.spec.name for view in ground.containers.list()] == ["i-web"])
        assert ground.status(InstanceId("web")) == "RUNNING"


class TestTunnels:
    async def test_show_the_output_of_an_instance_in_the_cell(self, ground: Ground) -> None:
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order())
        await buyer.until("RUNNING")
        tunnel = ground.request(GuestStreamRequest(ID, LogStreamRequest(stream=OutputChannel.STDOUT)))
        await eventually(lambda: tunnel.is_ended)
        assert (tunnel.failure, tunnel.received(TunnelChannel.LOST)) == (None, b"")

    async def test_to_what_is_not_in_the_cell_say_so(self, ground: Ground) -> None:
        await ground.instances.apply([order(id="mine")], is_full=False)
        await ground.lend()
        for request in (LogStreamRequest(), ExecStreamRequest(("true",))):
            tunnel = ground.request(GuestStreamRequest(InstanceId("mine"), request))
            await eventually(lambda: tunnel.failure)  # noqa: B023 - awaited
            assert isinstance(tunnel.failure, errors.NotFound)

    async def test_are_not_too_many(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("skerry.node.guests.agent._MAX_TUNNELS", 1)
        await ground.lend()
        buyer = ground.buyer()
        await buyer.order(order())
        await buyer.until("RUNNING")
        first = ground.request(GuestStreamRequest(ID, LogStreamRequest(follow=True)))
        await eventually(lambda: ground.leased._guest(CELL)._open_tunnels)
        second = ground.request(GuestStreamRequest(ID, LogStreamRequest()))
        await eventually(lambda: second.failure)
        assert isinstance(second.failure, errors.Overloaded)
        first.hang_up()
        await eventually(lambda: not ground.leased._guest(CELL)._open_tunnels)


async def test_two_who_call_at_once_leave_one(ground: Ground) -> None:
    await ground.lend()
    buyers = [ground.buyer() for _ in range(5)]
    await eventually(lambda: sum(buyer.failure is None for buyer in buyers) == 1)
    (leftovers,) = [buyer for buyer in buyers if buyer.failure is None]
    await leftovers.order(order())
    await leftovers.until("RUNNING")
