"""Runs `wg` of wireguard-tools and starts `wireguard-go`, where the kernel has no WireGuard.

Everything here blocks: call it in a thread. Private keys are given on stdin only.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import program_paths
from skerry.model import errors
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace

_WITHIN_S: Final = 10.0
_END_S: Final = 2.0
SOCKETS: Final = Path("/var/run/wireguard")  # where wireguard-go is reached; by interface, for all namespaces


class MeshPrograms(msgspec.Struct, frozen=True):
    """Paths of programs, and where they work; an empty path is not installed."""

    ip: str
    wg: str = ""
    wireguard_go: str = ""
    bridge: str = ""
    namespace: BridgeNamespace = OWN_NAMESPACE

    def run_wg(self, *arguments: str, text: str = "") -> str:
        """Raises Unavailable, without the input, which may hold a key."""
        return self.namespace.run(lambda: run([self.wg, *arguments], text))

    def start_wireguard_go(self, interface: str) -> None:
        """Start it for a new interface; it is there on return. The process outlives us, and ends with its
        interface."""
        _socket_of(interface).unlink(missing_ok=True)  # of one that was killed
        self.namespace.run(lambda: self._start_wireguard_go(interface))

    def _start_wireguard_go(self, interface: str) -> None:
        environment = {
            "LC_ALL": "C",
            "WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD": "1",
            "LOG_LEVEL": "error",
        }
        # It goes to the background with whatever it has open: not our pipes, which would never end.
        try:
            subprocess.run(
                [self.wireguard_go, interface],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_WITHIN_S,
                env=environment,
                cwd="/",
                start_new_session=True,
                check=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise errors.Unavailable(
                f"wireguard-go cannot be started: {error}; it needs the device /dev/net/tun"
            ) from error

    @contextlib.contextmanager
    def ending_wireguard_go(self, interface: str) -> Iterator[None]:
        """Its interface is removed inside, after which the process has ended, if there was one."""
        with contextlib.ExitStack() as undo:
            pidfds = self.namespace.run(lambda: _wireguard_go_of(interface))
            for pidfd in pidfds:
                undo.callback(os.close, pidfd)
            yield
            for pidfd in pidfds:
                select.select([pidfd], [], [], _END_S)
        with contextlib.suppress(OSError):
            _socket_of(interface).unlink(missing_ok=True)


def _socket_of(interface: str) -> Path:
    return SOCKETS / f"{interface}.sock"


def _wireguard_go_of(interface: str) -> list[int]:
    """Descriptors of the process that serves this interface of the calling thread's namespace."""
    here = os.readlink("/proc/thread-self/ns/net")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            folder = Path("/proc", name)
            program, _, arguments = (folder / "cmdline").read_bytes().partition(b"\0")
            is_it = os.path.basename(program) == b"wireguard-go" and arguments == interface.encode() + b"\0"
            if is_it and os.readlink(folder / "ns/net") == here:
                found.append(os.pidfd_open(int(name)))
    return found


def find(path: str | None = None, *, namespace: BridgeNamespace = OWN_NAMESPACE) -> MeshPrograms:
    """Those that are installed."""

    ip, wg, wireguard_go, bridge = (
        program_paths.find(name, path) for name in ("ip", "wg", "wireguard-go", "bridge")
    )
    return MeshPrograms(ip, wg, wireguard_go, bridge, namespace)


def run(arguments: list[str], text: str = "") -> str:
    """Run a program to its end; its output. Raises Unavailable with its message."""
    name = os.path.basename(arguments[0])
    try:
        done = subprocess.run(
            arguments,
            input=text,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            env={"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise errors.Unavailable(f"{name} did not end within {_WITHIN_S:.0f} s") from error
    except OSError as error:
        raise errors.Unavailable(f"{name} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        message = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "no reason given")
        raise errors.Unavailable(f"the mesh could not be changed; {name}: {message[:300]}")
    return done.stdout
