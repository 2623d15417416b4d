"""User namespaces for containers: to each a range of ids that nothing else on the machine has.

Root in such a namespace is an ordinary user of the node, `first_id`, and so is everybody else in it. A range
is claimed by its folder, which all Skerrys of a machine make in one place, on a file system that is empty
after a boot:

    /run/skerry-users/
      1879048192/     the range from that id on; only root and the root of the range may enter
        owner         who claimed it: which Skerry, and what for
        user          the namespace, kept by a mount on this file
        root/rootfs/  while a runtime starts the container: its root, where the runtime can reach it
      .new-...        being made or removed: left over only by a crash

Made by `skerry.node.network.bridge` together with a network namespace, which must belong to the user
namespace for a container to have its own /sys, and by `skerry.node.containers` for those without a network.
Nothing on disk depends on a range (`skerry.node.containers.overlays` maps owners), so a container may have
another one at its next start. Everything here blocks for a few milliseconds at most and can be called in any
thread.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from skerry.model import errors
from skerry.node.kernel import namespaces

IDS: Final = 65_536  # in a range: users and groups from 0 to 65535, as images have them
FOLDER: Final = Path("/run/skerry-users")
# What systemd's list of ids calls unused: above its own ranges for containers and what subuid is given out
# from, below its range for foreign images and the ids that some programs take for negative numbers.
_FIRST: Final = 0x70000000
_RANGES: Final = 0xFFE
_SYSTEM: Final = "/usr/bin:/bin:/usr/sbin:/sbin"
_DRAFT: Final = ".new-"


class UserNamespace(msgspec.Struct, frozen=True):
    """A namespace with its range."""

    folder: str
    first_id: int  # what 0 in it is on the node

    @property
    def path(self) -> str:
        """The file that it is mounted on."""
        return f"{self.folder}/user"

    @property
    def root(self) -> str:
        """A folder for mounts that nobody but its root and the node's can reach."""
        return f"{self.folder}/root"

    @property
    def rootfs(self) -> str:
        """In it, where a runtime is told that the root is. The folder stays when the mount has gone: runc
        changes to it for every command that it runs in the container."""
        return f"{self.root}/rootfs"


class UserNamespaces:
    """Those that one part of one Skerry has made, by their owners. `scope` tells it from all others."""

    def __init__(
        self, scope: str, *, folder: Path = FOLDER, reached: Callable[[str], None] = lambda step: None
    ) -> None:
        self._scope = scope
        self._folder = folder
        self._reached = reached
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)
        self._made = dict(self._scan())
        # Upwards from anywhere: a range that was given back rests for as long as it can.
        self._numbers = itertools.count(secrets.randbelow(_RANGES))

    def get(self, owner: str) -> UserNamespace | None:
        return self._made.get(owner)

    def make(self, owner: str, *, network: Path | None = None) -> UserNamespace:
        """A new one for `owner`; with a new network namespace that belongs to it, kept on the file `network`.

        Raises Unavailable if the machine makes none, ResourcesExhausted if all ranges are in use.
        """
        try:
            made = self._made[owner] = self._claim(owner)
            self._reached("users.claimed")
            with _process_in_new(with_network=network is not None) as process:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{process}/{name}").write_text(f"0 {made.first_id} {IDS}")
                namespaces.keep_namespace(Path(made.path), f"/proc/{process}/ns/user")
                self._reached("users.kept")
                if network is not None:
                    namespaces.keep_namespace(network, f"/proc/{process}/ns/net")
        except OSError as error:
            self.remove(owner)
            raise errors.Unavailable(
                f"a user namespace could not be made: {error.strerror}", detail=repr(error)
            ) from error
        except BaseException:
            self.remove(owner)
            raise
        return made

    def remove(self, owner: str) -> None:
        """Give its range back. Nothing may run in it any more. There is none: nothing done."""
        made = self._made.get(owner)
        if made is not None:
            self._clear(Path(made.folder))
            del self._made[owner]

    def keep_only(self, owners: Iterable[str]) -> None:
        """Remove all others, and what a killed agent left half done."""
        for owner in self._made.keys() - set(owners):
            self.remove(owner)
        for made in self._made.values():
            namespaces.unmount_all(Path(made.root))
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
                os.rename(draft, self._folder / str(first))  # never over one that is claimed: that has files
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return UserNamespace(str(self._folder / str(first)), first)
        raise errors.ResourcesExhausted(
            f"all {_RANGES} ranges of ids for containers are in use on this machine; stop some containers"
        )

    def _clear(self, folder: Path) -> None:
        namespaces.unmount_all(folder / "root")
        namespaces.let_go(folder / "user")
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
    """Folders of ranges whose owner begins so. Others come and go meanwhile."""
    return [folder / name for name in _names(folder) if _owner(folder / name).startswith(prefix)]


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def _owner(claim: Path) -> str:
    try:
        return (claim / "owner").read_text()
    except FileNotFoundError:  # given back just now
        return ""


@contextlib.contextmanager
def _process_in_new(*, with_network: bool) -> Iterator[int]:
    """A process in a new user namespace, and nothing else that is ours, for as long as it takes to keep that:
    only a process of one thread can enter one, which the agent is not."""
    program = shutil.which("unshare", path=_SYSTEM)
    if program is None:
        raise errors.Unavailable("unshare is not installed; install util-linux")
    flags = ("-U", "-n") if with_network else ("-U",)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        (program, *flags, "cat"), stdin=pipe, stdout=pipe, stderr=pipe, env={"PATH": _SYSTEM, "LC_ALL": "C"}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # said below, with why
            process.stdin.write(b".")
            process.stdin.flush()
        if process.stdout.read(1) != b".":  # it comes back from inside
            said = process.stderr.read().decode(errors="replace").strip()
            raise errors.Unavailable(f"the machine makes no user namespace: {said or 'no reason given'}")
        try:
            yield process.pid
        finally:
            process.stdin.close()


def _delete(draft: Path) -> None:
    """Only what belongs in one: what is mounted there, or is somebody's, stays and is an error."""
    for name in ("user", "owner"):
        (draft / name).unlink(missing_ok=True)
    for name in ("root/rootfs", "root", ""):
        with contextlib.suppress(FileNotFoundError):
            (draft / name).rmdir()
