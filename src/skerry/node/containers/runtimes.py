"""OCI runtimes: which one works on this machine, found by running a container, and how it is called."""

from __future__ import annotations

from pathlib import Path

import msgspec


class OciRuntime(msgspec.Struct, frozen=True):
    """A runtime that works here; `folder` is where it keeps what it knows of its containers."""

    path: str
    name: str
    version: str
    folder: str

    def run_arguments(self, container: str, *, bundle: Path, pid_file: Path, log: Path) -> tuple[str, ...]:
        """The command line that starts a container and ends when it runs; for `Cells.start`."""
        raise NotImplementedError

    def exec_arguments(
        self, container: str, *, process: Path, log: Path, pid_file: Path, console_socket: Path | None = None
    ) -> tuple[str, ...]:
        """The command line that runs `process`, a file of `bundle.make_process`; for `Cells.attach`."""
        raise NotImplementedError

    async def state(self, container: str) -> str:
        """`created`, `running`, `paused` or `stopped`; NotFound if the runtime does not know it."""
        raise NotImplementedError

    async def kill(self, container: str, number: int) -> None:
        """Send a signal to its first process. NotFound if there is none."""
        raise NotImplementedError

    async def delete(self, container: str) -> None:
        """Forget the container, killing what still runs. Not there: nothing done."""
        raise NotImplementedError


def failure_in(log: Path) -> str:
    """The last error that a runtime wrote to its `log`, in its words; empty if there is none."""
    raise NotImplementedError


async def find_runtime(setting: str, folder: Path, *, cgroups_path: str, boot_id: str) -> OciRuntime:
    """The runtime that `setting` (a name or a path) says, or the first of runc and crun that works.

    Proved by a container in the group `cgroups_path`, once a boot: what was found is remembered in `folder`.
    Raises Unavailable with why each was refused and what to install.
    """
    raise NotImplementedError
