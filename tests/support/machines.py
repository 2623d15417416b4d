"""Whole machines made of namespaces: network, mount, process, host name and cgroup, joined by a switch.

    with machines(folder, "alpha", "beta", "gamma") as made:
        made["alpha"].run("skerry version")
        service = made["beta"].start("skerry server")
        made["beta"].power_off()

Each has its own /run, /var/lib, /usr/local/bin, /etc/hostname and processes, reaches the others by name, and
sees its own cgroups alone; other programs and /tmp are those of the real machine. So default paths and ports
are free on each. A machine that is switched off is gone at once, as by a power cut; its disk stays until the
end. Machines `behind_nat` are behind a router that translates addresses: they reach others, and no other
reaches them. A `lone_machine` has no cable at all.
Where only the network must be apart, `tests.node.network.machines` is lighter.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.node.network.machines import Machine as Switch
from tests.node.network.machines import inside
from tests.support.leaks import children_of
from tests.support.nat_lab import ROUTER_RULES
from tests.support.skerry import ask, environment
from tests.support.waiting import PATIENCE_S, eventually_sync

_CGROUPS = Path("/sys/fs/cgroup")
_PACKAGES = Path("/var/lib/dpkg/status")
_NETWORK = "192.0.2"
_HOME, _ROUTER = "192.168.1", f"{_NETWORK}.2"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as root has it on Debian
# Process 1 of a machine. Whoever ignores that children end has them reaped by the kernel.
_BOOT = """
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount --bind {folder}/lib /var/lib
mount --bind /usr/local/bin {folder}/outer-bin
mount --bind {folder}/bin /usr/local/bin
mount --bind {folder}/hostname /etc/hostname
mount --bind {folder}/../hosts /etc/hosts
{cgroups}
hostname {name}
ip link set lo up
touch {folder}/booted
trap '' CHLD
exec sleep infinity
"""


class Service:
    """A program that goes on running on a machine."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process  # brings it there, and ends when it does
        self._log = log

    def said(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        for pid in _children(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, within: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self._process.wait(within)

    def type(self, text: bytes) -> None:
        """Type at its terminal, if it was started at one."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def wait(self, within: float = PATIENCE_S) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(within)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def is_running(self) -> bool:
        return self._process.poll() is None


class Machine:
    """One of them. It is booted when it is made."""

    def __init__(
        self,
        folder: Path,
        name: str,
        address: str,
        switch: Switch | None,
        environment: Mapping[str, str],
        *,
        gateway: str = "",
    ) -> None:
        self.name = name
        self.address = address
        self._gateway = gateway
        self._folder = folder / name
        self.disk = self._folder / "lib"  # its /var/lib, which outlives it
        self._switch = switch
        self._environment = environment
        self.disk.mkdir(parents=True)
        self._furnish_programs()
        (self._folder / "hostname").write_text(f"{name}\n")
        unique = f"machine-{name}-{secrets.token_hex(4)}"
        self._groups = [place / unique for place in _hierarchies()]
        self._services: list[Service] = []
        self.boot()

    def _furnish_programs(self) -> None:
        """A /usr/local/bin of its own, with all that is in ours but Skerry."""
        own, outer = self._folder / "bin", self._folder / "outer-bin"
        for folder in (own, outer):
            folder.mkdir()
        for path in Path("/usr/local/bin").iterdir():
            if path.name != "skerry":
                (own / path.name).symlink_to(outer / path.name)

    def install(self) -> None:
        """What `make install` does, for those who need not see it done."""
        (self._folder / "bin" / "skerry").symlink_to(Path(sys.executable).parent / "skerry")

    def boot(self) -> None:
        """Switch it on (again)."""
        for group in self._groups:
            _make_group(group)
        bind = [f"mount --bind {group} {group.parent}" for group in self._groups]
        script = _BOOT.format(folder=self._folder, name=self.name, cgroups="\n".join(bind))
        (self._folder / "booted").unlink(missing_ok=True)
        kinds = ("--net", "--mount", "--pid", "--uts", "--cgroup")
        self._power = self._popen(["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script])

        def booted() -> bool:
            assert self._power.poll() is None, f"{self.name} does not boot: {self.said()}"
            return (self._folder / "booted").exists()

        eventually_sync(booted)
        (self._init,) = _children(self._power.pid)
        self._mounted_at_boot = frozenset(self._mounts())
        if self._switch is not None:
            self._plug_in(self._switch)

    def power_off(self) -> None:
        """All that runs there is gone, without a warning."""
        self._power.kill()
        self._power.wait()
        for service in self._services:
            service.wait()
        for group in self._groups:
            _remove_group(group)

    def run(self, script: str, within: float = 60.0) -> subprocess.CompletedProcess[str]:
        """What a shell does with `script` there."""
        process = self._popen(self._there(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, errors = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            for pid in _children(process.pid):
                os.kill(pid, signal.SIGKILL)
            out, errors = process.communicate()
            raise AssertionError(f"{self.name}: not within {within} s: {script}: {out}{errors}") from None
        return subprocess.CompletedProcess(script, process.returncode, out, errors)

    def start(self, script: str, stdin: int = subprocess.DEVNULL) -> Service:
        """Run it in the background, until the machine is switched off at the latest."""
        log = self._folder / f"log-{len(self._services)}"
        with log.open("wb") as output:
            process = self._popen(self._there(f"exec {script}"), stdin=stdin, stdout=output, stderr=output)
        self._services.append(Service(process, log))
        return self._services[-1]

    def start_at_terminal(self, script: str) -> Service:
        """As `start`, at a terminal of its own, at which `Service.type` types."""
        return self.start(
            f"script --quiet --return --flush --command {shlex.quote(script)} /dev/null", subprocess.PIPE
        )

    @property
    def network(self) -> str:
        """The file of its network namespace."""
        return f"/proc/{self._init}/ns/net"

    def call(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask the Skerry there over HTTP, as root there would; status and JSON (or text)."""
        ready = json.loads((self.disk / "skerry" / "ready.json").read_text())
        port = urlsplit(ready["http"]).port
        context = ssl.create_default_context(cafile=self.disk / "skerry" / "pki" / "ca.crt")

        def dial() -> http.client.HTTPConnection:
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            if ready["http"].startswith("https"):
                made = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
            made.connect()
            return made

        with contextlib.closing(inside(self.network, dial)) as connection:
            return ask(connection, verb, path, body, {"Content-Type": "application/json"})

    def cut(self) -> None:
        """Take its cable away."""
        self._set_cable("down")

    def mend(self) -> None:
        self._set_cable("up")

    def _set_cable(self, state: str) -> None:
        assert self._switch is not None, f"{self.name} has no cable"
        self._switch.run("ip", "link", "set", f"to-{self.name}", state)

    def said(self) -> str:
        """The output of all that was started there."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("log-*")))

    def groups(self) -> list[Path]:
        """Cgroups that programs there have made."""
        return [path for group in self._groups for path in group.iterdir() if path.is_dir()]

    def mounts(self) -> list[str]:
        """What has been mounted there since it was booted."""
        return [path for path in self._mounts() if path not in self._mounted_at_boot]

    def processes(self) -> list[str]:
        """The command lines of all that runs there, but its process 1."""
        there = os.stat(f"/proc/{self._init}/ns/pid").st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if path.name == str(self._init) or (path / "ns" / "pid").stat().st_ino != there:
                    continue
                # One that has ended has none: process 1 here reaps no orphans.
                if command := (path / "cmdline").read_bytes():
                    found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def _mounts(self) -> list[str]:
        return [line.split()[4] for line in Path(f"/proc/{self._init}/mountinfo").read_text().splitlines()]

    def _there(self, script: str) -> list[str]:
        return ["nsenter", "--target", str(self._init), "--all", "sh", "-c", script]

    def _popen(self, command: list[str], **options: Any) -> Any:
        """A process in the machine's cgroups, and with its environment."""
        join = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        return subprocess.Popen(
            ["sh", "-c", f"{join}; exec {shlex.join(command)}"],
            env=environment(PATH=_PATH, HOME="/root", **self._environment),
            **{"stdin": subprocess.DEVNULL, **options},
        )

    def _plug_in(self, switch: Switch) -> None:
        port = f"to-{self.name}"
        switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.network)
        switch.run("ip", "link", "set", port, "master", "switch", "up")
        script = f"ip address add {self.address}/24 dev eth0 && ip link set eth0 up"
        if self._gateway:
            script += f" && ip route add default via {self._gateway}"
        done = self.run(script)
        assert done.returncode == 0, done.stderr


def _hierarchies() -> list[Path]:
    """Where cgroup hierarchies are mounted."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(each[4]) for each in lines if each[each.index("-") + 1] in ("cgroup", "cgroup2")]


def _make_group(group: Path) -> None:
    group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):  # version 1 takes no process before these are set
        with contextlib.suppress(FileNotFoundError):
            (group / name).write_text((group.parent / name).read_text())


def _remove_group(group: Path) -> None:
    def is_gone() -> bool:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):  # somebody in it has not quite ended
                os.rmdir(folder)
        return not group.exists()

    eventually_sync(is_gone, what=f"{group} can be removed")


def _children(pid: int) -> set[int]:
    with contextlib.suppress(OSError):  # it has ended
        return children_of(pid)
    return set()


@contextlib.contextmanager
def machines(
    folder: Path,
    *names: str,
    behind_nat: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    is_installed: bool = True,
    **environment: str,
) -> Iterator[Mapping[str, Machine]]:
    """Machines of these names on one switch, in whose /etc/hosts all are that can be reached, and `aliases`
    of some, with more in the environment of all that runs there; switched off at the end. Those `behind_nat`
    share a router. Without `is_installed` none has the command `skerry`."""
    addresses = {
        name: f"{_HOME if name in behind_nat else _NETWORK}.{number}" for number, name in enumerate(names, 11)
    }
    hosts = {name: address for name, address in addresses.items() if name not in behind_nat}
    hosts |= {alias: addresses[name] for alias, name in (aliases or {}).items()}
    _write_hosts(folder, hosts)
    with contextlib.ExitStack() as undo:
        switch = _switch(folder, "switch", undo)
        home = _home(folder, switch, undo) if behind_nat else switch
        made = {}
        for name, address in addresses.items():
            if name in behind_nat:
                made[name] = Machine(folder, name, address, home, environment, gateway=f"{_HOME}.1")
            else:
                made[name] = Machine(folder, name, address, switch, environment)
            if is_installed:
                made[name].install()
            undo.callback(made[name].power_off)
        yield made


@contextlib.contextmanager
def lone_machine(folder: Path, name: str, **environment: str) -> Iterator[Machine]:
    """A machine that has no link but loopback, and no command `skerry`; switched off at the end. It knows of
    the Debian packages that are installed here."""
    _write_hosts(folder, {name: "127.0.1.1"})
    machine = Machine(folder, name, "127.0.1.1", None, environment)
    try:
        if _PACKAGES.exists():
            (machine.disk / "dpkg").mkdir()
            shutil.copy(_PACKAGES, machine.disk / "dpkg")
        yield machine
    finally:
        machine.power_off()


def _write_hosts(folder: Path, hosts: Mapping[str, str]) -> None:
    lines = [f"{address} {name}\n" for name, address in hosts.items()]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))


def _switch(folder: Path, name: str, undo: contextlib.ExitStack) -> Switch:
    switch = Switch(folder, name)
    undo.callback(switch.end)
    switch.run("ip", "link", "add", "switch", "type", "bridge")
    switch.run("ip", "link", "set", "switch", "up")
    return switch


def _home(folder: Path, outside: Switch, undo: contextlib.ExitStack) -> Switch:
    """The switch of a home, which is its router, too."""
    home = _switch(folder, "home", undo)
    home.run("ip", "address", "add", f"{_HOME}.1/24", "dev", "switch")
    home.run("ip", "link", "add", "wan", "type", "veth", "peer", "to-home", "netns", str(outside.place))
    home.run("ip", "address", "add", f"{_ROUTER}/24", "dev", "wan")
    home.run("ip", "link", "set", "wan", "up")
    outside.run("ip", "link", "set", "to-home", "master", "switch", "up")
    home.run("nft", "-f", "-", text=ROUTER_RULES)
    home.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    return home
