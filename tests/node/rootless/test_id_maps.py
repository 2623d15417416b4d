"""Which ids the user namespace of an ordinary user has."""

from __future__ import annotations

from skerry.node.rootless import id_maps
from skerry.node.rootless.id_maps import IdRange


def test_ranges_are_found_by_the_name_and_by_the_number_of_the_user() -> None:
    text = "alice:100000:65536\nbob:165536:65536\n1000:300000:10\n"
    assert id_maps.parse_ranges(text, "alice", 1000) == (IdRange(100000, 65536), IdRange(300000, 10))


def test_invalid_and_empty_ranges_are_skipped() -> None:
    text = "# a comment\n\nalice\nalice:x:1\nalice:1:-1\nalice:500:0\nalice:5:\n"
    assert id_maps.parse_ranges(text, "alice", 1000) == ()


def test_the_own_id_is_0_and_ranges_follow_without_gaps() -> None:
    ids = id_maps.with_ranges(1000, [IdRange(100000, 65536), IdRange(300000, 10)])
    assert ids.rows == ((0, 1000, 1), (1, 100000, 65536), (65537, 300000, 10))
    assert ids.size == 65547
    assert ids.arguments == ("0", "1000", "1", "1", "100000", "65536", "65537", "300000", "10")


def test_a_huge_range_is_mapped_in_part() -> None:
    ids = id_maps.with_ranges(1000, [IdRange(100000, 1 << 30), IdRange(5, 5)])
    assert ids.size == id_maps.MAX_IDS


def test_without_ranges_there_is_the_own_id_alone() -> None:
    assert id_maps.single(1000).text == "0 1000 1\n"
    assert id_maps.with_ranges(1000, []) == id_maps.single(1000)
