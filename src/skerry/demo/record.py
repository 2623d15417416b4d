"""The record of what a demo creates on this machine, written before it is created.

`skerry demo clean` removes what the record names, also after the demo was killed. A process is recorded with
its start time, so that another process with the same pid is never taken for it. Cgroups are recorded by the
prefix of their names. Network namespaces, links and mounts need no record: they are those of recorded
processes, and the kernel removes them with their last process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

_FILE: Final = "record.jsonl"
# Starts the program once its record is written; without a line on its input it ends without starting it.
_BARRIER: Final = 'read -r go && exec "$@" < /dev/null'


class ProcessRecord(msgspec.Struct, frozen=True, tag="process"):
    """A process, and its start time in clock ticks since boot."""

    name: str
    pid: int
    started: int


class GroupsRecord(msgspec.Struct, frozen=True, tag="groups"):
    """Cgroups whose names begin with `prefix`, at the top of any hierarchy."""

    prefix: str


Entry = ProcessRecord | GroupsRecord


class DemoRecord:
    """The record in the folder of a demo; every entry is on disk when `add` returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / _FILE

    def exists(self) -> bool:
        return self.path.exists()

    def create(self) -> None:
        """Begin an empty record. FileExistsError: there is one."""
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def add(self, entry: Entry) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """All entries, oldest first; none if there is no record."""
        try:
            return parse(self.path.read_bytes())
        except FileNotFoundError:
            return []

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: Path,
        env: dict[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a process of its own session that is recorded before it executes `command`; its output is
        appended to the file `output`, and it inherits `descriptors`."""
        with output.open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", _BARRIER, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the demo, which stops its processes in order
            )
        assert process.stdin is not None
        with process.stdin as barrier:
            started = start_time(process.pid)
            assert started is not None, "a child that is not waited for has a start time"
            self.add(ProcessRecord(name, process.pid, started))
            barrier.write(b"go\n")
        return process


def parse(data: bytes) -> list[Entry]:
    """The entries of a record. An incomplete last line, of a write that was cut off, counts for nothing: what
    it would have named was not created."""
    decoder = msgspec.json.Decoder(Entry)
    return [decoder.decode(line) for line in data.split(b"\n")[:-1] if line]


def start_time(pid: int) -> int | None:
    """The start time of a process, in clock ticks since boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def is_alive(entry: ProcessRecord) -> bool:
    """True if this very process exists, even if it has ended and was not waited for."""
    return start_time(entry.pid) == entry.started
