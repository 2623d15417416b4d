"""The version of the node session's protocol, and which versions are compatible.

Each side states its number in its first message, `Hello` or `Welcome`; programs from before the field have 1.
The number goes up when one side can no longer do without something that the other side of the version before
does not send, and by one in a minor version at most. Messages and fields that a side can do without do not
change it. A server takes nodes of its own number and of the one before, so servers are upgraded first.

Nodes of a cloud must fit its servers by the version of Skerry, too (`skerry.model.versions`): of the same
minor version or of the one before. Borrowed nodes need not, since each cloud is upgraded by its own operator.
See `docs/versioning.md`.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors, versions

CURRENT: Final = 1
_UNSTATED: Final = 1


def check_node(stated: int, version: str, *, ours: int = CURRENT) -> None:
    """Refuse a node with an incompatible version. It gets the message, and writes it to its log."""
    protocol, oldest = stated or _UNSTATED, max(_UNSTATED, ours - 1)
    takes = f"this server takes {ours}" if oldest == ours else f"this server takes {oldest} and {ours}"
    if protocol < oldest:
        raise errors.FailedPrecondition(
            f"the node's Skerry {version or '(no version)'} is too old: it has version {protocol} of the"
            f" node protocol, and {takes}; upgrade Skerry on the node"
        )
    if protocol > ours:
        raise errors.FailedPrecondition(
            f"the node's Skerry {version or '(no version)'} is too new: it has version {protocol} of the"
            f" node protocol, and {takes}; upgrade the servers first, or install their version on the node"
        )


def check_node_version(version: str) -> None:
    """Refuse a node of this cloud whose Skerry does not go with ours."""
    if problem := versions.node_problem(version):
        raise errors.FailedPrecondition(problem)


def check_server_version(version: str) -> None:
    """Refuse a server of this node's cloud that is older than the node; empty: it did not state a version."""
    if problem := versions.server_problem(version):
        raise errors.FailedPrecondition(problem)


def check_server(stated: int, *, ours: int = CURRENT) -> None:
    """Refuse a server that is older than this node, and so old that it did not refuse the node itself."""
    protocol = stated or _UNSTATED
    if protocol < ours:
        raise errors.FailedPrecondition(
            f"the server is too old: it has version {protocol} of the node protocol, and this node {ours};"
            " upgrade the servers first, or install their version on this node"
        )
