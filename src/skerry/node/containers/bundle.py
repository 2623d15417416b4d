"""The OCI runtime configuration of a container, from its spec and its image. Pure: touches nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skerry.model.containers import ContainerSpec
from skerry.model.images import ImageConfig
from skerry.node.containers.files import Files
from skerry.node.containers.users import Identity


def make_config(
    spec: ContainerSpec,
    image: ImageConfig,
    *,
    identity: Identity,
    rootfs: Path,
    cgroups_path: str,
    network_namespace: str | None,
    files: Files,
) -> dict[str, Any]:
    """The whole `config.json`, as data. Without `network_namespace` the runtime makes a new, empty one."""
    raise NotImplementedError


def make_process(
    spec: ContainerSpec,
    image: ImageConfig,
    arguments: tuple[str, ...],
    *,
    identity: Identity,
    environment: tuple[str, ...] = (),
    folder: str = "",
    tty: bool = False,
) -> dict[str, Any]:
    """A further process in the container, for `exec --process`: confined like the first one."""
    raise NotImplementedError


def stop_signal(spec: ContainerSpec, image: ImageConfig) -> int:
    """What asks the container to end: the spec's word, else the image's, else SIGTERM."""
    raise NotImplementedError
