"""A cgroup v2 file system in memory, with the kernel's rules and its error numbers.

Which files a group has depends on what its parent hands down; writes are checked as the kernel checks them; a
group holds processes or hands controllers down, never both; a group in use cannot be removed. Where this
machine has a v2 tree, `test_fake.py` holds the same questions to both.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from skerry.node.cgroups.limits import numbers

PAGE = 4096
MOST_PIDS = 4_194_304
THREADED = frozenset({"cpu", "cpuset", "pids"})  # these may be handed down beside processes
CORE = {"cgroup.controllers": "", "cgroup.subtree_control": "", "cgroup.procs": "", "cpu.stat": ""}
NOT_IN_ROOT = {"cgroup.type": "domain", "cgroup.events": "", "cgroup.freeze": "0", "cgroup.kill": ""}
BY_CONTROLLER = {
    "cpu": {"cpu.weight": "100", "cpu.max": "max 100000"},
    "cpuset": {
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "cpuset.cpus.effective": "",
        "cpuset.mems.effective": "",
    },
    "memory": {
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.current": "0",
        "memory.peak": "0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "memory.events.local": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
    "io": {"io.stat": ""},
}


@dataclass
class Group:
    path: str
    parent: Group | None
    children: dict[str, Group] = field(default_factory=dict)
    handed_down: set[str] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)

    @property
    def is_populated(self) -> bool:
        return bool(self.processes) or any(child.is_populated for child in self.children.values())


def error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class FakeCgroupfs:
    """`files.Files` without a kernel. Processes are numbers that `enter` and `exit` move."""

    def __init__(
        self,
        mount: str = "/fake",
        *,
        controllers: tuple[str, ...] = ("cpuset", "cpu", "io", "memory", "pids"),
        cpus: str = "0-3",
        possible_cpus: int = 8,
        has_kill: bool = True,
        has_swap: bool = True,
        is_real_root: bool = True,
    ) -> None:
        self.mount = mount
        self.controllers = controllers
        self.cpus = cpus
        self.possible_cpus = possible_cpus
        self.has_kill = has_kill
        self.has_swap = has_swap
        self.is_real_root = is_real_root  # False: the mount shows a group that was delegated
        self.root = Group(mount, None)
        self.killed: list[int] = []

    # What a kernel does besides files

    def enter(self, path: str, pid: int) -> None:
        self.write(f"{path}/cgroup.procs", str(pid))

    def exit(self, pid: int) -> None:
        for group in self._all(self.root):
            group.processes.discard(pid)

    def set(self, path: str, value: str) -> None:
        """Put a value where only the kernel writes."""
        group, name = self._file(path)
        group.values[name] = value

    # Files

    def mkdir(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        parent = self._group(above)
        if name in parent.children:
            raise error(errno.EEXIST, path)
        parent.children[name] = Group(path, parent)

    def rmdir(self, path: str) -> None:
        group = self._group(path)
        if group.parent is None or group.children or group.processes:
            raise error(errno.EBUSY, path)
        del group.parent.children[path.rpartition("/")[2]]

    def exists(self, path: str) -> bool:
        try:
            self._group(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        return sorted(self._group(path).children)

    def open_folder(self, path: str) -> int:
        self._group(path)
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def open_to_write(self, path: str) -> int:
        self._file(path)
        return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def open_to_watch(self, path: str) -> int | None:
        self._file(path)
        return None

    def read(self, path: str) -> str:
        group, name = self._file(path)
        match name:
            case "cgroup.controllers":
                text = " ".join(self._available(group))
            case "cgroup.subtree_control":
                text = " ".join(sorted(group.handed_down))
            case "cgroup.procs":
                if self._type(group) in ("threaded", "domain invalid"):
                    raise error(errno.EOPNOTSUPP, path)
                text = "\n".join(map(str, sorted(group.processes)))
            case "cgroup.type":
                text = self._type(group)
            case "cgroup.events":
                frozen = group.values.get("cgroup.freeze", "0")
                text = f"populated {int(group.is_populated)}\nfrozen {frozen}"
            case "cgroup.kill":
                raise error(errno.EINVAL, path)
            case "cpuset.cpus.effective":
                text = self._effective(group, "cpuset.cpus", self.cpus)
            case "cpuset.mems.effective":
                text = self._effective(group, "cpuset.mems", "0")
            case _:
                text = group.values.get(name, self._defaults(group)[name])
        return text + "\n"

    def write(self, path: str, text: str) -> None:
        group, name = self._file(path)
        text = text.strip()
        match name:
            case "cgroup.subtree_control":
                for word in text.split():
                    self._hand_down(group, word, path)
            case "cgroup.procs":
                if group.parent and group.handed_down - THREADED:
                    raise error(errno.EBUSY, path)
                if self._type(group) == "domain invalid":
                    raise error(errno.EOPNOTSUPP, path)
                self.exit(int(text))
                group.processes.add(int(text))
            case "cgroup.type":
                if text != "threaded":
                    raise error(errno.EINVAL, path)
                group.values[name] = text
            case "cgroup.kill":
                if text != "1":
                    raise error(errno.ERANGE, path)
                for each in self._all(group):
                    self.killed += sorted(each.processes)
                    each.processes.clear()
            case _:
                group.values[name] = self._checked(name, text, path)

    def _checked(self, name: str, text: str, path: str) -> str:
        """The value that is kept, or the kernel's error."""
        match name:
            case "cgroup.freeze":
                return str(self._number(text, 0, 1, path, errno.ERANGE))
            case "cpu.weight":
                return str(self._number(text, 1, 10_000, path, errno.ERANGE))
            case "cpu.max":
                quota, _, period = text.partition(" ")
                self._number(period or "100000", 1_000, 1_000_000, path, errno.EINVAL)
                if quota != "max":
                    self._number(quota, 1_000, 2**44 - 1, path, errno.EINVAL)
                return f"{quota} {period or '100000'}"
            case "memory.max" | "memory.swap.max":
                return text if text == "max" else str(self._number(text, 0, 2**63, path) // PAGE * PAGE)
            case "pids.max":
                return text if text == "max" else str(self._number(text, 0, MOST_PIDS, path))
            case "cpuset.cpus" | "cpuset.mems":
                if numbers(text) and max(numbers(text)) >= self.possible_cpus:
                    raise error(errno.ERANGE, path)
                return text
            case _:
                raise error(errno.EACCES, path)

    @staticmethod
    def _number(text: str, least: int, most: int, path: str, out_of_range: int = errno.EINVAL) -> int:
        if not text.lstrip("-").isdecimal():
            raise error(errno.EINVAL, path)
        if not least <= int(text) <= most:
            raise error(out_of_range, path)
        return int(text)

    def _hand_down(self, group: Group, word: str, path: str) -> None:
        sign, name = word[:1], word[1:]
        if sign not in "+-" or name not in {*BY_CONTROLLER, "hugetlb"}:
            raise error(errno.EINVAL, path)
        if sign == "-":
            if any(name in child.handed_down for child in group.children.values()):
                raise error(errno.EBUSY, path)
            group.handed_down.discard(name)
            return
        if name not in self._available(group):
            raise error(errno.ENOENT, path)
        is_exempt = group is self.root and self.is_real_root
        if not is_exempt and name not in THREADED:
            if self._type(group) in ("threaded", "domain threaded"):
                raise error(errno.EOPNOTSUPP, path)
            if group.processes:
                raise error(errno.EBUSY, path)
        group.handed_down.add(name)

    def _type(self, group: Group) -> str:
        if group.values.get("cgroup.type") == "threaded":
            return "threaded"
        if group.parent and group.parent.parent and self._type(group.parent) != "domain":
            return "domain invalid"
        if any(child.values.get("cgroup.type") == "threaded" for child in group.children.values()):
            return "domain threaded"
        return "domain"

    def _available(self, group: Group) -> tuple[str, ...]:
        return self.controllers if group.parent is None else tuple(sorted(group.parent.handed_down))

    def _effective(self, group: Group, name: str, everything: str) -> str:
        above = self._effective(group.parent, name, everything) if group.parent else everything
        own = numbers(group.values.get(name, "")) & numbers(above)
        return ",".join(map(str, sorted(own))) if own else above

    def _defaults(self, group: Group) -> dict[str, str]:
        files = dict(CORE)
        if group.parent is not None or not self.is_real_root:
            files |= NOT_IN_ROOT
        for name in self._available(group):
            if group.parent is not None:
                files |= BY_CONTROLLER.get(name, {})
        if not self.has_kill:
            files.pop("cgroup.kill", None)
        if not self.has_swap:
            files.pop("memory.swap.max", None)
        return files

    def _group(self, path: str) -> Group:
        if path != self.mount and not path.startswith(f"{self.mount}/"):
            raise error(errno.ENOENT, path)
        group = self.root
        for name in path[len(self.mount) :].split("/")[1:]:
            if name not in group.children:
                raise error(errno.ENOENT, path)
            group = group.children[name]
        return group

    def _file(self, path: str) -> tuple[Group, str]:
        above, _, name = path.rpartition("/")
        group = self._group(above)
        if name not in self._defaults(group):
            raise error(errno.ENOENT, path)
        return group, name

    def _all(self, group: Group) -> list[Group]:
        return [group, *(each for child in group.children.values() for each in self._all(child))]
