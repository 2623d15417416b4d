"""Members that a node was told of are known to it, also when nobody can tell it again."""

from __future__ import annotations

import stat
from pathlib import Path

from skerry.functions.continuum.member_cache import MemberCache
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import MemberList

ONE = ContinuumMember(NodeId("n1"), "one", "edge", address="10.0.0.1:7", memory=512, cpus=2.0)
TWO = ContinuumMember(NodeId("n2"), "two", "cloud", is_server=True)


async def test_members_are_those_that_were_told_last_also_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    known = MemberCache(file)
    assert known.all == ()
    await known.update(MemberList((ONE, TWO)))
    await known.update(MemberList((TWO,)))
    assert MemberCache(file).all == known.all == (TWO,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_listeners_hear_of_what_is_news(tmp_path: Path) -> None:
    known = MemberCache(tmp_path / "members.json")
    heard: list[tuple[ContinuumMember, ...]] = []
    known.listen(lambda: heard.append(known.all))
    for members in ((ONE,), (ONE,), (ONE, TWO), ()):
        await known.update(MemberList(members))
    assert heard == [(ONE,), (ONE, TWO), ()]


async def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    file.write_bytes(b'{"members":[{}]}')
    known = MemberCache(file)
    assert known.all == ()
    await known.update(MemberList((ONE,)))
    assert MemberCache(file).all == (ONE,)
