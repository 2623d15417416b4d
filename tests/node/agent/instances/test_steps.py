"""What is done next with an instance: for every way a run can end, and for anything in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.model import errors, statuses
from skerry.model.containers import ContainerState
from skerry.model.network import Egress
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import WorkloadKind
from skerry.node.agent.instances.state import LocalInstance, LocalStatus
from skerry.node.agent.instances.steps import InstanceAction, ReportStatus, RunAction, WaitUntil, next_step
from tests.node.agent.instances.worlds import ID, TERMS, World, order, spec

RUNNING, STOPPED, DESTROYED = DesiredStatus.RUNNING, DesiredStatus.STOPPED, DesiredStatus.DESTROYED


def last(world: World) -> LocalInstance:
    assert world.copy is not None
    return world.copy


def running(**more: object) -> World:
    world = World(order(**more))  # type: ignore[arg-type]
    world.settle()
    assert world.statuses == ["STARTING", "RUNNING"]
    world.reported.clear()
    world.acts.clear()
    return world


def test_a_new_instance_is_created_and_started_and_told_with_its_address() -> None:
    world = World()
    world.settle()
    assert world.statuses == ["STARTING", "RUNNING"]
    assert world.acts == [InstanceAction.CREATE, InstanceAction.START]
    report = last(world).report()
    assert (report.ip, report.exit_code, report.restarts) == ("10.64.1.7", None, 0)
    assert world.view is not None
    assert report.at == world.view.started_at


def test_a_clock_that_is_set_back_does_not_turn_the_order_of_reports_around() -> None:
    world = running()
    world.now -= 3600
    world.exit(1)
    world.settle()
    assert world.statuses[0] == "CRASHED"
    times = [reported.report.at for reported in last(world).pending]
    assert times == sorted(times)


class TestAnEnd:
    @pytest.mark.parametrize(("restart", "budget"), [("never", 10), ("on-failure", 10), ("always", 0)])
    def test_with_code_0_is_the_end_of_one_that_need_not_run_again(self, restart: str, budget: int) -> None:
        world = running(restart=restart, budget=budget)
        world.exit(0)
        world.settle()
        assert world.statuses == ["TERMINATED"]
        assert last(world).report().exit_code == 0
        assert last(world).report().reason == "ended with code 0"
        assert world.acts == []
        assert world.view is not None  # what it wrote can still be read

    def test_with_code_0_is_followed_by_a_start_if_it_is_always_to_run(self) -> None:
        world = running(restart="always")
        world.exit(0)
        world.settle()
        assert world.statuses == ["STARTING", "RUNNING"]
        assert last(world).report().restarts == 1

    @pytest.mark.parametrize(
        ("how", "code", "word"),
        [
            ({"code": 3}, 3, "code 3"),
            ({"signal": 9}, 137, "SIGKILL"),
            ({"signal": 9, "oom": True}, 137, "memory"),
            ({"code": 137, "oom": True}, 137, "memory"),  # a shell tells of its child
        ],
    )
    def test_that_is_bad_is_a_crash_which_says_why(self, how: dict[str, int], code: int, word: str) -> None:
        world = running(restart="never")
        world.exit(**how)
        world.settle()
        assert world.statuses == ["CRASHED", "FAILED"]
        crash, over = [reported.report for reported in last(world).pending[-2:]]
        assert (crash.exit_code, over.exit_code) == (code, code)
        assert word in crash.reason
        assert over.reason == f"{crash.reason}; restart is never"

    def test_for_the_disk_says_so(self) -> None:
        world = running(restart="never")
        world.exit(signal=9)
        assert world.view is not None
        world.view = replace(world.view, reason="it had written 9 MB, and may keep 8; it was killed")
        world.settle()
        assert "9 MB" in last(world).report().reason

    def test_with_the_machine_is_a_crash_of_unknown_code(self) -> None:
        world = running(restart="on-failure")
        world.reboot()
        world.settle()
        assert world.statuses == ["CRASHED", "STARTING", "RUNNING"]
        crash = last(world).pending[-3].report
        assert (crash.exit_code, crash.reason) == (None, "the machine was restarted while it ran")

    def test_by_the_removal_of_its_container_is_a_crash(self) -> None:
        world = running()
        world.view = None
        world.settle()
        assert world.statuses == ["CRASHED", "STARTING", "RUNNING"]
        assert world.acts == [InstanceAction.CREATE, InstanceAction.START]

    def test_that_nobody_saw_is_told_after_the_run_it_ended(self) -> None:
        world = World(order(restart="never"))
        world.step(), world.step(), world.step()
        assert world.acts == [InstanceAction.CREATE, InstanceAction.START]
        world.exit(7)  # before anybody looked
        world.settle()
        assert world.statuses == ["STARTING", "RUNNING", "CRASHED", "FAILED"]


class TestRestarts:
    def test_come_after_pauses_that_double_up_to_the_longest(self) -> None:
        world = running(budget=9)
        pauses = []
        for _ in range(9):
            world.exit(1)
            before = world.now
            assert isinstance(world.step(), ReportStatus)
            step = world.step()
            assert isinstance(step, WaitUntil)
            assert step.until is not None
            pauses.append(step.until - before)
            world.settle()
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])
        world.exit(1)
        world.settle()
        assert last(world).history.status is InstanceStatus.FAILED
        assert last(world).history.reason == "ended with code 1; all 9 restarts are used up"
        assert last(world).history.restarts == 9

    def test_go_on_for_ever_if_no_budget_is_asked_for(self) -> None:
        world = running()
        for _ in range(200):
            world.exit(1)
            world.settle()
        assert last(world).history.status is InstanceStatus.RUNNING
        assert last(world).history.restarts == 200
        assert "FAILED" not in world.statuses

    def test_of_what_waits_are_told_with_the_time_of_the_next_try(self) -> None:
        world = running()
        world.exit(3)
        world.step()
        report = last(world).report()
        assert (report.status, report.exit_code, report.retry_at) == (
            InstanceStatus.CRASHED,
            3,
            world.now + 1,
        )
        world.settle()
        assert last(world).report().retry_at is None

    def test_differ_by_chance(self) -> None:
        pauses = set()
        for chance in (0.0, 1.0):
            world = running()
            world.chance = chance
            world.exit(1)
            world.step()
            pauses.add(last(world).history.retry_at)
        assert len(pauses) == 2

    def test_are_counted_anew_after_a_run_that_lasted(self) -> None:
        world = running(budget=2)
        for _ in range(5):
            world.exit(1)
            world.settle()
            assert last(world).history.status is InstanceStatus.RUNNING
            world.exit(1, after=TERMS.restart_reset_s)
            world.settle()
            assert last(world).history.status is InstanceStatus.RUNNING
        assert last(world).history.restarts == 10

    def test_wait_no_longer_because_the_clock_was_set_back(self) -> None:
        world = running()
        world.exit(1)
        world.step()
        world.now -= 86_400
        assert isinstance(world.step(), ReportStatus)
        assert last(world).history.status is InstanceStatus.STARTING

    def test_do_not_come_while_it_is_to_be_stopped(self) -> None:
        world = running()
        world.exit(1)
        world.step()
        world.order(order(STOPPED))
        world.settle()
        assert world.statuses == ["CRASHED", "STOPPED"]
        assert world.acts == []
        assert last(world).report().exit_code == 1


class TestAStartThatFails:
    @pytest.mark.parametrize("error", [errors.Invalid, errors.Unprocessable, errors.TooLarge])
    def test_for_what_cannot_be_is_the_end(self, error: type[errors.SkerryError]) -> None:
        world = World(order(restart="on-failure"))
        world.failures = [error("no user `nobody`")]
        world.settle()
        assert world.statuses == ["STARTING", "FAILED"]
        assert last(world).history.reason == "not started: no user `nobody`"

    @pytest.mark.parametrize("error", [errors.Invalid, errors.Unprocessable, errors.NotFound])
    def test_is_tried_again_for_ever_with_restart_always(self, error: type[errors.SkerryError]) -> None:
        world = World()
        world.failures = [error("no such image")] * 100
        world.settle()
        assert world.statuses == ["STARTING"] * 101 + ["RUNNING"]

    @pytest.mark.parametrize(
        "error",
        [
            errors.NotFound,
            errors.FailedPrecondition,
            errors.Unavailable,
            errors.TimedOut,
            errors.Overloaded,
            errors.ResourcesExhausted,
        ],
    )
    def test_for_what_may_pass_is_tried_again_and_says_why(self, error: type[errors.SkerryError]) -> None:
        world = World()
        world.failures = [error("no registry")]
        world.step(), world.step()
        next_try = "next try at 1970-01-01 00:16:41 UTC"
        assert last(world).history.reason == f"not started yet: no registry; {next_try}"
        assert last(world).report().retry_at == 1001
        world.settle()
        assert world.statuses == ["STARTING", "STARTING", "RUNNING"]
        assert last(world).report().restarts == 0  # it had not run before

    def test_is_tried_as_often_as_the_budget_allows(self) -> None:
        world = World(order(budget=3))
        world.failures = [errors.NotFound("no such image")] * 9
        world.settle()
        assert world.statuses == ["STARTING"] * 4 + ["FAILED"]
        assert last(world).history.reason == "not started: no such image; tried 4 times"

    def test_is_not_tried_again_if_it_is_never_to_be_restarted(self) -> None:
        world = World(order(restart="never"))
        world.failures = [errors.NotFound("no such image")]
        world.settle()
        assert world.statuses == ["STARTING", "FAILED"]


class TestStopping:
    def test_keeps_the_container_and_starting_again_uses_it(self) -> None:
        world = running()
        world.order(order(STOPPED))
        world.settle()
        assert world.statuses == ["STOPPING", "STOPPED"]
        assert last(world).report().exit_code == 143
        world.order(order(RUNNING))
        world.settle()
        assert world.statuses == ["STOPPING", "STOPPED", "STARTING", "RUNNING"]
        assert world.acts == [InstanceAction.STOP, InstanceAction.START]
        assert last(world).report().restarts == 0

    def test_that_is_taken_back_is_finished_first(self) -> None:
        world = running()
        world.order(order(STOPPED))
        world.step()
        world.order(order(RUNNING))
        world.settle()
        assert world.statuses == ["STOPPING", "STOPPED", "STARTING", "RUNNING"]

    def test_what_never_started_starts_nothing(self) -> None:
        world = World(order(STOPPED))
        world.settle()
        assert (world.statuses, world.acts) == (["STOPPED"], [])

    def test_what_is_being_started_goes_through_stopping(self) -> None:
        world = World()
        world.step()
        world.order(order(STOPPED))
        world.settle()
        assert world.statuses == ["STARTING", "STOPPING", "STOPPED"]
        assert world.acts == []

    def test_what_is_over_leaves_it_over(self) -> None:
        world = running(restart="never")
        world.exit(0)
        world.settle()
        world.order(order(STOPPED, restart="never"))
        world.settle()
        assert world.statuses == ["TERMINATED"]
        assert world.view is not None

    @pytest.mark.parametrize("desired", [STOPPED, RUNNING])
    def test_what_somebody_started_by_hand_and_is_over_stops_it(self, desired: DesiredStatus) -> None:
        world = running(restart="never")
        world.exit(0)
        world.settle()
        world.order(order(desired, restart="never"))
        world.start()
        world.settle()
        assert world.acts == [InstanceAction.STOP]
        assert world.statuses == ["TERMINATED"]


class TestDestroying:
    def test_removes_everything_tells_it_and_forgets_when_that_is_known(self) -> None:
        world = running()
        world.order(order(DESTROYED))
        world.settle()
        assert world.statuses == ["TERMINATED"]
        assert world.acts == [InstanceAction.REMOVE]
        assert last(world).pending
        world.acknowledge()
        assert world.settle() is None
        assert world.acts == [InstanceAction.REMOVE, InstanceAction.FORGET]

    def test_is_told_also_of_what_was_over_and_of_what_never_was(self) -> None:
        over = running(restart="never")
        over.exit(0)
        over.settle()
        over.acknowledge()
        over.order(order(DESTROYED, restart="never"))
        over.settle()
        assert over.statuses == ["TERMINATED", "TERMINATED"]
        never = World(order(DESTROYED))
        never.settle()
        assert never.statuses == ["TERMINATED"]
        assert [reported.report.reason for world in (over, never) for reported in last(world).pending] == [
            "removed"
        ] * 2


class TestAnotherGeneration:
    def test_with_another_spec_is_made_anew(self) -> None:
        world = running()
        world.order(order(generation=2, uri="web:2"))
        world.settle()
        assert world.acts == [InstanceAction.REMOVE, InstanceAction.CREATE, InstanceAction.START]
        assert world.statuses == ["STARTING", "RUNNING"]
        assert world.view is not None
        assert world.view.spec.image == "web:2"

    def test_with_the_same_spec_keeps_what_runs(self) -> None:
        world = running()
        world.order(order(generation=2))
        world.settle()
        assert world.acts == []
        assert world.statuses == ["STARTING", "RUNNING"]

    def test_does_not_take_an_earlier_end_for_its_own(self) -> None:
        world = running(restart="never")
        world.exit(0)
        world.settle()
        world.order(order(generation=2, restart="never"))
        world.settle()
        assert world.statuses == ["STARTING", "RUNNING"]
        assert world.acts == [InstanceAction.START]

    def test_that_is_lower_is_refused(self) -> None:
        world = running(generation=3)
        world.order(order(DESTROYED, generation=2))
        world.settle()
        assert world.acts == []
        assert last(world).order.desired is RUNNING

    def test_another_restart_policy_alone_changes_no_container(self) -> None:
        world = running()
        world.order(order(generation=2, restart="never"))
        world.settle()
        assert world.acts == []

    def test_another_egress_alone_changes_what_runs_and_restarts_nothing(self) -> None:
        world = running()
        for egress in (Egress.INTERNET, Egress.ALL):
            world.order(order(egress=egress))
            world.settle()
            assert world.view is not None
            assert world.view.access.egress is egress
        assert (world.acts, world.statuses) == ([InstanceAction.RESTRICT] * 2, [])

    def test_a_leased_cell_has_no_network_to_restrict(self) -> None:
        wanted = order()
        wanted = replace(wanted, spec=replace(wanted.spec, kind=WorkloadKind.CELL))
        world = World(wanted)
        world.settle()
        world.order(replace(wanted, generation=2, egress=Egress.INTERNET))
        world.settle()
        assert InstanceAction.RESTRICT not in world.acts

    def test_another_egress_holds_before_what_was_stopped_starts(self) -> None:
        world = running()
        world.order(order(STOPPED))
        world.settle()
        world.acts.clear()
        world.order(order(egress=Egress.INTERNET))
        world.settle()
        assert world.acts == [InstanceAction.RESTRICT, InstanceAction.START]

    def test_a_removal_that_was_begun_is_finished_before_anything_is_made(self) -> None:
        world = running()
        assert world.view is not None
        world.view = replace(world.view, state=ContainerState.REMOVING)
        world.settle()
        assert world.acts == [InstanceAction.REMOVE, InstanceAction.CREATE, InstanceAction.START]


ORDERS = st.builds(
    order,
    st.sampled_from([RUNNING, RUNNING, STOPPED]),
    generation=st.integers(1, 4),
    restart=st.sampled_from(["always", "on-failure", "never"]),
    budget=st.integers(0, 4),
    uri=st.sampled_from(["web:1", "web:2"]),
)
FAILURES = st.sampled_from(
    [
        errors.Invalid("bad"),
        errors.NotFound("no image"),
        errors.Unavailable("away"),
        errors.ResourcesExhausted("full"),
    ]
)
EVENTS = st.one_of(
    st.tuples(st.just("order"), ORDERS),
    st.tuples(st.just("exit"), st.integers(0, 2)),
    st.tuples(st.just("step"), st.integers(1, 5)),
    st.tuples(st.just("fail"), FAILURES),
    st.tuples(st.just("lapse"), st.floats(0, 1000)),
    st.tuples(st.just("set clock"), st.floats(-5000, 5000)),
    st.tuples(st.sampled_from(["reboot", "remove by hand", "start by hand", "stop by hand", "acknowledge"])),
)


def happen(world: World, event: tuple[object, ...]) -> None:
    runs = world.view is not None and world.view.state is ContainerState.RUNNING
    match event:
        case ("order", wanted):
            world.order(wanted)  # type: ignore[arg-type]
        case ("exit", code) if runs:
            world.exit(code)  # type: ignore[arg-type]
        case ("step", count):
            for _ in range(count):  # type: ignore[call-overload]
                if world.copy is not None:
                    world.step()
        case ("fail", error):
            world.failures.append(error)  # type: ignore[arg-type]
        case ("lapse" | "set clock", seconds):
            world.now += seconds  # type: ignore[operator]
        case ("reboot",):
            world.reboot()
        case ("remove by hand",):
            world.view = None
        case ("start by hand",) if world.view is not None and not runs:
            world.start()
        case ("stop by hand",) if runs:
            world.exit(signal=15)
        case ("acknowledge",):
            world.acknowledge()


def check_path(world: World) -> None:
    """What was told of each generation is a way through the state machine."""
    before: dict[int, InstanceStatus] = {}
    for generation, status in world.reported:
        assert statuses.may_become(before.get(generation, InstanceStatus.SCHEDULED), status)
        before[generation] = status


@given(first=ORDERS, events=st.lists(EVENTS, max_size=40))
def test_whatever_happens_it_is_told_truly_and_gets_to_what_is_wanted(
    first: object, events: list[tuple[object, ...]]
) -> None:
    world = World(first)  # type: ignore[arg-type]
    for event in events:
        happen(world, event)
        copy = last(world)
        assert copy.order.generation == max(
            [copy.order.generation, *(number for number, _ in world.reported)]
        )
    world.failures.clear()
    world.settle()
    check_path(world)
    copy, runs = last(world), world.view is not None and world.view.state is ContainerState.RUNNING
    assert runs == (copy.history.status is InstanceStatus.RUNNING)
    assert (
        copy.history.status
        in {
            RUNNING: {InstanceStatus.RUNNING, *TERMINAL},
            STOPPED: {InstanceStatus.STOPPED, *TERMINAL},
            DESTROYED: {InstanceStatus.TERMINATED},
        }[copy.order.desired]
    )
    # And away it goes, from wherever it is.
    world.order(replace(copy.order, desired=DESTROYED))
    world.settle()
    assert (world.view, world.reported[-1][1]) == (None, InstanceStatus.TERMINATED)
    world.acknowledge()
    assert world.settle() is None


@given(first=ORDERS, events=st.lists(EVENTS, max_size=40))
def test_nothing_is_started_that_is_not_to_run_and_no_more_often_than_it_may(
    first: object, events: list[tuple[object, ...]]
) -> None:
    world = World(first)  # type: ignore[arg-type]
    for event in events:
        happen(world, event)
        step = next_step(world.situation())
        if isinstance(step, RunAction) and step.action in (InstanceAction.CREATE, InstanceAction.START):
            assert last(world).order.desired is RUNNING
            assert last(world).history.status is InstanceStatus.STARTING  # told before it is done
            assert last(world).history.streak <= 4
        if isinstance(step, RunAction) and step.action is InstanceAction.CREATE:
            assert world.view is None


def test_the_test_orders_are_of_one_instance() -> None:
    assert order().instance == ID
    assert order().spec == spec()


def test_an_exit_code_is_that_of_the_previous_run_once_another_runs() -> None:
    crashed = LocalStatus().become(InstanceStatus.CRASHED, 1.0, "", exit_code=3)
    assert (crashed.exit_code, crashed.previous_exit_code) == (3, None)
    running = crashed.become(InstanceStatus.RUNNING, 2.0, "")
    assert (running.exit_code, running.previous_exit_code) == (None, 3)
    again = running.become(InstanceStatus.CRASHED, 3.0, "", exit_code=0)
    assert (again.exit_code, again.previous_exit_code) == (0, 3)
    assert again.become(InstanceStatus.RUNNING, 4.0, "").previous_exit_code == 0
