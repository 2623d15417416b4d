"""Statuses by name: every pair of a document, a direction and a status, and none of them by chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.resources import Resources
from skerry.model.statuses import InstanceStatus, NodeStatus, of_node
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.transport.proto import kudo_controller_pb2, kudo_scheduler_pb2
from skerry.wire.kudo import grpc_controller_messages, grpc_scheduler_messages
from skerry.wire.kudo.grpc_status_numbers import CONTROLLER, SCHEDULER, StatusNumbers

DOCUMENTS = {"controller": (CONTROLLER, kudo_controller_pb2), "scheduler": (SCHEDULER, kudo_scheduler_pb2)}
LOSSY = {
    ("scheduler", InstanceStatus.CRASHED): (6, InstanceStatus.FAILED)
}  # what is told, and what is left without the reason


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("status", InstanceStatus)
def test_every_status_comes_back_as_it_went_out(document, status):
    numbers, file = DOCUMENTS[document]
    number = file.Status.Value(numbers.encoded_as(status))
    assert numbers.read(number, numbers.reason(status)) is status
    assert (number, numbers.read(number)) == LOSSY.get((document, status), (number, status))
    assert bool(numbers.reason(status)) is ((document, status) in LOSSY)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_number_goes_out_as_it_came_in(document):
    numbers, file = DOCUMENTS[document]
    for name, number in file.Status.items():
        assert numbers.read(number) == name
        assert file.Status.Value(numbers.encoded_as(numbers.read(number))) == number


@pytest.mark.parametrize("document", DOCUMENTS)
@given(number=st.integers(min_value=-(2**31), max_value=2**31 - 1))
def test_a_number_is_a_status_of_its_document_or_refused(document, number):
    numbers, file = DOCUMENTS[document]
    if number in file.Status.values():
        assert numbers.read(number) == file.Status.Name(number)
    else:
        with pytest.raises(errors.Invalid, match=rf"no status {number}; it is one of 0 \(RUNNING\)"):
            numbers.read(number)


def test_a_document_that_says_nothing_about_a_status_is_no_document():
    with pytest.raises(ValueError, match="every status"):
        StatusNumbers(kudo_scheduler_pb2.Status.items(), replacements={})


def test_only_the_word_makes_a_failure_of_the_newer_document_a_crash():
    assert SCHEDULER.read(6, "CRASHED") is InstanceStatus.CRASHED
    assert SCHEDULER.read(6, "crashed, perhaps") is InstanceStatus.FAILED
    assert SCHEDULER.read(5, "CRASHED") is InstanceStatus.TERMINATED
    assert CONTROLLER.read(7, "CRASHED") is InstanceStatus.FAILED


def seen(
    status: InstanceStatus, reason: str, exit_code: int | None = None
) -> kudo_scheduler_pb2.InstanceStatus:
    instance = Instance(
        "a", InstanceSpec("a", "example.org/a"), 1.0, ObservedState(status, 1.0, reason, "x", exit_code)
    )
    return grpc_scheduler_messages.encode_status(instance, Resources())


@pytest.mark.parametrize("status", InstanceStatus)
def test_an_instance_is_told_with_its_own_number_and_reason_or_as_crashed_in_words(status):
    told = seen(status, "so it was")
    if status is InstanceStatus.CRASHED:
        assert (told.status, told.statusDescription, told.reason) == (6, "CRASHED: so it was", "CRASHED")
    else:
        name = kudo_scheduler_pb2.Status.Name(told.status)
        assert (name, told.statusDescription, told.reason) == (status, "so it was", "")


@pytest.mark.parametrize("exit_code", [None, 0, 137, -1])
def test_an_exit_code_is_told_if_there_is_one_also_if_it_is_zero(exit_code):
    told = seen(InstanceStatus.TERMINATED, "", exit_code)
    assert (told.exit_code if told.HasField("exit_code") else None) == exit_code


NODES = {
    "STARTING": NodeStatus.REGISTERING,
    "RUNNING": NodeStatus.READY,
    "STOPPING": NodeStatus.DRAINING,
    "STOPPED": NodeStatus.DRAINED,
    "TERMINATED": NodeStatus.LEFT,
    "FAILED": NodeStatus.LOST,
    "CRASHED": NodeStatus.LOST,
}


@pytest.mark.parametrize(
    ("file", "read"),
    [
        (kudo_controller_pb2, grpc_controller_messages.reported_node),
        (kudo_scheduler_pb2, grpc_scheduler_messages.reported_node),
    ],
    ids=["controller", "scheduler"],
)
def test_the_statuses_of_nodes_are_those_that_mean_something_there(file, read):
    for name in file.Status.keys():  # noqa: SIM118 - a wrapper of protobuf's, which is no dict
        message = file.NodeStatus(id="n", status=name)
        if name in NODES:
            assert read(message).status is NODES[name] is of_node(InstanceStatus(name))
        else:
            with pytest.raises(errors.Invalid, match=f"a node cannot be {name}"):
                read(message)
