"""Placement of copies: an order of members for each key, the same on every member.

Pure. By rendezvous hashing: when a member joins or leaves, the order of the others stays. `code_replication`
places code by it and `result_replication` results; `async_locator` finds results by it. Ids of async calls
end in a mark of the member that accepted them, the origin. It does not depend on which members are up.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from skerry.model.ids import Digest, NodeId
from skerry.model.members import ContinuumMember

COPIES: Final = 2  # of everything, where there are two members
_RESULT_HOLDERS: Final = 4  # members, at most, that are tried with the copy of a result
_QUERIED: Final = 8  # and that are queried for it: members that come before its holder may have joined since
_MARK_LENGTH: Final = 6
_ORIGIN: Final = "*"  # before a mark, where a node id could be


def rank_members(key: str, members: Iterable[ContinuumMember]) -> list[ContinuumMember]:
    """Those that can be reached by others, in the order of `key`."""
    return sorted(
        (member for member in members if member.address),
        key=lambda member: hashlib.blake2b(f"{key}/{member.node}".encode(), digest_size=8).digest(),
    )


@functools.lru_cache(maxsize=4096)
def origin_suffix(node: NodeId) -> str:
    """What the ids of calls that `node` accepts end in."""
    digest = hashlib.sha256(node.encode()).digest()
    return base64.b32encode(digest).decode("ascii")[:_MARK_LENGTH].lower()


def mark_in(id: str) -> str:
    """The mark of the origin of call `id`; empty if that was alone."""
    mark = id.rpartition("-")[2]
    return mark if len(mark) == _MARK_LENGTH else ""


def result_holders(id: str, members: Iterable[ContinuumMember]) -> list[ContinuumMember]:
    """Members for the copy of the result of call `id`: servers first."""
    return _rank_for_result(id, members)[:_RESULT_HOLDERS]


def queried_holders(id: str, members: Iterable[ContinuumMember]) -> list[ContinuumMember]:
    """Who may have that copy, likeliest first."""
    return _rank_for_result(id, members)[:_QUERIED]


def _rank_for_result(id: str, members: Iterable[ContinuumMember]) -> list[ContinuumMember]:
    return sorted(rank_members(id, members), key=lambda member: not member.is_server)


def origin_holder(id: str) -> str:
    """The origin of call `id`, as the holder of a result whose copy is on another member."""
    return _ORIGIN + mark_in(id)


def find_holder(holder: str, members: Iterable[ContinuumMember]) -> ContinuumMember | None:
    """The member that `holder` means: a node id, or what `origin_holder` gave."""
    for member in members:
        if holder in (member.node, _ORIGIN + origin_suffix(member.node)):
            return member
    return None


class CodeCopy(NamedTuple):
    """Code that `target` is to fetch of `source`."""

    digest: Digest
    source: NodeId
    target: ContinuumMember


class ReplicationPlan(NamedTuple):
    """What is to be copied, and why: `under_replicated` code has too few copies, `missing` code has none."""

    copies: tuple[CodeCopy, ...]
    under_replicated: frozenset[Digest]
    missing: frozenset[Digest]


def plan_copies(
    needed: Collection[Digest], code: Mapping[NodeId, Set[Digest]], up: Sequence[ContinuumMember]
) -> ReplicationPlan:
    """The transfers after which everything `needed` has its copies. `code` is what each member has, also of
    members that are unreachable for a moment, whose copies count; only those that are `up` send and
    receive."""
    holders: dict[Digest, list[NodeId]] = {digest: [] for digest in needed}
    for node, digests in code.items():
        for digest in holders.keys() & digests:
            holders[digest].append(node)
    wanted = min(COPIES, len(code))
    reachable = {member.node for member in up}
    copies: list[CodeCopy] = []
    for digest, nodes in holders.items():
        sources = [node for node in nodes if node in reachable]
        if len(nodes) < wanted and sources:
            targets = [member for member in rank_members(digest, up) if member.node not in nodes]
            copies += [CodeCopy(digest, sources[0], target) for target in targets[: wanted - len(nodes)]]
    return ReplicationPlan(
        tuple(copies),
        frozenset(digest for digest, nodes in holders.items() if 0 < len(nodes) < wanted),
        frozenset(digest for digest, nodes in holders.items() if not nodes),
    )
