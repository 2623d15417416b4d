"""Calls at a member: here, elsewhere, or nowhere, as the policy says; and what their reports tell."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skerry.kit import metrics
from skerry.model import errors
from skerry.model.calls import CallFailure
from tests.functions.continuum.making import demand, place
from tests.functions.continuum.simulated_members import TIMEOUT_S, Town, idempotent
from tests.support.simulated import passes
from tests.support.workers import broken, function, in_simulated_time

F = function("f", memory=512)


@in_simulated_time
async def test_a_call_runs_here_while_there_is_room() -> None:
    async with Town(F) as town:
        here, there = town.join("here", policy="edgeonly"), town.join("there")
        await town.meet()
        report = await here.call("f", params=b"1")
        assert (report.answer.result, report.node, report.action, report.offload_s) == (b"1", "here", "", 0.0)
        assert (here.served, there.served, town.sent) == (1, 0, [])


@in_simulated_time
async def test_a_call_that_finds_no_room_here_runs_at_the_neighbour_and_says_so() -> None:
    async with Town(F, way_s=0.05) as town:
        here, there = town.join("here", policy="edgeonly"), town.join("there", area="edge")
        await town.meet()
        here.host.run_s = there.host.run_s = 3.0
        there.host.init_s = 0.5
        busy = [here.begin("f") for _ in range(2)]
        await passes(0.1)
        report = await here.call("f", params=b"far")
        assert (report.answer.result, report.node, report.area, report.action) == (
            b"far",
            "there",
            "edge",
            "O",
        )
        assert report.response_s == pytest.approx(3.6, abs=0.01)
        assert (report.answer.duration_s, report.init_s) == (3.0, pytest.approx(0.5, abs=0.01))
        assert report.offload_s == pytest.approx(0.1, abs=0.01)
        assert {one.node for one in await asyncio.gather(*busy)} == {"here"}


@in_simulated_time
async def test_the_policy_of_a_function_counts_and_not_the_one_of_the_node() -> None:
    far = replace(F, policy="cloudonly")
    stays = replace(function("g"), policy="default")
    unknown = replace(function("h"), policy="brought-by-a-package-that-is-not-here")
    async with Town(far, stays, unknown) as town:
        here = town.join("here", remote_area="cloud", policy="edgeonly")
        town.join("there", area="cloud")
        await town.meet()
        assert [(await here.call(name)).node for name in "fgh"] == ["there", "here", "here"]


@in_simulated_time
async def test_a_call_that_may_not_leave_stays() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        town.join("there", area="cloud")
        await town.meet()
        assert (await here.call("f", can_offload=False)).node == "here"
        alone = town.join("alone", remote_area="cloud", policy="cloudonly", max_hops=0)
        await town.meet()
        assert (await alone.call("f")).node == "alone"


@in_simulated_time
async def test_many_neighbours_share_what_one_cannot_run() -> None:
    async with Town(F) as town:
        here = town.join("here", policy="edgeonly")
        others = [town.join(f"n{number}") for number in range(4)]
        await town.meet()
        for resident in town.residents.values():
            resident.host.run_s = 5.0
        reports = await asyncio.gather(*(here.call("f", params=b"%d" % n) for n in range(10)))
        assert {report.answer.failure for report in reports} == {None}
        assert [resident.served for resident in (here, *others)] == [2, 2, 2, 2, 2]
        assert max(report.response_s for report in reports) < 5.1, "nobody waited for another"


@in_simulated_time
async def test_a_full_queue_sends_calls_elsewhere_instead_of_refusing_them() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", memory=512, queue_length=1, policy="edgecloud")
        cloud = town.join("cloud", area="cloud", memory=512, queue_length=4)
        await town.meet()
        here.host.run_s = cloud.host.run_s = 5.0
        calls = [here.begin("f") for _ in range(7)]
        reports = await asyncio.gather(*calls)
        assert {report.answer.failure for report in reports} == {None}
        assert (here.served, cloud.served) == (2, 5)
        crowd = [here.begin("f") for _ in range(8)]
        outcomes = await asyncio.gather(*crowd, return_exceptions=True)
        assert {type(one) for one in outcomes if isinstance(one, Exception)} == {errors.Overloaded}


@in_simulated_time
async def test_a_full_queue_sends_calls_even_where_more_wait_for_less() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", memory=512, queue_length=1, policy="edgecloud")
        cloud = town.join("cloud", area="cloud", memory=512, cpus=1.0, queue_length=9)
        await town.meet()
        here.host.run_s = cloud.host.run_s = 8.0
        crowd = [cloud.begin("f") for _ in range(3)]
        await passes(6)
        calls = []
        for _ in range(3):
            calls.append(here.begin("f"))
            await passes(0.1)
        assert [report.node for report in await asyncio.gather(*calls)] == ["here", "here", "cloud"]
        await asyncio.gather(*crowd)


@in_simulated_time
async def test_default_refuses_what_the_queue_here_has_no_place_for() -> None:
    async with Town(F) as town:
        here, there = town.join("here", memory=512, queue_length=1), town.join("there")
        await town.meet()
        here.host.run_s = 5.0
        calls = [here.begin("f") for _ in range(4)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, errors.Overloaded) for one in outcomes) >= 1
        assert there.served == 0


@in_simulated_time
async def test_what_a_policy_drops_is_refused_with_its_reason() -> None:
    async with Town(F) as town:
        here = town.join("here", memory=512, policy="localonly")
        await town.meet()
        here.host.run_s = 5.0
        first = here.begin("f")
        await passes(0.1)
        with pytest.raises(errors.Overloaded, match="this node has no capacity for it now"):
            await here.call("f")
        assert (await first).answer.failure is None


@in_simulated_time
async def test_qosaware_learns_and_finds_the_room_that_there_is() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", memory=512, policy="qosaware")
        cloud = town.join("cloud", area="cloud", memory=8192, cpus=16.0)
        await town.meet()
        here.host.run_s = cloud.host.run_s = 0.5
        reports = [
            report
            for _ in range(20)
            for report in await asyncio.gather(*(here.call("f", qos_class=1) for _ in range(4)))
        ]
        assert {report.answer.failure for report in reports} == {None}
        assert here.served > 0
        assert cloud.served > here.served


@in_simulated_time
async def test_what_calls_took_is_learnt_here_and_elsewhere_and_so_is_who_refuses() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud", memory=512, queue_length=1, queue_wait_s=0.1)
        await town.meet()
        here.host.run_s, cloud.host.run_s = 0.7, 0.3
        for _ in range(20):
            await here.call("f")
            await here.call("f", can_offload=False, qos_class=1)
        call_times, wanted = here.continuum._call_times, demand(function=F.name, memory=512)
        told = [call_times.predict(wanted, place(node, warm=1)) for node in ("here", "cloud")]
        assert [one.run_s for one in told] == [pytest.approx(0.7, rel=0.1), pytest.approx(0.3, rel=0.1)]
        assert {one.refusal for one in told} == {0.0}
        await asyncio.gather(*(here.call("f") for _ in range(4)))
        assert call_times.predict(wanted, place("cloud")).refusal > 0.0
        town.dead.add(cloud.member.node)
        before = call_times.predict(wanted, place("cloud")).refusal
        await here.call("f")
        assert call_times.predict(wanted, place("cloud")).refusal > before


@in_simulated_time
async def test_an_unknown_function_is_not_found() -> None:
    async with Town() as town:
        here = town.join("here")
        with pytest.raises(errors.NotFound, match="there is no function"):
            await here.call("f")


# What is known at one member and not at another


@in_simulated_time
async def test_a_member_that_knows_an_older_function_refuses_and_looks_for_the_newer_one() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        behind, ahead = town.join("behind", area="cloud"), town.join("ahead", area="cloud")
        await town.meet()
        for resident in (here, ahead):
            resident.shelf.add(replace(F, version=2))
        reports = [await here.call("f") for _ in range(3)]
        assert {report.node for report in reports} == {"ahead"}
        assert (behind.served, behind.shelf.behind) == (
            0,
            len([one for one in town.sent if one[1] == "behind"]),
        )
        behind.shelf.functions.clear()
        ahead.shelf.functions.clear()
        assert (await here.call("f")).node == "here", "nobody there has heard of it"


@in_simulated_time
async def test_a_member_that_cannot_start_workers_does_not_lose_the_calls_of_others() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        bad, good = town.join("bad", area="cloud"), town.join("good", area="cloud")
        await town.meet()

        def without_runtime(_: object) -> Exception:
            return errors.Unavailable("there is no node on this machine")

        bad.host.fault = without_runtime
        reports = [await here.call("f", params=b"%d" % n) for n in range(3)]
        assert {(report.node, report.answer.failure) for report in reports} == {("good", None)}
        good.host.fault = broken  # the function is to blame, so it fails wherever it goes
        for worker in list(good.host.workers):
            worker.die()
        await passes(0.1)
        bad.host.fault = broken
        assert (await here.call("f")).answer.failure is CallFailure.LOAD


# Time


@in_simulated_time
async def test_the_time_that_is_left_goes_with_the_call() -> None:
    async with Town(F, way_s=0.1) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        dead, cloud = town.join("dead", area="cloud"), town.join("cloud", area="cloud", memory=512)
        await town.meet()
        here.continuum.places.peers[dead.member.node].rtt_s = 0.0  # it is tried first
        town.dead.add(dead.member.node)
        cloud.host.run_s = 60.0
        report = await here.call("f", max_response_s=5.0)
        assert report.answer.failure is CallFailure.TIMEOUT
        assert report.response_s == pytest.approx(5.0, abs=0.3)
        assert town.sent[-1][2].deadline_s == pytest.approx(5.0 - TIMEOUT_S, abs=0.05)
        late = await here.call("f", max_response_s=0.001, params=b"late")
        assert late.answer.failure is CallFailure.TIMEOUT
        assert late.response_s < 0.5


@in_simulated_time
async def test_a_call_whose_time_is_spent_on_dead_neighbours_is_ended() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        for name in ("one", "two"):
            town.join(name, area="cloud")
        await town.meet()
        town.dead |= {resident.member.node for resident in town.residents.values()} - {here.member.node}
        report = await here.call("f", max_response_s=3.0)
        assert report.answer.failure is CallFailure.TIMEOUT
        assert report.response_s <= 3.0 + TIMEOUT_S
        assert "one: nothing came back" in report.answer.error


# Those who are away


@in_simulated_time
async def test_a_dead_neighbour_costs_one_timeout_once() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly", ping_s=60.0)
        dead = town.join("dead", area="cloud")
        await town.meet()
        town.dead.add(dead.member.node)
        first = await here.call("f")
        assert (first.node, first.action) == ("here", "")
        assert first.response_s == pytest.approx(TIMEOUT_S, abs=0.1)
        for _ in range(10):
            assert (await here.call("f")).response_s < 0.1


@in_simulated_time
async def test_a_neighbour_that_is_cut_off_and_comes_back_is_used_again() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        assert (await here.call("f")).node == "cloud"
        town.cut(here, cloud)
        await passes(10)
        report = await here.call("f")
        assert report.node == "here"
        assert report.response_s < 0.1, "a ping had found out before"
        town.cuts.clear()
        await passes(10)
        assert (await here.call("f")).node == "cloud"


@in_simulated_time
async def test_a_function_that_may_not_run_twice_is_interrupted_if_its_node_is_lost() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        cloud.host.run_s = 5.0
        call = here.begin("f", params=b"1")
        await passes(1)
        town.dead.add(cloud.member.node)
        report = await call
        assert (report.answer.failure, report.node, report.action) == (CallFailure.INTERRUPTED, "cloud", "O")
        assert "it is not known how far that came" in report.answer.error
        assert town.runs[b"1"] == 1


@in_simulated_time
async def test_a_function_that_may_run_twice_runs_elsewhere_if_its_node_is_lost() -> None:
    async with Town(idempotent(F)) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        cloud.host.run_s = 5.0
        call = here.begin("f", params=b"1")
        await passes(1)
        town.dead.add(cloud.member.node)
        report = await call
        assert (report.answer.failure, report.node) == (None, "here")
        assert town.runs[b"1"] == 2


@in_simulated_time
async def test_a_caller_that_leaves_takes_its_call_along_from_far() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        cloud.host.run_s = 60.0
        call = here.begin("f")
        await passes(1)
        call.cancel()
        await asyncio.wait([call])
        await passes(0.1)
        assert cloud.invoker.status().workers == 0
        peer = here.continuum.places.peers[cloud.member.node]
        assert (peer.memory_free, peer.is_up) == (cloud.member.memory, True)


# A member without workers


@in_simulated_time
async def test_a_server_runs_nothing_and_has_everything_run() -> None:
    async with Town(F) as town:
        server = town.join("server", area="office", memory=0, cpus=0.0, is_server=True)
        assert (await asyncio.gather(server.call("f"), return_exceptions=True))[0].message.startswith(
            "no node that runs functions can be reached"
        )
        edge, cloud = town.join("edge", area="harbour", memory=512), town.join("cloud", area="cloud")
        await town.meet()
        edge.host.run_s = cloud.host.run_s = 1.0
        reports = await asyncio.gather(*(server.call("f", can_offload=False) for _ in range(3)))
        assert {(report.answer.failure, report.action) for report in reports} == {(None, "O")}
        assert (edge.served, cloud.served) == (1, 2)
        town.functions.append(function("huge", memory=4096))
        server.shelf.add(town.functions[-1])
        with pytest.raises(errors.Unavailable, match="no node that can be reached is large enough"):
            await server.call("huge")
        town.dead |= {edge.member.node, cloud.member.node}
        with pytest.raises(errors.Unavailable, match="edge: nothing came back"):
            await server.call("f")
        with pytest.raises(errors.Unavailable, match="no node that runs functions can be reached"):
            await server.call("f")


@in_simulated_time
async def test_a_member_without_workers_sends_what_others_send_it_no_further_than_it_may() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly", max_hops=2)
        middle = town.join("middle", area="cloud", remote_area="far", policy="cloudonly")
        town.join("end", area="far", policy="cloudonly")
        await town.meet()
        report = await here.call("f")
        assert (report.node, report.area, report.action) == ("end", "far", "O")
        assert [(one[1], one[2].hops_left) for one in town.sent] == [("middle", 1), ("end", 0)]
        assert middle.served == 0
        near = town.join("near", remote_area="cloud", policy="cloudonly")
        await town.meet()
        assert (await near.call("f")).node == "middle", "one hop is all that it may"


# What is told of it


@in_simulated_time
async def test_coordinates_are_part_of_the_status() -> None:
    async with Town(F, way_s=0.02) as town:
        here, there = town.join("here"), town.join("there")
        await town.meet()
        before = here.continuum.status().coordinate
        await passes(200)
        after = here.continuum.status().coordinate
        assert after != before
        assert after.error < 0.5
        assert here.continuum.status().total_memory_mb == 1024
        assert there.continuum.load().coordinate == there.continuum.status().coordinate


@in_simulated_time
async def test_calls_are_counted_by_place_and_by_how_they_went() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud", memory=512, queue_length=1)
        await town.meet()
        cloud.host.run_s = 1.0
        await asyncio.gather(*(here.call("f") for _ in range(5)))
        town.dead.add(cloud.member.node)
        await here.call("f")
        text = metrics.render().decode()
        refused = next(line for line in text.splitlines() if 'outcome="refused"' in line and "cloud" in line)
        assert float(refused.rpartition(" ")[2]) >= 1
        assert 'skerry_offloaded_calls_total{node="cloud",outcome="lost"} 1.0' in text
        assert 'skerry_neighbour_up{node="cloud"} 0.0' in text
        assert 'skerry_neighbour_round_trip_seconds{node="cloud"} 0.002' in text


# Who refuses


@in_simulated_time
async def test_a_call_that_nobody_takes_is_refused_for_want_of_room_or_of_nodes() -> None:
    async with Town(F) as town:
        server = town.join("server", memory=0, cpus=0.0, is_server=True)
        one = town.join("one", memory=512, queue_length=1, queue_wait_s=1.0)
        await town.meet()
        one.host.run_s = 5.0
        first = server.begin("f")
        await passes(0.1)
        with pytest.raises(errors.Overloaded, match=r"no node took the call: one: .*call again in 1 s"):
            await server.call("f")
        assert (await first).answer.failure is None
        one.shelf.functions.clear()
        with pytest.raises(errors.Unavailable, match=r"one: version 1 of f is asked for.*no such function"):
            await server.call("f")


@in_simulated_time
async def test_an_updated_function_follows_its_new_policy() -> None:
    async with Town(F) as town:
        here = town.join("here", remote_area="cloud")
        cloud = town.join("cloud", area="cloud")
        await town.meet()
        assert (await here.call("f")).node == "here"
        for resident in (here, cloud):
            resident.shelf.add(replace(F, version=2, policy="cloudonly"))
        assert (await here.call("f")).node == "cloud"


@in_simulated_time
async def test_calls_that_are_passed_on_keep_to_their_time() -> None:
    async with Town(F, way_s=0.1) as town:
        here = town.join("here", remote_area="cloud", policy="cloudonly")
        cloud = town.join("cloud", area="cloud", memory=512)
        await town.meet()
        cloud.host.run_s = 60.0
        report = await here.call("f", max_response_s=1.0)
        assert report.answer.failure is CallFailure.TIMEOUT
        assert 1.0 <= report.response_s <= 1.5
        assert "running; its function may run" in report.answer.error, "the other ended it"


@in_simulated_time
async def test_a_call_that_finds_a_warm_worker_asks_no_policy() -> None:
    async with Town(F) as town:
        here = town.join("here", policy="edgeonly")
        town.join("there")
        await town.meet()
        await here.call("f")
        asked: list[object] = []
        policy = here.continuum._entries[F.name].policy
        decide = policy.decide
        policy.decide = lambda *args: asked.append(args) or decide(*args)  # type: ignore[method-assign]
        assert (await here.call("f")).is_warm
        assert asked == []
        here.host.run_s = 1.0
        busy = here.begin("f")
        await passes(0.1)
        await here.call("f")
        assert len(asked) == 1
        await busy


@in_simulated_time
async def test_workers_are_started_ahead_where_that_is_asked() -> None:
    async with Town(F) as town:
        here, there = town.join("here"), town.join("there")
        assert await here.continuum.prewarm("f", 2) == 2
        assert (len(here.host.workers), len(there.host.workers)) == (2, 0)
