"""Runs `ip` of iproute2 and `nft` of nftables.

Each run takes many commands on its stdin. They run in the network namespace of the bridge. A failure is
`Unavailable` with the program's message. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import msgspec

from skerry.kit import program_paths
from skerry.model import errors
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace

_WITHIN_S = 30.0
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}


class NetworkCommands(msgspec.Struct, frozen=True):
    """Paths of the two programs, and where they work."""

    ip_path: str
    nft_path: str
    namespace: BridgeNamespace = OWN_NAMESPACE

    def ip(self, commands: list[str], *, ignore_errors: bool = False) -> None:
        """Change links, addresses and routes, in order."""
        flags = ["-force"] if ignore_errors else []
        self._run([self.ip_path, *flags, "-batch", "-"], "\n".join([*commands, ""]), check=not ignore_errors)

    def nft(self, text: str) -> None:
        """Change rules, in one transaction."""
        self._run([self.nft_path, "-f", "-"], text)

    def nft_list(self, *selector: str) -> str:
        """List objects, as JSON."""
        return self._run([self.nft_path, "-j", "-t", "list", *selector], "")

    def _run(self, arguments: list[str], text: str, *, check: bool = True) -> str:
        # A child process is in the namespace of the thread that starts it.
        return self.namespace.run(lambda: _run(arguments, text, check=check))


def find(path: str | None = None, *, namespace: BridgeNamespace = OWN_NAMESPACE) -> NetworkCommands:
    """Find both on `path`, else on our own PATH and in the usual folders. Raises Unavailable, with what to
    install, unless both exist and we may use them."""
    found = {name: program_paths.find(name, path) for name in _PACKAGES}
    missing = [name for name, location in found.items() if not location]
    if missing:
        raise errors.Unavailable(
            f"containers cannot have a network: {' and '.join(missing)} not found; install "
            + " and ".join(_PACKAGES[name] for name in missing)
        )
    if os.geteuid() != 0:
        raise errors.Unavailable("containers cannot have a network: that requires root; run Skerry as root")
    return NetworkCommands(found["ip"], found["nft"], namespace)


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors of the kernel and the disk."""
    try:
        yield
    except OSError as error:
        raise errors.Unavailable(
            f"the network of containers could not be changed: {error.strerror}", detail=repr(error)
        ) from error


def _run(arguments: list[str], text: str, *, check: bool = True) -> str:
    name = os.path.basename(arguments[0])
    try:
        done = subprocess.run(
            arguments, input=text, capture_output=True, text=True, timeout=_WITHIN_S, env={"LC_ALL": "C"}
        )
    except subprocess.TimeoutExpired as error:
        raise errors.Unavailable(f"{name} did not end within {_WITHIN_S:.0f} s", detail=text) from error
    except OSError as error:
        raise errors.Unavailable(f"{name} cannot be run: {error.strerror}") from error
    if check and done.returncode != 0:
        message = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "no reason given")
        raise errors.Unavailable(
            f"the network of containers could not be changed; {name}: {message}",
            detail=f"{done.stderr}\n{text}",
        )
    return done.stdout
