"""Files in /etc that the node generates for a container: resolv.conf, hosts and hostname.

They are mounted read-only over those of its image. Read-only, because they lie outside the container's layer,
where its disk limit does not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from skerry.kit import files
from skerry.model.container_options import HostAlias
from skerry.node.secrets.secret_files import NO_FILES, SecretFiles

_HOSTS = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::\tip6-localnet
ff00::\tip6-mcastprefix
ff02::1\tip6-allnodes
ff02::2\tip6-allrouters
"""
_LOOPBACK = "127.0.0.1"


class EtcFiles(msgspec.Struct, frozen=True):
    """Their paths on the node; each is mounted over the file of that name in the container's /etc. `init` is
    the node's init program, mounted in as process 1."""

    resolv_conf: Path
    hosts: Path
    hostname: Path
    init: Path | None = None
    secrets: SecretFiles = NO_FILES  # mounted where their specs say


def write_files(
    folder: Path,
    *,
    host_name: str,
    address: str,
    resolv_conf: str,
    extra_hosts: Sequence[HostAlias] = (),
) -> EtcFiles:
    """Write them to `folder`, 0644, replacing existing ones.

    `address` is empty for a container without a network; its own name then resolves to its loopback.
    """
    etc = EtcFiles(folder / "resolv.conf", folder / "hosts", folder / "hostname")
    _write(etc.resolv_conf, resolv_conf)
    extra = "".join(f"{alias.address}\t{alias.name}\n" for alias in extra_hosts)
    _write(etc.hosts, f"{_HOSTS}{address or _LOOPBACK}\t{host_name}\n{extra}")
    _write(etc.hostname, f"{host_name}\n")
    return etc


def _write(path: Path, text: str) -> None:
    """Not synced: they are written again at every start."""
    files.write_whole(path, text.encode(), mode=files.PUBLIC)
