"""Files of containers of one boot of the machine, in memory: bundles, networks, the state of the runtime.

    boot/
      bundles/NAME/   what the runtime reads and writes at a start, and where the root is mounted
      network/        attachments and network namespaces (`skerry.node.network`)
      runtime/        the runtime's own state

They are made for each run and removed after it, and mean nothing after a reboot. On a disk they are a third
of the files of a container, and a file system without a journal takes the longer to create a file the more
were removed in the last minute. It is a tmpfs that only root may enter; it outlives the agent with the
containers that run, and is unmounted when there are none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files
from skerry.node.kernel import mount_flags, thread_syscalls

log = structlog.get_logger(__name__)

_SIZE_MB: Final = 256
_FLAGS: Final = mount_flags.MS_NOSUID | mount_flags.MS_NODEV


class BootFolder:
    """The folder, mounted. All calls block for a short time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bundles = files.private_folder(path / "bundles")
        self._state = files.private_folder(path / "runtime")
        self._network = path / "network"  # created with the network

    @classmethod
    def open(cls, path: Path) -> BootFolder | None:
        """Mount it, unless an earlier agent has; None where that is impossible."""
        files.private_folder(path)
        if not os.path.ismount(path):
            try:
                options = f"mode=0700,size={_SIZE_MB}m"
                thread_syscalls.mount("skerry-boot", str(path), "tmpfs", _FLAGS, options)
                thread_syscalls.change_mount(str(path), mount_flags.MS_PRIVATE)
            except OSError as error:
                log.info("containers.no_boot_folder", error=str(error))
                return None
        return cls(path)

    def state_of_runtime(self, former: Path) -> Path:
        """The folder for the state of the runtime: `former`, where earlier versions had it, as long as there
        are containers in it."""
        try:
            has_containers = any(former.iterdir())
        except FileNotFoundError:
            has_containers = False
        return former if has_containers else self._state

    def folder_of_network(self, former: Path) -> Path:
        """The folder for a network, which removes it when nothing is attached: `former` likewise."""
        return former if former.exists() else self._network

    def close(self) -> None:
        """Unmount it, if no container is left in it."""
        if any(self.bundles.iterdir()) or any(self._state.iterdir()) or self._network.exists():
            return
        try:
            thread_syscalls.unmount(str(self._path))
        except OSError as error:  # the next agent does
            log.info("containers.boot_folder_busy", error=str(error))
