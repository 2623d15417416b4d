"""Runs `wg` of wireguard-tools and starts `wireguard-go`, where the kernel has no WireGuard.

Everything here blocks: call it in a thread. Private keys are given on stdin only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from skerry.model import errors

_WITHIN_S: Final = 10.0
_SYSTEM: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
SOCKETS: Final = Path("/var/run/wireguard")  # where wireguard-go is reached; by interface, for all namespaces


class MeshPrograms(msgspec.Struct, frozen=True):
    """Paths of programs; an empty one is not installed."""

    ip: str
    wg: str = ""
    wireguard_go: str = ""
    bridge: str = ""

    def run_wg(self, *arguments: str, text: str = "") -> str:
        """Raises Unavailable, without the input, which may hold a key."""
        return run([self.wg, *arguments], text)

    def start_wireguard_go(self, interface: str) -> None:
        """Start it for a new interface; it is there on return. The process outlives us, and ends with its
        interface."""
        (SOCKETS / f"{interface}.sock").unlink(missing_ok=True)  # of one that was killed
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


def find(path: str | None = None) -> MeshPrograms:
    """Those that are installed."""

    def which(name: str) -> str:
        return shutil.which(name, path=path) or shutil.which(name, path=path or _SYSTEM) or ""

    return MeshPrograms(which("ip"), which("wg"), which("wireguard-go"), which("bridge"))


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
