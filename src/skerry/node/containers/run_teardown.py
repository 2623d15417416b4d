"""The end of a run: asked for or not, and what is given back then.

`Containers` holds the lock of the container. However a run ends, it ends here: everything that is left of
its processes is killed, how it ended is written down, and its root, its address, its ports and what the
runtime knows of it are given back before anybody is told. What cannot be given back now is tried again
later, and in any case before the next start and the removal.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.node.cells.executables import UNKNOWN_EXIT
from skerry.node.containers import oci_config
from skerry.node.containers.records import RunRecord
from skerry.node.containers.state import MAIN, ContainerDeps, ContainerEntry

log = structlog.get_logger(__name__)

NOBODY_KNOWS = "its cell was freed, and nobody knows how it ended"


class RunTeardown:
    """Ends runs."""

    def __init__(self, deps: ContainerDeps) -> None:
        self._deps = deps

    def hurry(self, container: ContainerEntry, grace_s: float) -> None:
        """If it is being asked to end, it is killed `grace_s` from now at the latest."""
        patience = container.patience
        if patience is not None:
            over, nearer = patience.when(), asyncio.get_running_loop().time() + grace_s
            if over is not None and nearer < over:
                patience.reschedule(nearer)

    async def stop(self, container: ContainerEntry, grace_s: float) -> None:
        """End a run: ask its main process, wait, kill. Raises Unavailable if something does not die."""
        if grace_s > 0:
            await self._ask(container, grace_s)
        await self.finish(container)

    async def _ask(self, container: ContainerEntry, grace_s: float) -> None:
        cells, record = self._deps.cells, container.record
        try:
            cells.signal(container.cell, MAIN, oci_config.stop_signal(record.spec, record.config))
            self._deps.reached("stop.asked")
            async with asyncio.timeout(grace_s) as container.patience:
                await cells.wait(container.cell, MAIN)
        except (errors.NotFound, TimeoutError):  # it has ended, or has to be
            pass
        finally:
            container.patience = None

    async def finish(self, container: ContainerEntry, told: ExitStatus | None = None) -> None:
        """End what is left of a run, give back what it held, and tell. `told` is how it ended, if the cell
        may not be there any more to say so."""
        deps = self._deps
        try:
            how: ExitStatus | None = await deps.cells.kill(container.cell, MAIN)
        except errors.NotFound:
            how = told
        deps.reached("stop.ended")
        assert container.run is not None
        run = ended_run(container.run, how, container.reason)
        self.record(container, run)
        deps.reached("stop.recorded")
        await self.tidy(container)
        self._settle(container, run)

    def record(self, container: ContainerEntry, run: RunRecord) -> None:
        """Write down a run that is over. What the disk refuses is written later: others wait for the ports,
        and the next agent can ask the cell."""
        container.has_unrecorded_run = True
        try:
            self._deps.records.set_run(container.name, run)
            container.has_unrecorded_run = False
        except OSError as error:
            log.warning("end.not_recorded", container=container.name, error=str(error))

    def complete(self, container: ContainerEntry) -> None:
        """Take over how the last run ended if its record has come by now, and write down what was not."""
        run = container.run
        if run is None or container.is_running:
            return
        if run.exit is None and run.reason == UNKNOWN_EXIT:
            try:
                how = self._deps.cells.executable(container.cell, MAIN).exit
            except errors.NotFound:
                return  # its cell was freed, and with it goes the record
            if how is not None and how.is_known:
                container.run = run = ended_run(msgspec.structs.replace(run, reason=""), how)
                container.has_unrecorded_run = True
        if container.has_unrecorded_run:
            self.record(container, run)

    def _settle(self, container: ContainerEntry, run: RunRecord) -> None:
        ended, container.ended = container.ended, None
        container.run, container.pid, container.address, container.reason = run, None, "", ""
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
        """Give back what a run held. Nothing of it may run any more."""
        container.has_leftovers = bool(await self.release(container.name))

    async def release(self, name: str) -> list[Exception]:
        """Give back the root, the address and what the runtime knows under `name`; what that failed of."""
        deps = self._deps

        async def unmount() -> None:
            place = deps.records.place(name)
            await asyncio.to_thread(deps.overlays.unmount, place.rootfs)
            deps.reached("tidy.unmounted")
            await asyncio.to_thread(deps.overlays.unmount, place.layer)
            deps.reached("tidy.layer_unmounted")

        async def detach() -> None:
            await deps.network.detach(name)
            if deps.users is not None and deps.users.get(name) is not None:  # without a network
                await asyncio.to_thread(deps.users.remove, name)
            deps.reached("tidy.detached")

        async def forget() -> None:
            await deps.runtime.delete(name)
            deps.reached("tidy.forgotten")

        failures: list[Exception] = []
        # Side by side, and each whether or not the others work.
        for outcome in await asyncio.gather(unmount(), detach(), forget(), return_exceptions=True):
            if isinstance(outcome, (errors.SkerryError, OSError)):
                log.warning("container.leftovers", container=name, error=str(outcome))
                failures.append(outcome)
            elif outcome is not None:
                raise outcome
        return failures


def ended_run(run: RunRecord, how: ExitStatus | None, reason: str = "") -> RunRecord:
    """`run` when it has ended."""
    if how is not None and not how.is_known:
        how, reason = None, reason or UNKNOWN_EXIT
    return msgspec.structs.replace(
        run, exit=how, has_ended=True, reason=reason or ("" if how is not None else NOBODY_KNOWS)
    )
