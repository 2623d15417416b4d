"""Instances of a node in memory: orders, containers, reports, and what is left when all is over."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.containers import ContainerSpec, ContainerState
from skerry.model.ids import InstanceId
from skerry.model.network import Egress
from skerry.model.node_messages import SessionConfig
from skerry.model.resources import Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus, may_become
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.agent.instances.records import InstanceRecords
from skerry.node.agent.instances.state import MAX_PENDING
from tests.node.agent.instances.ground import Ground
from tests.node.agent.instances.worlds import ID, TERMS, order
from tests.support.waiting import PATIENCE_S, eventually

RUNNING, STOPPED, DESTROYED = DesiredStatus.RUNNING, DesiredStatus.STOPPED, DesiredStatus.DESTROYED
NAME = container_name(ID)


async def run(ground: Ground, **more: object) -> None:
    await ground.apply(order(**more))  # type: ignore[arg-type]
    await ground.until("RUNNING", str(more.get("id", ID)))


class TestOrders:
    async def test_are_on_disk_before_anything_is_done_about_them(self, ground: Ground) -> None:
        await run(ground)
        assert ground.steps[:3] == ["applied", "reported.starting", "made"]
        assert ground.records() == [f"{ID}.json"]
        assert os.stat(ground.folder / "copies" / f"{ID}.json").st_mode & 0o077 == 0

    async def test_become_containers_that_run_with_what_was_asked_for(self, ground: Ground) -> None:
        requested = {
            "name": "My_web.1",
            "environment": ("A=1",),
            "arguments": ("serve", "all"),
            "resources": Resources(500, 64),
        }
        await run(ground, **requested)
        view = ground.view()
        assert view is not None
        assert (view.spec.host_name, view.spec.environment) == ("My-web-1", ("A=1",))
        assert (view.spec.arguments, view.spec.resources) == (("serve", "all"), Resources(500, 64))
        assert ground.statuses() == ["STARTING", "RUNNING"]
        assert ground.reports()[-1].ip == view.address == "10.0.0.2"

    async def test_that_come_twice_do_nothing_twice(self, ground: Ground) -> None:
        await run(ground)
        pid = ground.process().state.pid
        ground.acknowledge()
        await ground.apply(order(), whole=True)
        assert ground.statuses() == []
        assert ground.process().state.pid == pid

    async def test_of_a_lower_generation_are_refused(self, ground: Ground) -> None:
        await run(ground, generation=5)
        await ground.apply(order(DESTROYED, generation=4), whole=True)
        assert ground.status() == "RUNNING"
        assert ground.copy().order.generation == 5

    async def test_of_another_spec_replace_the_container(self, ground: Ground) -> None:
        ground.machine.add_image("web:2")
        await run(ground)
        ground.acknowledge()
        await ground.apply(order(generation=2, uri="web:2"))
        await eventually(lambda: ground.statuses() == ["STARTING", "RUNNING"])
        view = ground.view()
        assert view is not None
        assert view.spec.image == "web:2"
        assert {report.generation for report in ground.reports()} == {2}

    async def test_of_another_egress_restrict_what_runs(self, ground: Ground) -> None:
        await run(ground)
        pid = ground.process().state.pid
        await ground.apply(order(egress=Egress.INTERNET))
        await eventually(lambda: ground.machine.attached[NAME].policy.egress is Egress.INTERNET)
        await ground.leave()
        await ground.open()
        view = ground.view()
        assert view is not None
        assert (view.access.egress, view.pid) == (Egress.INTERNET, pid)

    async def test_with_an_egress_are_held_to_it_from_the_first_start_on(self, ground: Ground) -> None:
        await run(ground, egress=Egress.INTERNET)
        assert ground.machine.attached[NAME].policy.egress is Egress.INTERNET
        assert "done.restrict" not in ground.steps

    async def test_to_restrict_are_tried_until_they_are_done(self, ground: Ground) -> None:
        await run(ground)
        ground.machine.failing["restrict"] = errors.Unavailable("nft is busy")
        await ground.apply(order(egress=Egress.INTERNET))
        await eventually(lambda: ground.machine.attached[NAME].policy.egress is Egress.INTERNET)
        assert ground.status() == "RUNNING"

    async def test_to_stop_keep_the_container_and_to_start_again_use_it(self, ground: Ground) -> None:
        await run(ground)
        await ground.apply(order(STOPPED))
        await ground.until("STOPPED")
        view = ground.view()
        assert view is not None
        assert view.state is ContainerState.EXITED
        created = view.created_at
        await run(ground)
        view = ground.view()
        assert view is not None
        assert (view.state, view.created_at) == (ContainerState.RUNNING, created)
        assert ground.statuses() == ["STARTING", "RUNNING", "STOPPING", "STOPPED", "STARTING", "RUNNING"]

    async def test_to_destroy_leave_nothing_once_that_is_known(self, ground: Ground) -> None:
        await run(ground)
        await ground.apply(order(DESTROYED))
        await ground.until("TERMINATED")
        assert ground.view() is None
        assert ground.records() == [f"{ID}.json"]  # it is still to be told
        ground.acknowledge()
        await ground.until_gone()
        assert (ground.records(), ground.machine.held()) == ([], [])

    async def test_that_are_not_in_the_whole_set_any_more_take_their_copies_with_them(
        self, ground: Ground
    ) -> None:
        await run(ground)
        await run(ground, id="other")
        await ground.apply(order(id="other"), whole=True)
        await ground.until_gone()
        assert ground.view() is None
        assert ground.records() == ["other.json"]
        assert {report.instance for report in ground.reports()} == {"other"}
        assert ground.status("other") == "RUNNING"

    async def test_that_are_gone_by_a_change_take_their_copies_with_them(self, ground: Ground) -> None:
        await run(ground)
        await ground.apply(removed=(ID, "unknown"))
        await ground.until_gone()
        assert (ground.records(), ground.machine.held()) == ([], [])

    async def test_that_are_not_whole_leave_the_others_alone(self, ground: Ground) -> None:
        await run(ground)
        await run(ground, id="other")
        assert ground.status() == "RUNNING"

    async def test_that_come_back_while_the_copy_goes_make_another(self, ground: Ground) -> None:
        await run(ground)
        await ground.apply(whole=True)
        await ground.apply(order(generation=3), whole=True)
        await eventually(lambda: ground.statuses() == ["STARTING", "RUNNING"])
        assert {report.generation for report in ground.reports()} == {3}

    async def test_that_cannot_be_kept_are_refused_and_can_be_given_again(self, ground: Ground) -> None:
        copies = ground.folder / "copies"
        copies.rename(ground.folder / "away")
        with pytest.raises(errors.Unavailable, match="cannot store its orders"):
            await ground.apply(order())
        (ground.folder / "away").rename(copies)
        await run(ground)


class TestOthersContainers:
    async def test_are_never_touched(self, ground: Ground) -> None:
        for name in ("web", "i-mine"):
            await ground.containers.create(ContainerSpec(name, "web:1"))
            await ground.containers.start(name)
        await ground.apply(whole=True)
        await ground.apply(removed=("mine",))
        await ground.leave()
        await ground.open()
        await ground.apply(whole=True)
        assert {view.spec.name: view.state for view in ground.containers.list()} == {
            "web": ContainerState.RUNNING,
            "i-mine": ContainerState.RUNNING,
        }

    async def test_that_have_the_name_of_an_instance_stay_and_the_instance_says_so(
        self, ground: Ground
    ) -> None:
        await ground.containers.create(ContainerSpec(NAME, "web:1"))
        await ground.apply(order(budget=2))
        copy = await ground.until("FAILED")
        assert "exists already" in copy.history.reason
        assert "tried 3 times" in copy.history.reason
        await ground.apply(order(DESTROYED, budget=2))
        await eventually(lambda: ground.reports()[-1].reason == "removed")
        ground.acknowledge()
        await ground.until_gone()
        assert ground.view() is not None


class TestRestarts:
    async def test_come_after_a_pause_and_count(self, ground: Ground) -> None:
        await run(ground)
        for number in range(1, 4):
            ground.process().exit(code=1)
            await eventually(lambda: ground.copy().history.restarts == number)  # noqa: B023 - awaited
            await ground.until("RUNNING")
        assert ground.time.slept == [1, 2, 4]
        assert ground.statuses() == ["STARTING", "RUNNING", *["CRASHED", "STARTING", "RUNNING"] * 3]

    async def test_end_with_the_budget(self, ground: Ground) -> None:
        await run(ground, budget=1)
        ground.process().exit(code=1)
        await eventually(lambda: ground.copy().history.restarts == 1)
        await ground.until("RUNNING")
        ground.process().exit(signal=9, oom=True)
        copy = await ground.until("FAILED")
        assert copy.history.reason == "killed for using more memory than it may; all 1 restarts are used up"
        assert copy.history.exit_code == 137

    async def test_do_not_follow_work_that_is_done(self, ground: Ground) -> None:
        await run(ground, restart="on-failure")
        ground.process().exit(code=0)
        copy = await ground.until("TERMINATED")
        assert (copy.history.exit_code, copy.history.restarts) == (0, 0)
        await ground.leave()
        await ground.open()
        await ground.apply(order(restart="on-failure"), whole=True)
        assert ground.status() == "TERMINATED"

    async def test_go_on_while_no_control_plane_hears_of_them(self, ground: Ground) -> None:
        await run(ground, budget=1_000_000)
        for number in range(1, 41):
            ground.process().exit(code=1)
            await eventually(lambda: ground.copy().history.restarts == number)  # noqa: B023 - awaited
            await ground.until("RUNNING")
        reported = ground.statuses()
        assert len(reported) <= MAX_PENDING
        assert reported[:3] == ["STARTING", "RUNNING", "CRASHED"]
        path = list(map(InstanceStatus, ["SCHEDULED", *reported]))
        assert all(may_become(before, after) for before, after in itertools.pairwise(path))
        assert ground.reports()[-1].restarts == 40

    async def test_keep_to_the_terms_of_the_last_control_plane_also_after_a_restart(
        self, ground: Ground
    ) -> None:
        await ground.instances.set_config(replace(TERMS, restart_base_s=7))
        await ground.leave()
        await ground.open()
        await run(ground)
        ground.process().exit(code=1)
        await eventually(lambda: ground.copy().history.restarts == 1)
        assert ground.time.slept == [7]
        assert isinstance(ground.instances.config, SessionConfig)


class TestStarts:
    async def test_of_what_cannot_be_are_over_at_once(self, ground: Ground) -> None:
        ground.machine.add_image("empty:1", command=())
        await ground.apply(order(uri="empty:1", restart="on-failure"))
        copy = await ground.until("FAILED")
        assert copy.history.reason.startswith("not started: ")
        assert ground.time.slept == []

    async def test_go_on_for_ever_with_restart_always_until_the_image_is_there(self, ground: Ground) -> None:
        tries = 0

        async def sleep(seconds: float) -> None:
            nonlocal tries
            tries += 1
            ground.machine.clock.advance(seconds)
            if tries == 30:
                ground.machine.add_image("late:1")
            await asyncio.sleep(0)

        await ground.leave()
        await ground.open(sleep=sleep)
        await ground.apply(order(uri="late:1"))
        copy = await ground.until("RUNNING")
        assert (tries, copy.history.restarts) == (30, 0)

    async def test_wait_as_long_as_before_when_another_agent_takes_over(self, ground: Ground) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) < 6:
                ground.machine.clock.advance(seconds)
            else:
                await asyncio.Event().wait()

        await ground.leave()
        await ground.open(sleep=sleep)
        await ground.apply(order(uri="late:1"))
        await eventually(lambda: len(slept) == 6)
        retry_at = ground.copy().history.retry_at
        await ground.leave()
        await ground.open(sleep=sleep)
        await ground.apply(order(uri="late:1"), whole=True)
        await eventually(lambda: len(slept) == 7)
        assert ground.copy().history.retry_at == retry_at == ground.machine.clock.now() + slept[-1]
        assert slept[:6] == [1, 2, 4, 8, 16, 32]

    async def test_wait_for_an_image_that_is_not_there_and_say_so(self, ground: Ground) -> None:
        waits: list[asyncio.Event] = []

        async def sleep(seconds: float) -> None:
            waits.append(asyncio.Event())
            await waits[-1].wait()
            ground.machine.clock.advance(seconds)

        await ground.leave()
        await ground.open(sleep=sleep)
        await ground.apply(order(uri="late:1"))
        await eventually(lambda: waits)
        assert (ground.status(), ground.copy().history.streak) == ("STARTING", 1)
        assert ground.reports()[-1].reason.startswith("not started yet: there is no image 'late:1'")
        ground.machine.add_image("late:1")
        waits[0].set()
        await ground.until("RUNNING")
        assert ground.statuses() == ["STARTING", "RUNNING"]

    async def test_say_how_far_a_pull_has_come_and_hold_nobody_up(self, ground: Ground) -> None:
        ground.node.images.gate = asyncio.Event()
        await ground.apply(order(id="slow"))
        await eventually(lambda: ground.reports("slow")[-1:] and ground.reports("slow")[-1].reason)
        assert ground.reports("slow")[-1].reason == "pulling: pulling"
        ground.node.images.gate, gate = None, ground.node.images.gate
        await run(ground, id="quick")
        assert ground.status("slow") == "STARTING"
        gate.set()
        await ground.until("RUNNING", "slow")

    async def test_say_while_they_pull_again_why_the_try_before_failed(self, ground: Ground) -> None:
        async def sleep(seconds: float) -> None:
            ground.machine.add_image("late:1")
            ground.node.images.gate = asyncio.Event()
            ground.machine.clock.advance(seconds)

        await ground.leave()
        await ground.open(sleep=sleep)
        await ground.apply(order(uri="late:1"))
        failed = "pulling: pulling; the try before failed: there is no image 'late:1'"
        await eventually(lambda: ground.reports() and ground.reports()[-1].reason.startswith(failed))
        assert "next try" not in ground.reports()[-1].reason
        assert ground.node.images.gate is not None
        ground.node.images.gate.set()
        await ground.until("RUNNING")

    @pytest.mark.parametrize(("desired", "status"), [(STOPPED, "STOPPED"), (DESTROYED, "TERMINATED")])
    async def test_are_given_up_during_a_pull(
        self, ground: Ground, desired: DesiredStatus, status: str
    ) -> None:
        ground.node.images.gate = asyncio.Event()  # which nobody opens
        await ground.apply(order())
        await eventually(lambda: ground.reports()[-1:] and ground.reports()[-1].reason)
        await ground.apply(order(desired))
        await ground.until(status)
        assert (ground.view(), ground.machine.held()) == (None, [])

    async def test_are_few_at_once_and_each_comes_to_its_turn(self, ground: Ground) -> None:
        await ground.leave()
        crowd = Crowd(await ground.node.agent())
        await ground.open(containers=crowd, starts_at_once=3)
        await ground.apply(*(order(id=f"n{number}") for number in range(10)))
        for begun in range(3, 11):
            await eventually(lambda: crowd.begun == begun)  # noqa: B023 - awaited
            assert crowd.under_way <= 3
            crowd.let_one_go()
        for _ in range(2):
            crowd.let_one_go()
        for number in range(10):
            await ground.until("RUNNING", f"n{number}")
        assert crowd.most == 3

    async def test_that_wait_for_their_turn_can_be_given_up(self, ground: Ground) -> None:
        await ground.leave()
        crowd = Crowd(await ground.node.agent())
        await ground.open(containers=crowd, starts_at_once=1)
        await ground.apply(order(id="first"))
        await eventually(lambda: crowd.begun == 1)
        await ground.apply(order(id="second"))
        await eventually(lambda: ground.view("second"))
        await ground.apply(order(DESTROYED, id="second"))
        await ground.until("TERMINATED", "second")
        crowd.let_one_go()
        await ground.until("RUNNING", "first")

    async def test_that_fail_after_another_order_came_are_no_failures_of_that(self, ground: Ground) -> None:
        await ground.leave()
        crowd = Crowd(await ground.node.agent())
        await ground.open(containers=crowd)
        await ground.apply(order(restart="never"))
        await eventually(lambda: crowd.begun == 1)
        ground.machine.failing["mount"] = errors.Invalid("not like that")
        await ground.apply(order(generation=2, restart="never"))
        crowd.let_one_go()
        await eventually(lambda: crowd.begun == 2)
        crowd.let_one_go()
        await eventually(lambda: ground.statuses() == ["STARTING", "RUNNING"])
        assert ground.reports()[-1].generation == 2


class Crowd:
    """Containers whose starts take until they are let go."""

    def __init__(self, containers: object) -> None:
        self._containers = containers
        self._gates: list[asyncio.Event] = []
        self.begun = self.under_way = self.most = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._containers, name)

    def let_one_go(self) -> None:
        self._gates.pop(0).set()

    async def start(self, name: str) -> object:
        gate = asyncio.Event()
        self._gates.append(gate)
        self.begun, self.under_way = self.begun + 1, self.under_way + 1
        self.most = max(self.most, self.under_way)
        await gate.wait()
        self.under_way -= 1
        return await self._containers.start(name)  # type: ignore[attr-defined]


class TestTrouble:
    async def test_with_what_does_not_die_is_tried_again(self, ground: Ground) -> None:
        await run(ground)
        ground.process().is_unkillable = True
        ground.process().is_stubborn = True
        ground.node.settings = replace(ground.node.settings, stop_grace_s=0.0)
        await ground.leave()
        await ground.open()
        await ground.apply(order(STOPPED))
        await eventually(lambda: len(ground.time.slept) > 3)
        assert ground.reports()[-1].status is InstanceStatus.STOPPING
        assert "do not exit" in ground.reports()[-1].reason
        ground.process().is_unkillable = False
        await ground.until("STOPPED")

    async def test_of_one_is_nobody_elses(self, ground: Ground) -> None:
        ground.machine.failing["allocate"] = RuntimeError("a fault of ours")
        await ground.apply(order(id="odd"))
        await run(ground, id="even")
        await ground.until("RUNNING", "odd")

    async def test_what_runs_by_hand_and_should_not_is_stopped(self, ground: Ground) -> None:
        await run(ground)
        await ground.apply(order(STOPPED))
        await ground.until("STOPPED")
        await ground.containers.start(NAME)
        await ground.instances.sample_usage()

        def is_stopped() -> bool:
            view = ground.view()
            return view is not None and view.state is ContainerState.EXITED

        await eventually(is_stopped)

    async def test_a_machine_that_was_restarted_goes_on_with_its_orders(self, ground: Ground) -> None:
        await run(ground, restart="on-failure")
        await run(ground, id="still")
        await ground.apply(order(STOPPED, id="still"))
        await ground.until("STOPPED", "still")
        ground.acknowledge()
        await ground.leave()
        ground.node.reboot()
        await ground.open()
        await eventually(lambda: ground.statuses() == ["CRASHED", "STARTING", "RUNNING"])
        assert ground.reports()[0].reason == "the machine was restarted while it ran"
        assert ground.status("still") == "STOPPED"

    async def test_a_record_that_cannot_be_read_keeps_nobody_from_starting(self, ground: Ground) -> None:
        await run(ground)
        await ground.leave()
        (ground.folder / "copies" / "odd.json").write_text("{")
        (ground.folder / "copies" / ".half.json.new").write_text("{")
        await ground.open()
        assert ground.status() == "RUNNING"
        assert ground.records() == [f"{ID}.json", "odd.json"]


class TestReports:
    async def test_stay_until_they_are_acknowledged_also_over_a_restart(self, ground: Ground) -> None:
        await run(ground)
        first = ground.instances.reports(0, 1)[0]
        ground.instances.acknowledge(first.number)
        assert ground.statuses() == ["RUNNING"]
        await ground.leave()
        await ground.open()
        assert ground.statuses() == ["RUNNING"]
        ground.process().exit(code=1)
        await eventually(lambda: ground.statuses()[:2] == ["RUNNING", "CRASHED"])
        numbers = [reported.number for reported in ground.instances.reports(0, 100)]
        assert numbers == sorted(set(numbers))

    async def test_come_in_order_and_some_at_a_time(self, ground: Ground) -> None:
        for number in range(4):
            await run(ground, id=f"n{number}")
        some = ground.instances.reports(0, 3)
        rest = ground.instances.reports(some[-1].number, 100)
        assert (len(some), len(rest)) == (3, 5)
        assert some[-1].number < rest[0].number

    async def test_are_not_passed_over_when_the_disk_keeps_them_waiting(
        self, ground: Ground, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await run(ground, restart="never")
        await run(ground, id="other")
        ground.acknowledge()
        disk, sync = threading.Event(), InstanceRecords.sync

        def sync_slowly(records: InstanceRecords, instances: Sequence[InstanceId]) -> None:
            assert ID not in instances or disk.wait(PATIENCE_S)
            sync(records, instances)

        monkeypatch.setattr(InstanceRecords, "sync", sync_slowly)
        ground.process().exit(code=0)
        await ground.until("TERMINATED")
        ground.process("other").exit(code=1)
        await eventually(lambda: ground.statuses()[:1] == ["CRASHED"])
        latest = ground.instances.reports(0, 100)[-1].number
        ground.instances.acknowledge(latest)
        disk.set()

        def is_reported() -> bool:
            later = (reported.report for reported in ground.instances.reports(latest, 100))
            return any(
                report.instance == ID and report.status is InstanceStatus.TERMINATED for report in later
            )

        await eventually(is_reported)

    async def test_wake_whoever_waits_for_them(self, ground: Ground) -> None:
        waiting = asyncio.ensure_future(ground.instances.wait_for_reports())
        await ground.apply(order())
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert ground.statuses()[0] == "STARTING"

    async def test_of_everything_there_is_are_an_inventory(self, ground: Ground) -> None:
        await run(ground)
        await run(ground, id="other")
        ground.acknowledge()
        assert {(each.instance, str(each.status)) for each in ground.instances.inventory()} == {
            (ID, "RUNNING"),
            ("other", "RUNNING"),
        }

    async def test_tell_what_is_used_when_it_changes(self, ground: Ground) -> None:
        await run(ground)
        ground.machine.used[ground.node.folder / NAME / "layer"] = 3 * 1024**3
        await ground.instances.sample_usage()
        (report,) = ground.instances.take_usage()
        assert (report.status, report.usage) == (InstanceStatus.RUNNING, Resources(0, 0, 3))
        assert ground.instances.disk_bytes == 3 * 1024**3
        await ground.instances.sample_usage()
        assert ground.instances.take_usage() == []
        await ground.apply(order(STOPPED))
        await ground.until("STOPPED")
        await ground.instances.sample_usage()
        assert ground.instances.take_usage() == []

    async def test_do_not_show_the_environment(self, ground: Ground) -> None:
        await run(ground, environment=("SECRET=hunter2",))
        stored = json.loads((ground.folder / "copies" / f"{ID}.json").read_text())
        assert "hunter2" not in json.dumps(stored["pending"])


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("01hxabc", "i-01hxabc"),
        ("a-b", "i-a-b"),
        ("Upper", "i--"),
        ("with.dot", "i--"),
        ("x" * 61, "i-" + "x" * 61),
        ("x" * 62, "i--"),
        ("x" * 128, "i--"),
    ],
)
def test_every_id_has_a_container_of_its_own(id: str, name: str) -> None:
    made = container_name(InstanceId(id))
    assert made.startswith(name)
    assert ContainerSpec(made, "web:1").name == made
    assert container_name(InstanceId(id.lower() + "y")) != made
