"""Connects the network namespace of an ordinary user's bridge to the machine's network: pasta or slirp4netns.

Either program has an interface in that namespace and, as the user, sockets in that of the machine, and needs
/dev/net/tun. It outlives the agent, as containers do:

    /run/skerry-outside/process.json     which process it is
    /run/skerry-outside/namespace        the namespace, bind-mounted: pasta may not trace its holder

Neither forwards anything to containers, which `skerry.node.network.forwarding` does, nor to loopback of the
machine, where connections from them would be those of the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.model import errors
from skerry.model.enforcement import ContainerNetwork
from skerry.node import record_files
from skerry.node.kernel import namespaces
from skerry.node.kernel.processes import start_time_of
from skerry.node.network import host_routes

log = structlog.get_logger(__name__)

FOLDER: Final = Path("/run/skerry-outside")
_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_INTERFACE: Final = "skerry0"
_READY_S: Final = 10.0
_END_S: Final = 5.0
_AGAIN_S: Final = 30.0
# For documentation, and so in use nowhere; or nearly so, hence three.
_NETWORKS: Final = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")


class OutsideProcess(msgspec.Struct, frozen=True):
    """The program that was started."""

    pid: int
    start_time: int  # pids are reused
    program: str


class UserModeNetwork:
    """The program of one namespace, which is open as `namespace`. `open` and `close` block."""

    def __init__(self, namespace: int, program: ContainerNetwork, folder: Path = FOLDER) -> None:
        """`program` is tried first."""
        self._namespace = namespace
        self._programs = tuple(dict.fromkeys((program, ContainerNetwork.SLIRP4NETNS)))
        self._folder = folder
        self._failure = ""
        self._program = ContainerNetwork.LOOPBACK

    def lacking(self) -> tuple[str, ...]:
        """Why containers reach nothing outside, in a sentence; ideally empty."""
        return (self._failure,) if self._failure else ()

    @property
    def program(self) -> ContainerNetwork:
        """The program that connects containers now; LOOPBACK if none does."""
        return self._program

    def open(self) -> None:
        """Adopt the program, or start it."""
        self._program = ContainerNetwork.LOOPBACK
        if (pidfd := self._running()) is not None:
            os.close(pidfd)
            if (record := record_files.read(self._record, OutsideProcess)) is not None:
                self._program = ContainerNetwork(record.program)
            return
        reasons = []
        for program in self._programs:
            path = shutil.which(program, path=_SYSTEM)
            if path is None:
                continue
            try:
                started = self._start(program, path)
            except (OSError, errors.Unavailable, subprocess.TimeoutExpired) as error:
                reasons.append(
                    f"{program}: {error.message if isinstance(error, errors.Unavailable) else error}"
                )
                continue
            record_files.write(self._record, started)
            self._failure, self._program = "", program
            log.info("outside.connected", program=program, pid=started.pid)
            return
        self._failure = f"containers reach nothing outside this machine: {'; '.join(reasons)}"
        log.warning("outside.failed", reason=self._failure)

    async def run(self) -> None:
        """Start it again when it ends, for ever."""
        while True:
            pidfd = self._running()
            if pidfd is None:
                await asyncio.sleep(_AGAIN_S)
            else:
                await _ended(pidfd)
                log.warning("outside.ended")
            await asyncio.to_thread(self.open)

    def close(self) -> None:
        """End it: nothing is attached to the bridge."""
        if (pidfd := self._running()) is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                if not select.select([pidfd], [], [], _END_S)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [], _END_S)
            os.close(pidfd)
        if self._folder.exists():
            namespaces.remove_mount_file(self._file)
            shutil.rmtree(self._folder)

    @property
    def _record(self) -> Path:
        return self._folder / "process.json"

    @property
    def _file(self) -> Path:
        return self._folder / "namespace"

    def _running(self) -> int | None:
        """A pidfd of the program; None if it has ended."""
        record = record_files.read(self._record, OutsideProcess) if self._record.exists() else None
        if record is None:
            return None
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            # The pidfd pins the pid only from here on, and is readable once the process has ended.
            if start_time_of(record.pid) == record.start_time and not select.select([pidfd], [], [], 0)[0]:
                return pidfd
        os.close(pidfd)
        return None

    def _start(self, program: ContainerNetwork, path: str) -> OutsideProcess:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not namespaces.is_mounted(self._file):
            self._file.touch(mode=0o600)
            namespaces.bind_namespace(self._file, f"/proc/self/fd/{self._namespace}")
        start = self._start_pasta if program is ContainerNetwork.PASTA else self._start_slirp
        pid = start(path)
        return OutsideProcess(pid, start_time_of(pid), program)

    def _start_pasta(self, path: str) -> int:
        """It goes to the background when it is ready."""
        pid_file = self._folder / "pasta.pid"
        nothing = [argument for option in "tuTU" for argument in (f"-{option}", "none")]
        done = subprocess.run(
            [
                *(path, "--quiet", "--config-net", "--no-map-gw", *nothing, "--netns-only"),
                *("--no-dhcp", "--no-dhcpv6", "--no-ra", "--ns-ifname", _INTERFACE, "--pid", str(pid_file)),
                *("--netns", str(self._file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": _SYSTEM, "LC_ALL": "C"},
            cwd="/",
            timeout=_READY_S,
            check=False,
        )
        if done.returncode:
            raise errors.Unavailable(_last_line(done.stderr) or f"exit {done.returncode}")
        return int(pid_file.read_text())

    def _start_slirp(self, path: str) -> int:
        ready, writing = os.pipe2(os.O_CLOEXEC)
        with open(ready, "rb", buffering=0) as reading:
            try:
                process = subprocess.Popen(
                    [
                        *(path, "--configure", "--netns-type=path", f"--ready-fd={writing}", "--mtu=65520"),
                        *("--disable-host-loopback", "--disable-dns", "--enable-sandbox", "--enable-seccomp"),
                        *(f"--cidr={_free_network()}", str(self._file), _INTERFACE),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": _SYSTEM, "LC_ALL": "C"},
                    pass_fds=(writing,),
                    start_new_session=True,
                    cwd="/",
                )
            finally:
                os.close(writing)
            is_ready = select.select([reading], [], [], _READY_S)[0] and reading.read(1) == b"1"
        if not is_ready:
            process.kill()
            raise errors.Unavailable(f"it did not become ready (exit {process.wait()})")
        process.returncode = 0  # it outlives this process, and nobody waits for it here
        return process.pid


async def _ended(pidfd: int) -> None:
    """Wait until the process has ended; closes `pidfd`."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _free_network() -> IPv4Network:
    used = [route.network for route in host_routes.read() if route.network.prefixlen]
    return choose_network(used)


def choose_network(used: Iterable[IPv4Network]) -> IPv4Network:
    """A network between the program and the bridge, which hides hosts that have such addresses: one that
    overlaps none of those `used` by the machine."""
    taken = list(used)
    candidates = [IPv4Network(each) for each in _NETWORKS]
    return next((each for each in candidates if not any(each.overlaps(one) for one in taken)), candidates[0])


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and "syslog" not in line), "")[:200]
