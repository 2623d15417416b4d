"""The end of a run, requested or not: kills what is left, stores the exit, releases resources.

`Containers` holds the lock of the container. Every run ends here: remaining processes are killed, the exit is
stored, and its root, address, ports and the runtime's state are released before waiters are woken. What
cannot be released is retried later, and in any case before the next start and the removal.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.node.cells.executables import UNKNOWN_EXIT
from skerry.node.containers import mounts, oci_config, tree_size
from skerry.node.containers.records import RunRecord
from skerry.node.containers.state import MAIN, ContainerDeps, ContainerEntry

log = structlog.get_logger(__name__)

CELL_FREED = "its cell was freed, so its exit status is unknown"


class RunTeardown:
    """Ends runs."""

    def __init__(self, deps: ContainerDeps) -> None:
        self._deps = deps

    def shorten_grace(self, container: ContainerEntry, grace_s: float) -> None:
        """If it is being stopped, kill it in `grace_s` at the latest."""
        patience = container.grace
        if patience is not None:
            over, nearer = patience.when(), asyncio.get_running_loop().time() + grace_s
            if over is not None and nearer < over:
                patience.reschedule(nearer)

    async def stop(self, container: ContainerEntry, grace_s: float) -> None:
        """Stop a run: stop signal, grace, kill. Raises Unavailable if a process does not exit."""
        if grace_s > 0:
            await self._signal_and_wait(container, grace_s)
        await self.finish(container)

    async def _signal_and_wait(self, container: ContainerEntry, grace_s: float) -> None:
        cells, record = self._deps.cells, container.record
        try:
            cells.signal(container.cell, MAIN, oci_config.stop_signal(record.spec, record.config))
            self._deps.failpoint("stop.asked")
            async with asyncio.timeout(grace_s) as container.grace:
                await cells.wait(container.cell, MAIN)
        except (errors.NotFound, TimeoutError):  # it has ended, or must be killed
            pass
        finally:
            container.grace = None

    async def finish(self, container: ContainerEntry, known_exit: ExitStatus | None = None) -> None:
        """Kill what is left of a run, release its resources, and wake waiters. `known_exit` is its exit, in
        case the cell no longer exists."""
        deps = self._deps
        try:
            status: ExitStatus | None = await deps.cells.kill(container.cell, MAIN)
        except errors.NotFound:
            status = known_exit
        deps.failpoint("stop.ended")
        assert container.run is not None
        run = ended_run(container.run, status, container.reason)
        self.record(container, run)
        deps.failpoint("stop.recorded")
        await self.tidy(container)
        self._set_ended(container, run)

    def record(self, container: ContainerEntry, run: RunRecord) -> None:
        """Store the end of a run. If the disk refuses, it is stored later: others wait for the ports, and the
        next agent can read the exit from the cell."""
        container.has_unrecorded_run = True
        try:
            self._deps.records.set_run(container.name, run)
            container.has_unrecorded_run = False
        except OSError as error:
            log.warning("end.not_recorded", container=container.name, error=str(error))

    def complete(self, container: ContainerEntry) -> None:
        """Set the exit of the last run if its record has arrived since, and store what was not."""
        run = container.run
        if run is None or container.is_running:
            return
        if run.exit is None and run.reason == UNKNOWN_EXIT:
            try:
                status = self._deps.cells.executable(container.cell, MAIN).exit
            except errors.NotFound:
                return  # its cell was freed, and with it the record
            if status is not None and status.is_known:
                container.run = run = ended_run(msgspec.structs.replace(run, reason=""), status)
                container.has_unrecorded_run = True
        if container.has_unrecorded_run:
            self.record(container, run)

    def _set_ended(self, container: ContainerEntry, run: RunRecord) -> None:
        ended, container.ended = container.ended, None
        container.run, container.pid, container.reason = run, None, ""
        container.address = container.address6 = ""
        container.users = None
        log.info(
            "container.ended",
            container=container.name,
            code=run.exit and run.exit.code,
            signal=run.exit and run.exit.signal,
            oom=run.exit is not None and run.exit.oom,
            reason=run.reason,
        )
        assert ended is not None
        ended.set_result(run)

    async def tidy(self, container: ContainerEntry) -> None:
        """Release the resources of a run. No process of it may be left."""
        container.has_leftovers = bool(await self.release(container.name))

    async def release(self, name: str) -> list[Exception]:
        """Release the root, the address and the runtime's state of `name`; returns the failures."""
        deps = self._deps

        async def unmount() -> None:
            paths = deps.records.paths(name)
            await asyncio.to_thread(mounts.unstage, paths.folder)  # of a start that was cut off
            await asyncio.to_thread(deps.overlays.unmount, paths.rootfs)
            deps.failpoint("tidy.unmounted")
            await asyncio.to_thread(deps.overlays.unmount, paths.layer)
            deps.failpoint("tidy.layer_unmounted")

        async def detach() -> None:
            await deps.networks.detach(name)
            if deps.users is not None and deps.users.get(name) is not None:  # without a network
                await asyncio.to_thread(deps.users.remove, name)
            deps.failpoint("tidy.detached")

        async def forget() -> None:
            await deps.runtime.delete(name)
            deps.failpoint("tidy.forgotten")

        async def remove_secrets() -> None:
            if deps.secrets is not None:
                await asyncio.to_thread(deps.secrets.files.remove, name)

        failures: list[Exception] = []
        bundle = deps.records.paths(name).own_bundle
        # Concurrently, and each whether or not the others succeed.
        for outcome in await asyncio.gather(
            unmount(), detach(), forget(), remove_secrets(), return_exceptions=True
        ):
            if isinstance(outcome, (errors.SkerryError, OSError)):
                log.warning("container.leftovers", container=name, error=str(outcome))
                failures.append(outcome)
            elif outcome is not None:
                raise outcome
        if bundle is not None and not failures:  # the root is not mounted there any more
            tree_size.remove(bundle)
            deps.failpoint("tidy.unbundled")
        return failures


def ended_run(run: RunRecord, status: ExitStatus | None, reason: str = "") -> RunRecord:
    """`run` when it has ended."""
    if status is not None and not status.is_known:
        status, reason = None, reason or UNKNOWN_EXIT
    return msgspec.structs.replace(
        run, exit=status, has_ended=True, reason=reason or ("" if status is not None else CELL_FREED)
    )
