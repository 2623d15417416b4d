"""A program run as an ordinary user, also by tests that run as root.

Run by root, a test gets a user of its own that nothing else on the machine has: a home that only this user
may enter, and a Python that it may execute, with the packages of this one, since ours may be below the home
of root. What the user has of the machine (ranges of ids, devices) is in a mount namespace of its processes,
so that the machine stays as it is. Run by an ordinary user, the test gets that user and what the machine
gives it.

    with ordinary_user() as user:
        done = user.run(*user.python, "-m", "skerry", "--version")
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import skerry
from skerry.node.rootless import holder

IDS: Final = 65536  # of a range
_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_DEBIAN: Final = f"/usr/bin/python3.{sys.version_info.minor}"
_FIRST_UID: Final = 2_000_000
_PER_PROCESS: Final = 64
# Below those that root's own node gives to containers.
_FIRST_RANGE: Final = 0x4000_0000
_RANGES: Final = 0x3000
_RANGES_PER_PROCESS: Final = 4
_numbers = itertools.count()

CAN_HAVE_NAMESPACES: Final = (
    subprocess.run(
        # As a user without privileges would make them: root may where users may not.
        (
            *(("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()),
            *("unshare", "-Urmnp", "--fork", "true"),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    ).returncode
    == 0
)


class OrdinaryUser(NamedTuple):
    """A user that is not root, and the command that becomes it."""

    uid: int
    home: Path
    python: tuple[str, ...]  # an interpreter that imports what this one does
    prefix: tuple[str, ...]  # before a command; empty if this process is the user
    ids: range = range(0)  # that it has assigned, if the test asked for some as root

    @property
    def environment(self) -> dict[str, str]:
        """All that its programs get."""
        folder = str(Path(self.python[0]).parent)
        return {"HOME": str(self.home), "PATH": f"{folder}:{_SYSTEM}", "LANG": "C.UTF-8"}

    def start(self, *command: str | Path, **popen: Any) -> subprocess.Popen[bytes]:
        """`command` as this user, in its home; `env` adds to its environment."""
        env = self.environment | popen.pop("env", {})
        options: dict[str, Any] = {"cwd": self.home, "stdin": subprocess.DEVNULL} | popen
        return subprocess.Popen([*self.prefix, *map(str, command)], env=env, **options)

    def run(self, *command: str | Path, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        """`command` to its end, with its output as text."""
        return subprocess.run(
            [*self.prefix, *map(str, command)],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment | env,
            timeout=timeout,
            check=False,
        )


@contextlib.contextmanager
def ordinary_user(*, ids: int = 0, devices: Iterable[str] = ()) -> Iterator[OrdinaryUser]:
    """A user with a home that is removed at the end. With `ids` it has so many assigned, by files of /etc
    that only its processes see; `devices` are those that it may open, such as /dev/net/tun, likewise. As an
    ordinary user, a test that asks for more than the machine gives is skipped."""
    if os.geteuid() != 0:
        _skip_without(ids, devices)
        with tempfile.TemporaryDirectory(prefix="skerry-user-") as folder:
            assigned = _assigned() if ids else range(0)
            yield OrdinaryUser(os.geteuid(), Path(folder), (sys.executable,), (), assigned)
        return
    number = next(_numbers)
    uid = _FIRST_UID + os.getpid() * _PER_PROCESS + number % _PER_PROCESS
    # Not below a folder of pytest, which only root may enter.
    top = Path(tempfile.mkdtemp(prefix="skerry-user-"))
    try:
        top.chmod(0o755)
        home = top / "home"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        become: tuple[str, ...] = (
            "setpriv",
            f"--reuid={uid}",
            f"--regid={uid}",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
        )
        chosen = os.getpid() * _RANGES_PER_PROCESS + number % _RANGES_PER_PROCESS
        first = _FIRST_RANGE + chosen % _RANGES * IDS
        assigned = range(first, first + ids)
        mounts = [*_ids(top, uid, assigned), *_devices(top, devices)]
        if mounts:
            binds = [f"mount --bind {shlex.quote(str(file))} {shlex.quote(at)}" for file, at in mounts]
            steps = " && ".join([*binds, f'exec {shlex.join(become)} "$@"'])
            become = ("unshare", "--mount", "--propagation=slave", "sh", "-c", steps, "sh")
        yield OrdinaryUser(uid, home, _python(top), become, assigned)
    finally:
        shutil.rmtree(top)


def _assigned() -> range:
    """The first ids that this user has assigned."""
    users, _, _ = holder.plan_ids(os.getuid(), os.getgid(), Path("/etc"))
    for _, first, count in users.rows[1:]:
        return range(first, first + count)
    return range(0)


def skip_with_assigned_ids() -> None:
    """For a test of a user with one id: an ordinary user cannot be without those that it has."""
    if os.geteuid() != 0 and _assigned():
        pytest.skip("this user has assigned ids")


def _skip_without(ids: int, devices: Iterable[str]) -> None:
    if ids:
        _, _, reasons = holder.plan_ids(os.getuid(), os.getgid(), Path("/etc"))
        if len(_assigned()) < ids:
            pytest.skip(f"needs {ids} assigned ids: {'; '.join(reasons) or len(_assigned())}")
    for device in devices:
        if not os.access(device, os.R_OK | os.W_OK):
            pytest.skip(f"needs {device} to be open to this user")


def _ids(top: Path, uid: int, assigned: range) -> list[tuple[Path, str]]:
    """Files of /etc in which the user exists and has the ids `assigned`."""
    if not assigned:
        return []
    if shutil.which("newuidmap", path=_SYSTEM) is None or not Path("/etc/subuid").exists():
        pytest.skip("needs newuidmap (package uidmap) and /etc/subuid")
    name = f"skerry{uid}"
    texts = {
        "passwd": f"{Path('/etc/passwd').read_text()}{name}:x:{uid}:{uid}::{top}/home:/bin/sh\n",
        "group": f"{Path('/etc/group').read_text()}{name}:x:{uid}:\n",
        "subuid": f"{name}:{assigned.start}:{len(assigned)}\n",
        "subgid": f"{name}:{assigned.start}:{len(assigned)}\n",
    }
    for file, text in texts.items():
        (top / file).write_text(text)
    return [(top / file, f"/etc/{file}") for file in texts]


def _devices(top: Path, devices: Iterable[str]) -> list[tuple[Path, str]]:
    mounts = []
    for device in devices:
        if not Path(device).exists():
            pytest.skip(f"needs {device}")
        node = top / device.strip("/").replace("/", "-")
        os.mknod(node, stat.S_IFCHR | 0o600, os.stat(device).st_rdev)
        node.chmod(0o666)
        mounts.append((node, device))
    return mounts


def _python(top: Path) -> tuple[str, ...]:
    """A virtual environment of a Python that everybody may execute, with the packages of this one."""
    ours = os.path.realpath(sys.executable)
    program = ours if _is_open_to_all(Path(ours)) else _DEBIAN
    if not os.path.exists(program):
        pytest.skip(f"needs a Python that an ordinary user may execute: {_DEBIAN}")
    source = Path(skerry.__file__).parent.parent
    packages = Path(pytest.__file__).parent.parent
    for needed in (source, packages):
        if not _is_open_to_all(needed):
            pytest.skip(f"needs {needed} to be readable by an ordinary user")
    site = top / "python" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    # Also for tests that start programs of the tests.
    (site / "tests.pth").write_text(f"{source}\n{packages}\n{source.parent}\n")
    (top / "python" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(program)}\n")
    (top / "python" / "bin").mkdir()
    (top / "python" / "bin" / "python").symlink_to(program)
    return (str(top / "python" / "bin" / "python"),)


def _is_open_to_all(path: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))
