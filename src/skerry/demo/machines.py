"""A machine of the demo: network, mount, process and host name namespaces around a process 1 of its own.

    machine = Machine(record, "cloud")
    machine.boot()
    machine.start("skerry up")
    machine.power_off()

Each has its own /run and /var/lib, so default paths and ports are free on each. Other programs and files are
those of the real machine, and so are cgroups: each machine has its own prefix of names. A machine that is
switched off is gone at once, as by a power cut; its disk, /var/lib, stays.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from skerry.demo.record import DemoRecord, GroupsRecord, ProcessRecord, is_alive, start_time
from skerry.node.kernel import namespaces

T = TypeVar("T")

_INIT: Final = "process 1 of "  # begins the names of their records
_BOOT_S: Final = 20.0
_BOOTED: Final = ".booted"  # on its disk, as other folders of the demo may be hidden there
_COMMAND_S: Final = 60.0
_STOP_S: Final = 20.0
_PAUSE_S: Final = 0.02
_KINDS: Final = ("--net", "--mount", "--pid", "--uts")
# Process 1. One that ignores the end of its children has them reaped by the kernel.
_BOOT: Final = """
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount --bind {disk} /var/lib
hostname {name}
ip link set lo up
touch /var/lib/{booted}
trap '' CHLD
exec sleep infinity
"""


class MachineFailed(RuntimeError):
    """A machine, or a program on it, does not do what it should."""


class Machine:
    """One machine; `boot` switches it on, also again."""

    def __init__(self, record: DemoRecord, name: str) -> None:
        self.name = name
        self.folder = record.folder / name
        self.disk = self.folder / "lib"  # its /var/lib
        self.log = self.folder / "log"
        self._record = record
        self._power: subprocess.Popen[bytes] | None = None
        self._init: ProcessRecord | None = None

    def boot(self) -> None:
        """Switch it on."""
        self.disk.mkdir(parents=True, exist_ok=True)
        booted = self.disk / _BOOTED
        booted.unlink(missing_ok=True)
        script = _BOOT.format(disk=shlex.quote(str(self.disk)), name=self.name, booted=_BOOTED)
        self._power = self._record.start(
            f"machine {self.name}",
            ["unshare", *_KINDS, "--fork", "--kill-child", "sh", "-c", script],
            output=self.log,
        )
        ends_at = time.monotonic() + _BOOT_S
        while not booted.exists():
            if self._power.poll() is not None or time.monotonic() > ends_at:
                raise MachineFailed(f"the machine {self.name} does not boot: {self.log.read_text()[-500:]}")
            time.sleep(_PAUSE_S)
        self._init = _only_child(self._power.pid, f"{_INIT}{self.name}")
        self._record.add(self._init)

    @property
    def is_on(self) -> bool:
        return self._init is not None and is_alive(self._init)

    @property
    def network(self) -> Path:
        """The file of its network namespace."""
        return Path(f"/proc/{self._pid}/ns/net")

    @property
    def power_pid(self) -> int:
        """The process that stands for its power: everything there ends with it."""
        if self._power is None:
            raise MachineFailed(f"the machine {self.name} is switched off")
        return self._power.pid

    def power_off(self) -> None:
        """Everything that runs there is gone, without a warning."""
        if self._power is not None:
            self._power.kill()
            self._power.wait()
            self._power = self._init = None

    def inside(self, work: Callable[[], T]) -> T:
        """Run `work` in its network namespace, in a thread of its own."""
        network = self.network

        def run() -> T:
            descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
            try:
                namespaces.enter_namespace(descriptor)
            finally:
                os.close(descriptor)
            return work()

        return namespaces.in_own_thread(run)

    def run(self, *arguments: str) -> str:
        """Run a program there; its output. Raises `MachineFailed` if it fails."""
        return self._finish(enter_command(self._pid, arguments), arguments)

    def configure(self, *arguments: str, text: str = "") -> str:
        """Run a program of the real machine in its network namespace, with `text` as its input; its output.
        Raises `MachineFailed` if it fails."""
        return self._finish(["nsenter", f"--net={self.network}", "--", *arguments], arguments, text)

    def _finish(self, command: Sequence[str], shown: Sequence[str], text: str = "") -> str:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
            env=environment(),
        )
        if done.returncode:
            raise MachineFailed(f"{self.name}: {shlex.join(shown)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program there, which runs until the machine is switched off or it is stopped by `stop`."""
        # It needs no record: process 1 takes it along.
        with self.log.open("ab") as log:
            return subprocess.Popen(
                enter_command(self._pid, arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Stop a program that `start` started, in order; its exit code."""
        if process.poll() is None:
            # nsenter waits for the program, which is its child in the other process namespace.
            os.kill(_only_child(process.pid, self.name).pid, signal.SIGTERM)
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    @property
    def _pid(self) -> int:
        if self._init is None:
            raise MachineFailed(f"the machine {self.name} is switched off")
        return self._init.pid


def enter_command(pid: int, arguments: Sequence[str]) -> list[str]:
    """The command that runs a program on the machine whose process 1 has this pid."""
    return ["nsenter", "--target", str(pid), "--net", "--mount", "--pid", "--uts", "--", *arguments]


def environment(**more: str) -> dict[str, str]:
    """The environment of programs on machines: no settings of Skerry that were exported, and our `skerry` on
    the PATH."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")}
    path = f"{Path(sys.executable).parent}:{clean.get('PATH', os.defpath)}"
    return clean | {"PATH": path} | more


def find_machine(folder: Path, name: str) -> int:
    """The pid of process 1 of a machine of a demo. Raises `MachineFailed` if it is not on."""
    machines = {
        entry.name.removeprefix(_INIT): entry.pid
        for entry in DemoRecord(folder).entries()
        if isinstance(entry, ProcessRecord) and entry.name.startswith(_INIT) and is_alive(entry)
    }
    if name not in machines:
        known = ", ".join(sorted(machines)) or "none; start one with 'skerry demo --keep'"
        raise MachineFailed(f"No machine '{name}' of a demo is on. Machines that are: {known}.")
    return machines[name]


def groups_prefix(folder: Path, machine: str = "") -> str:
    """The prefix of the names of all cgroups of a demo, or of one of its machines."""
    key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]
    return f"skerry-demo-{key}-{machine}"


def record_groups(record: DemoRecord) -> None:
    record.add(GroupsRecord(groups_prefix(record.folder)))


def _only_child(pid: int, name: str) -> ProcessRecord:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if len(children) != 1 or (started := start_time(int(children[0]))) is None:
        raise MachineFailed(f"{name} has ended")
    return ProcessRecord(name, int(children[0]), started)
