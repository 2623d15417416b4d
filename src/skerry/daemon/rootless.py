"""A process that becomes a node as an ordinary user: it enters its user namespace before it has threads.

Called by `skerry.daemon.process` once the data folder is locked. As root of the
machine nothing happens here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from skerry.model.enforcement import AS_ROOT, Isolation, NodeEnforcement
from skerry.node.rootless import decisions, holder, trials

log = structlog.get_logger(__name__)


@contextmanager
def entered(role: str, folder: Path, *, is_alone: bool, isolation: str = "auto") -> Iterator[NodeEnforcement]:
    """What this process can enforce as a node, with the setting `isolation`. As an ordinary user it is in the
    namespace of `folder` from now on; where there can be none it goes on without, and runs nothing. With
    `is_alone` no other agent has the folder."""
    if isolation == Isolation.NONE:
        yield decisions.without_isolation()
        return
    # A process with capabilities was given them on purpose, and would lose them in a namespace.
    if os.geteuid() == 0 or role == "server" or _has_capabilities():
        yield outside()
        return
    try:
        if is_alone and (ended := holder.end_orphans(folder)):
            log.warning("namespace.orphans_ended", processes=ended)
        marker = holder.enter(folder)
    except holder.NamespaceRefused as error:
        log.warning("namespace.refused", reason=str(error))
        yield decisions.unavailable(f"{error}; or try functions with 'skerry up --isolation none'")
        return
    enforcement = decisions.decide(trials.observe(folder, marker))
    log.info("namespace.entered", holder=marker.holder, enforcement=enforcement.summary())
    try:
        yield enforcement
    finally:
        if not holder.end_if_unused(folder, marker):
            log.info("namespace.stays", holder=marker.holder)


@contextmanager
def removing(folder: Path) -> Iterator[NodeEnforcement]:
    """For a process that removes what the node of `folder` has there: as an ordinary user it is in the
    namespace of the node from now on, in which it may end and delete what has other ids. Nothing is left of
    the namespace at the end."""
    with entered("node", folder, is_alone=False) as enforcement:
        yield enforcement
    (folder / holder.LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or gone
        folder.rmdir()


def outside() -> NodeEnforcement:
    """What a process enforces that has entered no namespace."""
    if os.geteuid() == 0:
        return AS_ROOT
    return decisions.unavailable("root: cells need it; start with sudo to have them")


def _has_capabilities() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
