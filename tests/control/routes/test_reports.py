"""What edge nodes report of routes: loads that count, and services that are started."""

from __future__ import annotations

from skerry.control.routes.reports import RouteReports
from skerry.model import errors
from skerry.model.ids import NodeId, ServiceId
from skerry.model.routes import RouteLoad, ServiceWake

ONE, TWO, WEB = NodeId("n1"), NodeId("n2"), ServiceId("s1")


async def test_a_short_request_between_two_counts_is_not_missed() -> None:
    reports = RouteReports()
    await reports.loads_reported(ONE, [RouteLoad(WEB, 0.0)])
    assert list(reports.requests(WEB, lambda node: True)) == [0.0]
    await reports.loads_reported(ONE, [RouteLoad(WEB, 0.01)])
    await reports.loads_reported(ONE, [RouteLoad(WEB, 0.0)])
    assert list(reports.requests(WEB, lambda node: True)) == [0.01]
    assert list(reports.requests(WEB, lambda node: True)) == [0.01], "also for a reader that is a bit late"
    assert list(reports.requests(WEB, lambda node: True)) == [0.0]


async def test_only_nodes_that_are_heard_count() -> None:
    reports = RouteReports()
    await reports.loads_reported(ONE, [RouteLoad(WEB, 3.0), RouteLoad(ServiceId("s2"), 9.0)])
    await reports.loads_reported(TWO, [RouteLoad(WEB, 4.0), RouteLoad(WEB, float("nan"))])
    assert list(reports.requests(WEB, lambda node: True)) == [3.0, 4.0]
    assert list(reports.requests(WEB, lambda node: node == TWO)) == [4.0]
    assert list(reports.requests(ServiceId("s3"), lambda node: True)) == []


async def test_a_service_that_cannot_be_started_does_not_stop_the_others() -> None:
    started: list[str] = []

    async def wake(id: ServiceId) -> None:
        if id == "bad":
            raise errors.Unavailable("the disk is full")
        started.append(id)

    wakes = [ServiceWake("bad", 1), ServiceWake("s1", 1), ServiceWake("s2", 0)]
    await RouteReports().wakes_reported(ONE, wakes, wake)
    assert started == ["s1"], "0 says that nothing waits any more"
