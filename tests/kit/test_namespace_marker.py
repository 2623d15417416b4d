"""The users of the machine, as they are called in a user namespace."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.kit import namespace_marker

ROWS = ((0, 1000, 1), (1, 100_000, 65_536))
OVERFLOW = 65_534


def test_user_0_of_the_namespace_is_its_user_on_the_machine() -> None:
    assert namespace_marker.outside(0, ROWS, OVERFLOW) == 1000


def test_ids_of_the_range_are_those_that_were_assigned() -> None:
    assert namespace_marker.outside(1, ROWS, OVERFLOW) == 100_000
    assert namespace_marker.outside(65_536, ROWS, OVERFLOW) == 165_535


def test_the_number_for_all_unknown_users_is_nobody_also_where_it_is_mapped() -> None:
    assert namespace_marker.outside(OVERFLOW, ROWS, OVERFLOW) is None
    assert namespace_marker.outside(70_000, ROWS, OVERFLOW) is None


def test_outside_of_our_namespaces_users_are_who_they_are(tmp_path: Path) -> None:
    assert namespace_marker.read(tmp_path / "skerry-namespace") is None
    assert namespace_marker.machine_uid(4242) == 4242
    assert namespace_marker.own_uid() == os.geteuid()
