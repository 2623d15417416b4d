"""Devices of a container: device nodes of its own, and the edits of CDI to its OCI configuration.

A device node is made anew in the container's folder, for its owner in the container's user namespace, and
mounted in: the node's own `/dev` keeps its owners, and root in a container can use a device that belongs to
root. The rules of the device cgroup allow exactly those nodes. `prepare` has the effects, `apply` is pure.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skerry.model import errors
from skerry.node.containers.oci_config import merge_environment
from skerry.node.devices.cdi_files import CdiHook, CdiMount, ContainerEdits, DeviceNode
from skerry.node.user_namespaces import IDS, UserNamespace

FOLDER = "devices"  # in the folder of a container
_PROPAGATION = ("private", "rprivate", "shared", "rshared", "slave", "rslave")


class PreparedNode(NamedTuple):
    """A device node that was made for one container."""

    source: Path
    destination: str
    rule: dict[str, Any]  # of the device cgroup


class ContainerDevices(NamedTuple):
    """All that a container gets with its devices."""

    nodes: Sequence[PreparedNode] = ()
    edits: Sequence[ContainerEdits] = ()


def prepare(folder: Path, edits: Sequence[ContainerEdits], users: UserNamespace | None) -> ContainerDevices:
    """Make the device nodes in the folder of a container, in place of those of an earlier run. Raises
    `FailedPrecondition` if something that a file names is not on this node."""
    home = folder / FOLDER
    shutil.rmtree(home, ignore_errors=True)
    requested: dict[str, DeviceNode] = {}
    for each in edits:
        for node in each.device_nodes:
            requested.setdefault(node.path, node)
        for mount in each.mounts:
            if not os.path.exists(mount.host_path):
                raise errors.FailedPrecondition(
                    f"a device of this container needs {mount.host_path} of this node, which does not exist; "
                    "is its driver installed?"
                )
    nodes = []
    if requested:
        home.mkdir(mode=0o700)
        nodes = [_make(home / str(position), node, users) for position, node in enumerate(requested.values())]
    return ContainerDevices(nodes, edits)


def apply(config: dict[str, Any], devices: ContainerDevices, *, ids: int = IDS) -> dict[str, Any]:
    """An OCI configuration with the devices added. `ids` is how many groups the container has."""
    if not devices.edits:
        return config
    process, linux = config["process"], config["linux"]
    groups = list(process["user"]["additionalGids"])
    hooks: dict[str, list[dict[str, Any]]] = {}
    mounts = [_node_mount(node) for node in devices.nodes]
    for edits in devices.edits:
        mounts += [_mount(mount) for mount in edits.mounts]
        for hook in edits.hooks:
            hooks.setdefault(hook.hook_name, []).append(_hook(hook))
        groups += [group for group in edits.additional_gids if group not in groups]
    if any(group >= ids for group in groups):
        raise errors.FailedPrecondition(
            f"a device of this container needs a group above {ids - 1}, which it cannot have; run it with "
            "userns host"
        )
    env = merge_environment(process["env"], *(edits.env for edits in devices.edits))
    resources = linux["resources"]
    rules = [*resources["devices"], *(node.rule for node in devices.nodes)]
    return {
        **config,
        "process": {**process, "env": env, "user": {**process["user"], "additionalGids": groups}},
        "mounts": [*config["mounts"], *mounts],
        "linux": {**linux, "resources": {**resources, "devices": rules}},
        **({"hooks": hooks} if hooks else {}),
    }


def _make(path: Path, node: DeviceNode, users: UserNamespace | None) -> PreparedNode:
    kind, number, mode, uid, gid = _facts(node)
    os.mknod(path, kind | 0o600, number)
    os.chown(path, _shift(uid, users), _shift(gid, users))
    os.chmod(path, mode)
    rule = {
        "allow": True,
        "type": "b" if kind == stat.S_IFBLK else "c",
        "major": os.major(number),
        "minor": os.minor(number),
        "access": node.permissions or "rwm",
    }
    return PreparedNode(path, node.path, rule)


def _facts(node: DeviceNode) -> tuple[int, int, int, int, int]:
    """Type, number, mode and owner of a device node: as its file says, else as the node's own is."""
    try:
        found = os.stat(node.source)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the device node {node.source} cannot be found on this node: {error.strerror}; is its driver "
            "loaded?"
        ) from None
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFCHR, stat.S_IFBLK) or (
        node.type and (kind == stat.S_IFBLK) is not (node.type == "b")
    ):
        raise errors.FailedPrecondition(
            f"{node.source} of this node is not the device that its CDI file says"
        )
    mode = stat.S_IMODE(found.st_mode) if node.file_mode is None else node.file_mode & 0o777
    uid = found.st_uid if node.uid is None else node.uid
    gid = found.st_gid if node.gid is None else node.gid
    return kind, found.st_rdev, mode, uid, gid


def _shift(id: int, users: UserNamespace | None) -> int:
    """An id of the container as one of the node; one that it does not have becomes its root."""
    if users is None:
        return id
    return users.first_id + (id if id < IDS else 0)


def _node_mount(node: PreparedNode) -> dict[str, Any]:
    return {
        "destination": node.destination,
        "type": "bind",
        "source": str(node.source),
        "options": ["bind", "rprivate", "rw", "nosuid", "noexec"],
    }


def _mount(mount: CdiMount) -> dict[str, Any]:
    options = list(mount.options)
    if mount.type in ("", "bind") and not {"bind", "rbind"} & set(options):
        options.append("bind")
    if not set(_PROPAGATION) & set(options):
        options.append("rprivate")
    if "nosuid" not in options:
        options.append("nosuid")
    return {
        "destination": mount.container_path,
        "type": mount.type or "bind",
        "source": mount.host_path,
        "options": options,
    }


def _hook(hook: CdiHook) -> dict[str, Any]:
    made: dict[str, Any] = {"path": hook.path}
    if hook.args:
        made["args"] = hook.args
    if hook.env:
        made["env"] = hook.env
    if hook.timeout is not None:
        made["timeout"] = hook.timeout
    return made
