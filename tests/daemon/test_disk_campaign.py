"""The short version of `make soak ARGS=disk`, and that what the campaign is there to find would be found."""

from __future__ import annotations

import pytest
from bench.soak import disk

SEED = 14


@pytest.mark.root
@pytest.mark.timeout(900)  # many commands one after the other, on a machine that may be busy
def test_whatever_ends_on_a_full_disk_what_is_said_of_it_is_true_and_it_can_be_stopped_and_deleted() -> None:
    assert disk.run(rounds=1, seed=SEED) == []


@pytest.mark.parametrize(
    "shown", [None, {"code": None, "signal": None}, {"code": 0, "signal": None}, {"code": None, "signal": 15}]
)
def test_the_campaign_takes_no_other_exit_for_the_true_one(shown: dict[str, int | None] | None) -> None:
    assert disk.BY_ITSELF.differs(shown)
    assert disk.KILLED.differs(shown)


def test_the_campaign_knows_the_exits_of_what_it_ends() -> None:
    assert disk.BY_ITSELF.differs({"code": 3, "signal": None}) == ""
    assert disk.KILLED.differs({"code": None, "signal": 9, "at": 1.0}) == ""
    assert (disk.BY_ITSELF.exit_code, disk.KILLED.exit_code) == (3, 137)
