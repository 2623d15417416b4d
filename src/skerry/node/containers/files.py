"""The files of a container that are made for it: its resolver, hosts and host name."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Files(msgspec.Struct, frozen=True):
    """Where they are on the node; each is bound over the file of that name in the container's /etc."""

    resolv_conf: Path
    hosts: Path
    hostname: Path


def write_files(folder: Path, *, host_name: str, address: str, resolv_conf: str) -> Files:
    """Make them in `folder`, 0644, over what is there. `address` is empty for a container without a network."""
    raise NotImplementedError
