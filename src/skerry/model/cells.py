"""Cells: the one isolation unit on a node, with its name, its limits, and the executables in it.

Cells nest by name: `a/b` is a child of `a`. A name is accepted whole or refused whole, never cleaned up: a
program that dropped the bad parts of a name would free `parent` when asked to free `parent/bad_child`. The
names of Skerry's own cells begin with a mark, which `parse_name` refuses, because it is for names from
clients. `skerry.node` creates cells.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

import msgspec

from skerry.model import errors
from skerry.model.ids import CellName, ExecutableName
from skerry.model.resources import MAX_AMOUNT, Megabytes, Millicores

MAX_CELL_NAME = 255
MAX_COMMAND = 64 * 1024
OWN_MARK = "@"
_COMPONENT = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
_EXECUTABLE = re.compile(r"[^\x00-\x1f\x7f/]{1,128}")
_CPU_LIST = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")


def parse_name(text: str) -> CellName:
    """`text` as the name of a client's cell: components of letters, digits and inner '-', divided by '/'."""
    if text.startswith(OWN_MARK):
        raise errors.Invalid(
            f"cell name {text[:MAX_CELL_NAME]!r} begins with {OWN_MARK!r}, as those of Skerry's own cells "
            "do: only Skerry allocates and frees them, and starts and stops anything in them",
            field="cell_name",
        )
    if len(text) > MAX_CELL_NAME or not all(_COMPONENT.fullmatch(part) for part in text.split("/")):
        raise errors.Invalid(
            f"cell name {text[:MAX_CELL_NAME]!r} must be parts of 1 to 63 letters, digits or '-', not "
            f"beginning or ending with '-', divided by single '/', at most {MAX_CELL_NAME} characters in all",
            field="cell_name",
        )
    return CellName(text)


def parse_any_name(text: str) -> CellName:
    """`text` as the name of a cell of a client or of Skerry's own."""
    parse_name(text.removeprefix(OWN_MARK))
    return CellName(text)


def own_name(path: str) -> CellName:
    """What the cell that a part of Skerry knows as `path` is called."""
    return CellName(f"{OWN_MARK}{path}")


def parent_of(name: CellName) -> CellName | None:
    """The cell that `name` is in, or None for one at the top."""
    parent, slash, _ = name.rpartition("/")
    return CellName(parent) if slash else None


def upwards(name: CellName) -> Iterator[CellName]:
    """`name` itself, then every cell that it is in, up to the one at the top."""
    each: CellName | None = name
    while each is not None:
        yield each
        each = parent_of(each)


def is_within(name: CellName, ancestor: CellName) -> bool:
    """True if `name` is `ancestor` or anywhere below it."""
    return name == ancestor or name.startswith(f"{ancestor}/")


class CellLimits(msgspec.Struct, frozen=True):
    """What the kernel holds a cell to; None and empty mean no limit of its own."""

    cpu_weight: int | None = None  # share of the cpu when it is scarce; 100 is usual
    cpu_shares: int | None = (
        None  # the same in the older unit, 1024 is usual; kept exactly where it is native
    )
    cpu_quota: Millicores | None = None
    cpus: str = ""  # which cpus, as the kernel lists them: `0-3,6`
    mems: str = ""  # which memory nodes, likewise
    memory: Megabytes | None = None
    pids: int | None = None

    def __post_init__(self) -> None:
        _check_range("cpu_weight", self.cpu_weight, 1, 10_000)
        _check_range("cpu_shares", self.cpu_shares, 2, 262_144)
        if self.cpu_weight is not None and self.cpu_shares is not None:
            raise errors.Invalid("give cpu_weight or cpu_shares, not both", field="cpu_shares")
        _check_range("cpu_quota", self.cpu_quota, 1, MAX_AMOUNT)
        _check_range("memory", self.memory, 1, MAX_AMOUNT)
        _check_range("pids", self.pids, 1, MAX_AMOUNT)
        _check_list("cpus", self.cpus)
        _check_list("mems", self.mems)


def weight_of(cpu: Millicores) -> int:
    """The `cpu_weight` by which cells share a busy machine in the ratio of their requests: a core is the
    default 100. A cell without a request has the minimum."""
    return min(max(cpu // 10, 1), 10_000)


def _check_range(field: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise errors.Invalid(f"{field} must be {least} to {most}, not {value}", field=field)


def _check_list(field: str, text: str) -> None:
    if not text:
        return
    if len(text) <= 1024 and _CPU_LIST.fullmatch(text):
        spans = [part.split("-") for part in text.split(",")]
        if all(int(span[0]) <= int(span[-1]) for span in spans):
            return
    raise errors.Invalid(f"{field} must be a list such as `0-3,6`, not {text[:40]!r}", field=field)


class CellOwner(enum.StrEnum):
    """The part of Skerry that made a cell for itself, and alone starts, stops and frees what is in it."""

    CONTAINER = "container"
    CONTRACT = "contract"
    FUNCTIONS = "functions"


class Cell(msgspec.Struct, frozen=True):
    """A cgroup with its limits, and the namespaces of what runs in it."""

    name: CellName
    limits: CellLimits = CellLimits()
    isolates_processes: bool = True  # own pid, mount, ipc and host name
    isolates_network: bool = False
    owner: CellOwner | None = None  # None: a client's

    def __post_init__(self) -> None:
        if self.owner is None:
            parse_name(self.name)
        else:
            parse_any_name(self.name)


class Executable(msgspec.Struct, frozen=True):
    """A process to start in a cell."""

    name: ExecutableName
    cell: CellName
    command: str
    description: str = ""

    def __post_init__(self) -> None:
        parse_any_name(self.cell)
        if not _EXECUTABLE.fullmatch(self.name) or self.name in (".", ".."):
            raise errors.Invalid(
                "an executable's name must be 1 to 128 printable characters without '/'", field="name"
            )
        if not self.command.strip() or len(self.command) > MAX_COMMAND or "\0" in self.command:
            raise errors.Invalid(
                f"command must be 1 to {MAX_COMMAND} characters, such as `sleep 60`", field="command"
            )


class OutputChannel(enum.StrEnum):
    """Where an executable writes."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Sandbox(msgspec.Struct, frozen=True):
    """How an executable is confined and set up; the defaults are the tight ones."""

    uid: int | None = None  # None: the cell's own, which no other on the node has
    gid: int | None = None
    root_capabilities: bool = False  # the small named set instead of none; means something only for uid 0
    environment: tuple[str, ...] = ()  # KEY=VALUE, over a minimal PATH, HOME and LANG
    folder: str = "/"
    open_files: int = 1024
    arguments: tuple[str, ...] = ()  # run these as they are, instead of the command by the shell

    def __post_init__(self) -> None:
        _check_range("uid", self.uid, 0, MAX_AMOUNT)
        _check_range("gid", self.gid, 0, MAX_AMOUNT)
        _check_range("open_files", self.open_files, 3, 1_048_576)
        for setting in self.environment:
            key, equals, _ = setting.partition("=")
            if not key or not equals or "\0" in setting:
                raise errors.Invalid(f"{setting[:40]!r} must read KEY=VALUE", field="environment")
        if not self.folder.startswith("/") or "\0" in self.folder:
            raise errors.Invalid("folder must be an absolute path", field="folder")
        if any("\0" in argument for argument in self.arguments):
            raise errors.Invalid("an argument cannot hold a NUL byte", field="arguments")


class RuntimeMounts(msgspec.Struct, frozen=True):
    """The mounts that an OCI runtime begins with: those of a namespace, and the root of its container."""

    namespace: str  # path of a mount namespace; the runtime gets a copy of it
    root: str  # path of the descriptor of a detached mount
    target: str  # where that is mounted


class RuntimeCommand(msgspec.Struct, frozen=True):
    """An OCI runtime's command that starts a container and ends; the container is the executable then.

    It runs as root and unconfined, so nothing of it may come from a caller unchecked.
    """

    arguments: tuple[str, ...]
    pid_file: str  # where it leaves the number of the container's process
    owner: int = 0  # of the pipes for its output: its root must be able to open them again
    environment: tuple[str, ...] = ()  # KEY=VALUE, of the runtime itself
    mounts: RuntimeMounts | None = None  # None: those of the machine


class ExitStatus(msgspec.Struct, frozen=True):
    """How an executable ended: with a code, or by a signal; `oom` if the kernel killed it for memory. With
    neither, it has ended and the record of how is still missing."""

    at: float
    code: int | None = None
    signal: int | None = None
    oom: bool = False

    @property
    def is_known(self) -> bool:
        return self.code is not None or self.signal is not None


class ExecutableState(msgspec.Struct, frozen=True):
    """An executable that was started; known until it is stopped, also when it has ended by itself."""

    name: ExecutableName
    cell: CellName
    command: str
    description: str
    pid: int  # as the node sees it
    started_at: float
    exit: ExitStatus | None = None


class CellUsage(msgspec.Struct, frozen=True):
    """What a cell has used, with everything in it."""

    cpu_ns: int = 0
    throttled_ns: int = 0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    pids: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    oom_kills: int = 0
