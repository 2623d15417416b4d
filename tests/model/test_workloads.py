"""Workloads and instances: specs are checked, wish and sight are apart, changes obey the machine."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.kit import ulid as fresh_ids
from skerry.model import errors, ids
from skerry.model.ids import InstanceId, Namespace, WorkloadId
from skerry.model.images import ImageAccess
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import (
    Instance,
    InstanceSpec,
    ObservedState,
    RestartMode,
    RestartPolicy,
    Workload,
    check_granted,
)

SPEC = InstanceSpec(
    name="web",
    uri="example.org/web:1.2",
    environment=("MODE=fast", "EMPTY=", "EQUATION=a=b"),
    resources=Resources(Millicores(500), Megabytes(128), Gigabytes(1)),
    ports=(PortMapping(8080, 80),),
)


def instance(
    status: InstanceStatus = InstanceStatus.SCHEDULING, desired: DesiredStatus = DesiredStatus.RUNNING
) -> Instance:
    return Instance(
        InstanceId("i-1"), SPEC, created_at=1.0, observed=ObservedState(status, since=1.0), desired=desired
    )


def test_nouns_survive_being_stored() -> None:
    workload = Workload(WorkloadId("w-1"), SPEC, created_at=1.0)
    assert json_codec.decode(json_codec.encode(workload), Workload) == workload
    assert json_codec.decode(json_codec.encode(instance()), Instance) == instance()


@pytest.mark.parametrize("name", ["", "-web", "web-", "a b", "a/b", "x" * 129, "web\n", "é"])
def test_a_spec_needs_a_good_name(name: str) -> None:
    with pytest.raises(errors.Invalid, match="name"):
        InstanceSpec(name=name, uri="image")


@pytest.mark.parametrize("name", ["default", "a", "shop-2", "x" * 63])
def test_a_namespace_is_a_short_word_in_lower_case(name: str) -> None:
    assert ids.check_namespace(name) == name


@pytest.mark.parametrize(
    "name", ["", "*", "Shop", "2nd", "-a", "a-", "a b", "a/b", "a.b", "a_b", "é", "a\n", "x" * 64]
)
def test_what_is_no_namespace_is_refused_wherever_it_is_named(name: str) -> None:
    with pytest.raises(errors.Invalid, match="must be 1 to 63 lower-case letters") as caught:
        Workload(WorkloadId("w-1"), SPEC, 1.0, namespace=Namespace(name))
    assert caught.value.field == "namespace"
    with pytest.raises(errors.Invalid, match="namespace"):
        replace(instance(), namespace=Namespace(name))


@given(st.floats(0, 2**48 / 1000 - 1), st.integers(0, 2**80 - 1))
def test_no_id_that_is_made_is_a_namespace(now: float, chance: int) -> None:
    with pytest.raises(errors.Invalid):
        ids.check_namespace(fresh_ids.new_id(now, lambda bits: chance))


def test_nouns_that_were_stored_without_a_namespace_are_in_the_default_one() -> None:
    for noun in (Workload(WorkloadId("w-1"), SPEC, created_at=1.0), instance()):
        fields = msgspec.to_builtins(noun)
        assert fields.pop("namespace") == "default"
        assert json_codec.decode(json_codec.encode(fields), type(noun)) == noun


@pytest.mark.parametrize("uri", ["", "two words", "a\nb", "x" * 2049])
def test_a_spec_needs_an_image(uri: str) -> None:
    with pytest.raises(errors.Invalid, match="uri"):
        InstanceSpec(name="web", uri=uri)


@pytest.mark.parametrize("variable", ["", "NOVALUE", "=value", "A=b\0", "A\nB=c", "A=" + "x" * 40_000])
def test_variables_read_key_and_value(variable: str) -> None:
    with pytest.raises(errors.Invalid, match=r"environment\[0\]"):
        InstanceSpec(name="web", uri="image", environment=(variable,))


def test_an_error_about_a_variable_does_not_show_its_value() -> None:
    with pytest.raises(errors.Invalid) as caught:
        InstanceSpec(name="web", uri="image", environment=("PASSWORD=hunter2", "PASSWORD=hunter3"))
    assert "PASSWORD" in caught.value.message
    assert "hunter" not in caught.value.message


def test_a_hundred_variables_are_enough() -> None:
    assert (
        len(InstanceSpec(name="web", uri="i", environment=tuple(f"K{n}=" for n in range(100))).environment)
        == 100
    )
    with pytest.raises(errors.Invalid, match="at most 100"):
        InstanceSpec(name="web", uri="i", environment=tuple(f"K{n}=" for n in range(101)))


@pytest.mark.parametrize(
    ("when", "exit_code", "restarts", "due"),
    [
        (RestartMode.NEVER, 1, 0, False),
        (RestartMode.ON_FAILURE, 0, 0, False),
        (RestartMode.ON_FAILURE, 1, 0, True),
        (RestartMode.ON_FAILURE, 137, 4, True),
        (RestartMode.ON_FAILURE, 1, 5, False),
        (RestartMode.ALWAYS, 0, 0, True),
        (RestartMode.ALWAYS, 0, 5, False),
    ],
)
def test_a_restart_is_due_by_policy_exit_code_and_budget(
    when: RestartMode, exit_code: int, restarts: int, due: bool
) -> None:
    assert RestartPolicy(when, budget=5).is_due(exit_code, restarts) is due


def test_a_policy_without_a_budget_is_written_so_that_servers_of_before_can_read_it() -> None:
    """They take a number, or their own default if there is none."""
    assert json_codec.encode(RestartPolicy(RestartMode.NEVER)) == b'{"when":"never"}'
    assert json_codec.decode(b'{"when":"never"}', RestartPolicy) == RestartPolicy(RestartMode.NEVER)
    assert json_codec.decode(json_codec.encode(RestartPolicy(budget=0)), RestartPolicy).budget == 0


def test_becoming_something_keeps_the_wish_and_says_who_and_why() -> None:
    before = instance(InstanceStatus.RUNNING, desired=DesiredStatus.STOPPED)
    after = before.become(InstanceStatus.CRASHED, at=7.0, reason="exit 1", actor="node/a", exit_code=1)
    assert after.observed == ObservedState(InstanceStatus.CRASHED, 7.0, "exit 1", "node/a", 1)
    assert after.desired is DesiredStatus.STOPPED
    assert before.observed.status is InstanceStatus.RUNNING


def test_a_repeat_keeps_the_time_and_takes_the_reason() -> None:
    waiting = instance().become(InstanceStatus.SCHEDULING, at=9.0, reason="no node has room", actor="skerry")
    assert (waiting.observed.since, waiting.observed.reason) == (1.0, "no node has room")


def test_an_impossible_change_is_refused() -> None:
    with pytest.raises(errors.FailedPrecondition, match="cannot become RUNNING"):
        instance(InstanceStatus.STOPPED).become(InstanceStatus.RUNNING, at=2.0, reason="", actor="somebody")


def test_a_wish_does_not_touch_what_is_seen() -> None:
    wished = instance(InstanceStatus.RUNNING).with_desired(DesiredStatus.STOPPED)
    assert (wished.desired, wished.observed) == (
        DesiredStatus.STOPPED,
        instance(InstanceStatus.RUNNING).observed,
    )


@pytest.mark.parametrize("desired", [DesiredStatus.RUNNING, DesiredStatus.STOPPED])
def test_what_is_to_be_destroyed_cannot_be_called_back(desired: DesiredStatus) -> None:
    doomed = instance(InstanceStatus.RUNNING, desired=DesiredStatus.DESTROYED)
    assert doomed.with_desired(DesiredStatus.DESTROYED) == doomed
    with pytest.raises(errors.FailedPrecondition, match="cannot be undone"):
        doomed.with_desired(desired)


@pytest.mark.parametrize("status", [InstanceStatus.TERMINATED, InstanceStatus.FAILED])
def test_what_is_over_can_only_be_destroyed(status: InstanceStatus) -> None:
    over = instance(status)
    assert over.with_desired(DesiredStatus.RUNNING) == over
    assert over.with_desired(DesiredStatus.DESTROYED).desired is DesiredStatus.DESTROYED
    with pytest.raises(errors.FailedPrecondition, match="final"):
        over.with_desired(DesiredStatus.STOPPED)


@pytest.mark.parametrize(
    ("uri", "granted", "access"),
    [
        ("example.org/web:1", None, ImageAccess.REGISTRIES),
        (f"sha256:{'a' * 64}", None, ImageAccess.REGISTRIES),
        (f"sha256:{'a' * 64}", ImageAccess.ALL, ImageAccess.ALL),
        ("rootfs:/srv", None, ImageAccess.ALL),
        ("rootfs:/srv", ImageAccess.REGISTRIES, ImageAccess.REGISTRIES),
    ],
)
def test_a_spec_says_what_its_image_may_be(
    uri: str, granted: ImageAccess | None, access: ImageAccess
) -> None:
    spec = replace(SPEC, uri=uri, granted_access=granted)
    assert json_codec.decode(json_codec.encode(spec), InstanceSpec).image_access is access


def test_a_record_of_a_version_that_recorded_no_grant_keeps_the_path_that_only_an_admin_could_name() -> None:
    record = msgspec.to_builtins(replace(SPEC, uri="rootfs:/srv"))
    del record["granted_access"]
    old = msgspec.convert(record, InstanceSpec)
    assert old.image_access is ImageAccess.ALL
    check_granted(replace(old, environment=()), old)
    for spec, before in ((old, None), (replace(old, uri="rootfs:/etc"), old), (old, SPEC)):
        with pytest.raises(errors.Forbidden):
            check_granted(spec, before)
