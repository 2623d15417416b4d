"""Which versions of runtimes are warned of."""

from __future__ import annotations

import pytest

from skerry.node.containers.runtime_advisories import parse, warning

LEAKY = "CVE-2024-21626"
PROCFS = "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("1.0.0-rc10", f"CVE-2019-5736, CVE-2021-30465, {LEAKY}, {PROCFS}"),
        ("1.1.5+ds1", f"{LEAKY}, {PROCFS}"),
        ("1.1.12", PROCFS),
        ("1.2.7", PROCFS),
        ("1.3.2", PROCFS),
        ("1.4.0-rc.2", PROCFS),
    ],
)
def test_a_version_with_published_holes_is_named_with_them_and_with_what_nobody_here_knows(
    version: str, names: str
) -> None:
    said = warning("runc", version)
    assert said.startswith(f"runc {version} may allow container escapes ({names}), unless your distribution")
    assert "update it to 1.2.8 or 1.3.3 or 1.4.0-rc.3 or later" in said


@pytest.mark.parametrize("version", ["1.2.8", "1.2.10", "1.3.3", "1.4.0-rc.3", "1.4.0", "1.5.0-rc1", "2.0"])
def test_a_version_in_which_all_are_closed_is_not_warned_of(version: str) -> None:
    assert warning("runc", version) == ""


def test_crun_has_its_own_list() -> None:
    assert "CVE-2025-24965" in warning("crun", "1.19")
    assert "CVE-2022-27650" not in warning("crun", "1.19")
    assert warning("crun", "1.20") == ""


def test_what_is_not_known_is_said_to_be() -> None:
    assert "is not an upstream version" in warning("runc", "unknown")
    assert warning("kata", "1.0") == ""


def test_a_candidate_comes_before_its_release() -> None:
    assert parse("1.4.0-rc.2") < parse("1.4.0-rc.3") < parse("1.4.0") < parse("1.4.1")  # type: ignore[operator]
