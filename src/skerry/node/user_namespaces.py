"""User namespaces of containers, each with a range of ids that nothing else on the machine uses.

Root in such a namespace is an unprivileged user of the node, `first_id`, and so are all other users in it. A
range is claimed by its folder, which all Skerrys of a machine create in one place, on a file system that is
empty after a boot:

    /run/skerry-users/
      1879048192/     the range from that id on; only root and the root of the range may enter
        owner         who claimed it: which Skerry, and what for
        user          the namespace, bind-mounted on this file
        root/rootfs/  the container's root while a runtime starts it, where the runtime can reach it
      .new-...        being created or removed: left over only by a crash

Created by `skerry.node.network.bridge` together with a network namespace, which the user namespace must own
for a container to have its own /sys, and by `skerry.node.containers` for those without a network. Nothing on
disk depends on a range (`skerry.node.containers.overlays` maps owners), so a container may get another one at
its next start. All calls block for a few milliseconds at most and may run in any thread.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import files
from skerry.model import errors
from skerry.node.kernel import namespaces
from skerry.node.kernel.syscalls import CLONE_NEWNET, CLONE_NEWUSER
from skerry.node.kernel.waiting_processes import waiting_process

IDS: Final = 65_536  # per range: users and groups from 0 to 65535, as in images
FOLDER: Final = Path("/run/skerry-users")
# Unused in systemd's table of uid ranges: above its container and subuid ranges, below its range for foreign
# images and the ids that some programs treat as negative numbers.
_FIRST: Final = 0x70000000
_RANGES: Final = 0xFFE
_DRAFT: Final = ".new-"


class UserNamespace(msgspec.Struct, frozen=True):
    """A user namespace with its range of ids."""

    folder: str
    first_id: int  # id on the node of user 0 in the namespace

    @property
    def range(self) -> str:
        """The first and the last of its ids on the node, as the kernel writes ranges."""
        return f"{self.first_id} {self.first_id + IDS - 1}"

    @property
    def path(self) -> str:
        """The file that the namespace is mounted on."""
        return f"{self.folder}/user"

    @property
    def root(self) -> str:
        """A folder for mounts that only the root of the namespace and the node's root can reach."""
        return f"{self.folder}/root"

    @property
    def rootfs(self) -> str:
        """The path in it that is passed to a runtime as the root. The folder stays when the mount is gone:
        runc changes to it for every exec."""
        return f"{self.root}/rootfs"


class UserNamespaces:
    """The user namespaces that one part of one Skerry created, by owner. `scope` identifies that part."""

    def __init__(
        self, scope: str, *, folder: Path = FOLDER, failpoint: Callable[[str], None] = lambda step: None
    ) -> None:
        self._scope = scope
        self._folder = folder
        self._failpoint = failpoint
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)
        files.spread_folders(folder)
        self._by_owner = dict(self._scan())
        # Upwards from a random position: a released range is reused as late as possible.
        self._numbers = itertools.count(secrets.randbelow(_RANGES))

    def get(self, owner: str) -> UserNamespace | None:
        return self._by_owner.get(owner)

    def make(self, owner: str, *, network: Path | None = None) -> UserNamespace:
        """Create one for `owner`; with `network`, together with a network namespace that it owns, mounted on
        that file.

        Raises Unavailable if the kernel refuses, ResourcesExhausted if all ranges are in use.
        """
        try:
            created = self._by_owner[owner] = self._claim(owner)
            self._failpoint("users.claimed")
            flags = CLONE_NEWUSER | (0 if network is None else CLONE_NEWNET)
            with waiting_process(flags) as process:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{process}/{name}").write_text(f"0 {created.first_id} {IDS}")
                namespaces.bind_namespace(Path(created.path), f"/proc/{process}/ns/user")
                self._failpoint("users.kept")
                if network is not None:
                    namespaces.bind_namespace(network, f"/proc/{process}/ns/net")
        except OSError as error:
            self.remove(owner)
            raise errors.Unavailable(
                f"a user namespace could not be created: {error.strerror}", detail=repr(error)
            ) from error
        except BaseException:
            self.remove(owner)
            raise
        return created

    def remove(self, owner: str) -> None:
        """Release its range; no process may be left in it. Does nothing if there is none."""
        created = self._by_owner.get(owner)
        if created is not None:
            self._clear(Path(created.folder))
            del self._by_owner[owner]

    def keep_only(self, owners: Iterable[str]) -> None:
        """Remove all others, and what a killed agent left half done."""
        for owner in self._by_owner.keys() - set(owners):
            self.remove(owner)
        for namespace in self._by_owner.values():
            namespaces.unmount_all(Path(namespace.root))
        for draft in self._folder.glob(f"{_DRAFT}{self._scope}-*"):
            _delete(draft)

    def _claim(self, owner: str) -> UserNamespace:
        draft = self._draft()
        try:
            return self._claim_as(draft, owner)
        except BaseException:
            _delete(draft)
            raise

    def _claim_as(self, draft: Path, owner: str) -> UserNamespace:
        draft.mkdir(mode=0o700)
        (draft / "owner").write_text(f"{self._scope} {owner}")
        (draft / "user").touch(mode=0o600)
        (draft / "root" / "rootfs").mkdir(parents=True)
        for number in itertools.islice(self._numbers, _RANGES):
            first = _FIRST + number % _RANGES * IDS
            os.chown(draft, 0, first)
            draft.chmod(0o710)
            try:
                os.rename(draft, self._folder / str(first))  # fails on a claimed one: that is not empty
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return UserNamespace(str(self._folder / str(first)), first)
        raise errors.ResourcesExhausted(
            f"all {_RANGES} id ranges for containers are in use on this machine; stop some containers"
        )

    def _clear(self, folder: Path) -> None:
        namespaces.unmount_all(folder / "root")
        namespaces.remove_mount_file(folder / "user")
        draft = self._draft()
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, draft)
            _delete(draft)

    def _draft(self) -> Path:
        return self._folder / f"{_DRAFT}{self._scope}-{secrets.token_hex(4)}"

    def _scan(self) -> Iterator[tuple[str, UserNamespace]]:
        for path in claimed_by(f"{self._scope} ", self._folder):
            yield _owner(path).partition(" ")[2], UserNamespace(str(path), int(path.name))


def claimed_by(prefix: str, folder: Path = FOLDER) -> list[Path]:
    """Folders of claimed ranges whose owner begins with `prefix`. Others claim and release meanwhile."""
    return [folder / name for name in _names(folder) if _owner(folder / name).startswith(prefix)]


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def _owner(claim: Path) -> str:
    try:
        return (claim / "owner").read_text()
    except FileNotFoundError:  # released just now
        return ""


def _delete(draft: Path) -> None:
    """Remove only what belongs in one: mounts and foreign files stay and are an error."""
    for name in ("user", "owner"):
        (draft / name).unlink(missing_ok=True)
    for name in ("root/rootfs", "root", ""):
        with contextlib.suppress(FileNotFoundError):
            (draft / name).rmdir()
