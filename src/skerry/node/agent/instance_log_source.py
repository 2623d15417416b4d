"""The output of instances, containers and cells, for forwarding, with what wrote it.

Workers of functions are not part of it: their output is in the logs of functions
(`skerry.node.workers.function_logs`), also that of worker containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skerry.model.cells import OWN_MARK, CellOwner
from skerry.model.containers import FUNCTION_PREFIX, GUEST_PREFIX, INSTANCE_PREFIX
from skerry.model.log_origins import LogOrigin, LogOriginKind
from skerry.model.orders import InstanceOrder
from skerry.node.cells.output_folders import OutputFolder, OutputFolders
from skerry.node.logs.removed_logs import RemovedLogs
from skerry.node.logs.ring_sources import LogRing


class InstanceLogSource:
    """The rings of everything in cells."""

    def __init__(
        self, folders: OutputFolders, order_of: Callable[[str], InstanceOrder | None], removed: RemovedLogs
    ) -> None:
        """`order_of` returns the order of the instance that runs as a container, by its name."""
        self._folders = folders
        self._order_of = order_of
        self._removed = removed
        folders.follow_removals(self._retain)

    def list_rings(self) -> Iterable[LogRing]:
        yield from self._removed.list_rings()
        for run in self._folders.list_folders():
            if (origin := self._origin(run)) is not None:
                yield LogRing(run.key, run.folder, origin, has_ended=run.has_ended)

    def _retain(self, run: OutputFolder) -> None:
        if (origin := self._origin(run)) is not None:
            self._removed.keep(run.folder, run.key, origin)

    def _origin(self, run: OutputFolder) -> LogOrigin | None:
        owner, name = run.cell.owner, run.cell.name
        if owner is None:
            return LogOrigin(LogOriginKind.CELL, name=run.executable, cell=name)
        container = name.removeprefix(OWN_MARK)
        if owner is not CellOwner.CONTAINER or "/" in container:
            return None  # a worker, or something in a leased cell
        if container.startswith((FUNCTION_PREFIX, GUEST_PREFIX)):
            return None
        if not container.startswith(INSTANCE_PREFIX):
            return LogOrigin(LogOriginKind.CONTAINER, name=container)
        order = self._order_of(container)
        return None if order is None else instance_origin(order)


def instance_origin(order: InstanceOrder) -> LogOrigin:
    kind, _, owner = order.owner.partition("/")
    return LogOrigin(
        LogOriginKind.INSTANCE,
        namespace=order.namespace,
        instance=order.instance,
        name=order.spec.name,
        service=owner if kind == "service" else "",
        job=owner if kind == "job" else "",
    )
