"""What docs/kudo.md says in tables is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.statuses import TRANSITIONS, InstanceStatus, of_node
from skerry.transport.proto import kudo_controller_pb2, kudo_scheduler_pb2
from skerry.wire.kudo.grpc_services import RegistrationCode

PAGE = Path(__file__).parents[3] / "docs" / "kudo.md"


def table(header: str) -> list[list[str]]:
    """The rows under the line that begins with `header`, cell by cell."""
    lines = iter(PAGE.read_text().splitlines())
    assert any(line.startswith(header) for line in lines), header
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_numbers_of_every_status() -> None:
    rows = table("| status | `SchedulerService` |")
    assert {names(row[0])[0] for row in rows} == set(InstanceStatus)
    for cell, older, newer, of_a_node in rows:
        [name] = names(cell)
        assert int(older) == kudo_controller_pb2.Status.Value(name)
        if name == InstanceStatus.CRASHED:
            assert newer == "reported as `FAILED`"
        else:
            assert int(newer) == kudo_scheduler_pb2.Status.Value(name)
        if names(of_a_node):
            with pytest.raises(errors.Invalid):
                of_node(InstanceStatus(name))
        else:
            assert of_node(InstanceStatus(name)) == of_a_node


def test_what_may_follow_what() -> None:
    told = {
        InstanceStatus(name): {InstanceStatus(then) for then in names(after)}
        for before, after in table("| from | to |")
        for name in names(before)
    }
    assert told == TRANSITIONS


def test_the_codes_of_a_registration() -> None:
    assert [int(code) for code, _ in table("| code | meaning |")] == list(RegistrationCode)
