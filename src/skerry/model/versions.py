"""Versions of Skerry: which data of another version is opened, and which nodes go with which servers. Pure.

`skerry.store.data_stamp` has the stamps of data folders, `skerry.store.stamp` those of stores, and
`skerry.transport.links.nodes.protocol` the sentences for nodes and servers. The guarantees are those of
`docs/versioning.md`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from skerry import __version__
from skerry.model import errors

_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(?![0-9])")


class Minor(NamedTuple):
    """A minor version; patches of one differ in no contract."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Release(NamedTuple):
    """A version, and the minor version that it takes over from."""

    version: str
    previous: Minor
    format: int  # of its data folders and stores

    @property
    def minor(self) -> Minor:
        found = parse_minor(self.version)
        assert found is not None, f"{self.version} is no version"
        return found


class DataStamp(msgspec.Struct, frozen=True):
    """Which version wrote a data folder or a store last. `format` is raised by a change that an earlier patch
    of the same minor version could not read."""

    version: str
    format: int = 1


# Raise `previous` with the minor version. Format 1 has no stamp; format 2 has.
CURRENT: Final = Release(__version__, Minor(0, 1), 2)
# What has no stamp was written by 0.1, the last version without stamps.
UNSTAMPED: Final = DataStamp("0.1.0", 1)


def parse_minor(text: str) -> Minor | None:
    """The minor version of `0.2.1` or `0.3.0rc1`; None if it begins with none."""
    found = _VERSION.match(text)
    return None if found is None else Minor(int(found[1]), int(found[2]))


def stamp_of(release: Release = CURRENT) -> DataStamp:
    """What `release` stamps."""
    return DataStamp(release.version, release.format)


def check_data(stamp: DataStamp, what: str, ours: Release = CURRENT) -> None:
    """Refuse data of a later minor version or format, and of one before the previous. `what` names it."""
    written = parse_minor(stamp.version)
    if written is None:
        raise errors.FailedPrecondition(
            f"{what} has a stamp with no version in it ({stamp.version[:40]!r}): restore it from a backup"
        )
    if written > ours.minor or stamp.format > ours.format:
        raise errors.FailedPrecondition(
            f"{what} was written by Skerry {stamp.version}, and this is {ours.version}: an earlier version"
            f" does not start on later data. Nothing was changed. Install Skerry {stamp.version} or later, or"
            " restore a backup of before the upgrade"
        )
    if written < ours.previous:
        raise errors.FailedPrecondition(
            f"{what} was written by Skerry {stamp.version}, and this is {ours.version}, which upgrades data"
            f" of {ours.previous} alone. Nothing was changed. Upgrade one minor version at a time: install"
            f" Skerry {written.major}.{written.minor + 1} and start it once, then go on"
        )


def node_problem(node: str, ours: Release = CURRENT) -> str:
    """Why a server of this version refuses a node of version `node`; empty if it does not. A text that is no
    version says nothing: the version of the protocol decides alone."""
    written = parse_minor(node)
    if written is None:
        return ""
    if written > ours.minor:
        return (
            f"the node's Skerry {node} is newer than this server's, {ours.version}; upgrade the servers"
            f" first, or install {ours.minor} on the node"
        )
    if written < ours.previous:
        return (
            f"the node's Skerry {node} is too old for this server's, {ours.version}, which takes nodes of"
            f" {ours.previous} and {ours.minor}; upgrade Skerry on the node"
        )
    return ""


def server_problem(server: str, ours: Release = CURRENT) -> str:
    """Why a node of this version leaves a server of version `server`, which did not refuse it; empty if it
    does not. Servers of 0.1 do not say which version they have."""
    written = parse_minor(server or UNSTAMPED.version)
    if written is None or written >= ours.minor:
        return ""
    return (
        f"the server's Skerry {server or str(written)} is older than this node's, {ours.version}; upgrade the"
        f" servers first, or install {written} on this node"
    )
