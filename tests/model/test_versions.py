"""Which versions open each other's data, and which nodes go with which servers."""

from __future__ import annotations

import pytest

from skerry import __version__
from skerry.model import errors, versions
from skerry.model.versions import DataStamp, Minor, Release

OURS = Release("0.5.3", Minor(0, 4), 7)


def test_the_previous_minor_version_is_the_one_before_this() -> None:
    ours = versions.CURRENT.minor
    assert versions.CURRENT.version == __version__
    assert versions.CURRENT.previous == Minor(ours.major, ours.minor - 1)


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("0.2.1", Minor(0, 2)),
        ("12.34.5rc1", Minor(12, 34)),
        ("0.1", Minor(0, 1)),
        ("0.3.dev2+g1f", Minor(0, 3)),
        ("", None),
        ("1", None),
        ("next", None),
        (" 0.2.0", None),
        ("0.1234567.0", None),
    ],
)
def test_a_version_is_read_up_to_its_minor_number(text: str, minor: Minor | None) -> None:
    assert versions.parse_minor(text) == minor


@pytest.mark.parametrize(
    "stamp", [DataStamp("0.4.0", 6), DataStamp("0.4.9"), DataStamp("0.5.0", 7), DataStamp("0.5.9", 7)]
)
def test_data_of_this_and_of_the_previous_minor_version_is_opened(stamp: DataStamp) -> None:
    versions.check_data(stamp, "the store", OURS)


@pytest.mark.parametrize(
    "stamp", [DataStamp("0.6.0", 7), DataStamp("0.6.0", 1), DataStamp("1.0.0", 7), DataStamp("0.5.4", 8)]
)
def test_data_of_a_later_version_or_format_is_refused_with_what_to_do(stamp: DataStamp) -> None:
    with pytest.raises(errors.FailedPrecondition) as refused:
        versions.check_data(stamp, "the store", OURS)
    assert refused.value.message == (
        f"the store was written by Skerry {stamp.version}, and this is 0.5.3: an earlier version does not"
        f" start on later data. Nothing was changed. Install Skerry {stamp.version} or later, or restore a"
        " backup of before the upgrade"
    )


def test_a_skipped_minor_version_is_to_be_installed_first() -> None:
    with pytest.raises(errors.FailedPrecondition, match=r"install Skerry 0\.3 and start it once, then go on"):
        versions.check_data(DataStamp("0.2.7", 2), "the store", OURS)


def test_a_stamp_without_a_version_is_refused() -> None:
    with pytest.raises(errors.FailedPrecondition, match="no version in it"):
        versions.check_data(DataStamp("x" * 1000), "the store", OURS)


@pytest.mark.parametrize("node", ["0.4.0", "0.4", "0.5.0", "0.5.99", "", "unknown"])
def test_nodes_of_this_and_of_the_previous_minor_version_go_on(node: str) -> None:
    assert versions.node_problem(node, OURS) == ""


@pytest.mark.parametrize(
    ("node", "cure"),
    [
        ("0.6.0", "upgrade the servers first"),
        ("1.0.0", "upgrade the servers first"),
        ("0.3.9", "upgrade Skerry on"),
    ],
)
def test_other_nodes_are_refused_with_what_to_upgrade(node: str, cure: str) -> None:
    problem = versions.node_problem(node, OURS)
    assert node in problem
    assert cure in problem


def test_a_node_leaves_servers_that_are_older_than_itself() -> None:
    assert [versions.server_problem(each, OURS) for each in ("0.5.0", "0.5.9", "0.6.0")] == ["", "", ""]
    assert "0.4.9 is older than this node's, 0.5.3; upgrade the servers" in versions.server_problem(
        "0.4.9", OURS
    )
    assert "install 0.1 on this node" in versions.server_problem("", OURS), "0.1 did not state its version"
