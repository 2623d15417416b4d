"""The OCI runtime configuration of a container, from its spec and its image. Pure.

Lookups, such as of the user, are done by the caller. It contains no limits, since the container's cgroup is
in its cell, which has them. Written for runtime-spec 1.0.2, which runc and crun read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from skerry.model import errors
from skerry.model.containers import ContainerSpec
from skerry.model.images import ImageConfig
from skerry.node.containers import confinement, init_programs, seccomp, signals
from skerry.node.containers.etc_files import EtcFiles
from skerry.node.containers.users import ContainerUser
from skerry.node.secrets.secret_files import SecretFiles
from skerry.node.user_namespaces import IDS, UserNamespace

_SPECIFICATION: Final = "1.0.2"
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STOP_SIGNAL: Final = "SIGTERM"
_NOTHING_SPECIAL: Final = ["nosuid", "noexec", "nodev"]
_TTY_GROUP: Final = 5
_SHARED_MEMORY_KB: Final = 64 * 1024


def make_config(
    spec: ContainerSpec,
    image: ImageConfig,
    *,
    identity: ContainerUser,
    rootfs: Path,
    cgroups_path: str,
    network_namespace: str | None,
    files: EtcFiles,
    users: UserNamespace | None = None,
) -> dict[str, Any]:
    """The whole `config.json`, as data. Without `network_namespace` the runtime creates an empty one; without
    `users`, ids are those of the node. Without `cgroups_path` the container has no cgroup: a node of an
    ordinary user may have none. Mounts of the spec are not in it: the caller appends
    them."""
    ids = identity.ids if users is None else IDS
    argv = command(spec, image)
    init = () if files.init is None else (_bind(init_programs.DESTINATION, files.init),)
    return {
        "ociVersion": _SPECIFICATION,
        "process": make_process(
            spec,
            image,
            (init_programs.DESTINATION, "--", *argv) if init else argv,
            identity=identity,
            environment=files.secrets.environment,
        ),
        "root": {"path": str(rootfs), "readonly": spec.read_only},
        "hostname": host_name(spec),
        "mounts": [
            *_mounts(spec.shm, ids, has_cgroup=bool(cgroups_path)),
            *_own_files(files),
            *init,
            *_secret_mounts(files.secrets),
        ],
        "linux": {
            **({"cgroupsPath": cgroups_path} if cgroups_path else {}),
            "namespaces": [
                _namespace("network", network_namespace),
                *(_namespace(kind) for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                *(() if users is None else (_namespace("user", users.path),)),
            ],
            **({} if users is None else dict.fromkeys(("uidMappings", "gidMappings"), _mappings(users))),
            **({"resources": {"devices": confinement.DEVICES}} if cgroups_path else {}),
            # Of a given network, `skerry.node.network.bridge` has set them.
            **({"sysctl": confinement.sysctls(ids)} if network_namespace is None else {}),
            "seccomp": seccomp.profile(),
            "maskedPaths": confinement.masked_paths(),
            "readonlyPaths": confinement.READ_ONLY,
            "rootfsPropagation": "rprivate",
        },
    }


def make_process(
    spec: ContainerSpec,
    image: ImageConfig,
    arguments: tuple[str, ...],
    *,
    identity: ContainerUser,
    environment: tuple[str, ...] = (),
    folder: str = "",
    tty: bool = False,
) -> dict[str, Any]:
    """A process in the container: the first one, or one for `exec --process`, confined alike."""
    capabilities = confinement.CAPABILITIES if identity.uid == 0 else ()
    defaults = (
        _PATH,
        f"HOSTNAME={host_name(spec)}",
        f"HOME={identity.home}",
        *(["TERM=xterm"] if tty else []),
    )
    return {
        "terminal": tty,
        "user": {"uid": identity.uid, "gid": identity.gid, "additionalGids": identity.groups},
        "args": arguments,
        "env": merge_environment(defaults, image.environment, spec.environment, environment),
        # The runtime creates it, inside the root, if it does not exist.
        "cwd": posixpath.normpath(posixpath.join("/", folder or spec.folder or image.folder)),
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "rlimits": confinement.rlimits(spec.ulimits),
        "noNewPrivileges": True,
        "oomScoreAdj": confinement.oom_score(),
    }


def command(spec: ContainerSpec, image: ImageConfig) -> tuple[str, ...]:
    """The command to run. Raises Invalid if there is none.

    An entrypoint in the spec replaces the image's entrypoint and command; arguments replace the command.
    """
    if spec.entrypoint:
        return (*spec.entrypoint, *spec.arguments)
    argv = (*image.entrypoint, *(spec.arguments or image.command))
    if not argv:
        raise errors.Invalid(
            f"image {spec.image} has no command; give the container arguments or an entrypoint",
            field="arguments",
        )
    return argv


def merge_environment(*sources: Iterable[str]) -> list[str]:
    """KEY=VALUE of all of them, each key once, the last one winning. Other texts are left out."""
    merged: dict[str, str] = {}
    for source in sources:
        for setting in source:
            key, equals, value = setting.partition("=")
            if key and equals and "\0" not in setting:
                merged[key] = value
    return [f"{key}={value}" for key, value in merged.items()]


def host_name(spec: ContainerSpec) -> str:
    """The container's host name."""
    return spec.host_name or spec.name


def stop_signal(spec: ContainerSpec, image: ImageConfig) -> int:
    """The stop signal: the spec's, else the image's, else SIGTERM. Raises Invalid."""
    return signals.number_of(spec.stop_signal or image.stop_signal or _STOP_SIGNAL)


def _namespace(kind: str, path: str | None = None) -> dict[str, str]:
    return {"type": kind} if path is None else {"type": kind, "path": path}


def _mappings(users: UserNamespace) -> list[dict[str, int]]:
    """The mapping that the namespace already has; runtimes require it."""
    return [{"containerID": 0, "hostID": users.first_id, "size": IDS}]


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": options}


def _mounts(shm: int, ids: int, *, has_cgroup: bool) -> list[dict[str, Any]]:
    """Mounts of kernel file systems, outer ones first; `shm` MB for /dev/shm, or 0."""
    group = (f"gid={_TTY_GROUP}",) if ids > _TTY_GROUP else ()
    cgroup = _mount("/sys/fs/cgroup", "cgroup", *_NOTHING_SPECIAL, "relatime", "ro")
    shared_kb = shm * 1024 or _SHARED_MEMORY_KB
    return [
        _mount("/proc", "proc", *_NOTHING_SPECIAL),
        _mount("/dev", "tmpfs", "nosuid", "noexec", "strictatime", "mode=755", "size=65536k"),
        _mount(
            "/dev/pts",
            "devpts",
            *("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
            *group,
        ),
        _mount("/dev/shm", "tmpfs", *_NOTHING_SPECIAL, "mode=1777", f"size={shared_kb}k"),  # noqa: S108 - its own
        _mount("/dev/mqueue", "mqueue", *_NOTHING_SPECIAL),
        _mount("/sys", "sysfs", *_NOTHING_SPECIAL, "ro"),
        *((cgroup,) if has_cgroup else ()),
    ]


def _own_files(files: EtcFiles) -> list[dict[str, Any]]:
    sources = {"resolv.conf": files.resolv_conf, "hosts": files.hosts, "hostname": files.hostname}
    return [_bind(f"/etc/{name}", source, "noexec") for name, source in sources.items()]


def _secret_mounts(files: SecretFiles) -> list[dict[str, Any]]:
    return [_bind(destination, source, "noexec") for destination, source in files.mounts]


def _bind(destination: str, source: Path, *options: str) -> dict[str, Any]:
    """A read-only bind mount of a file or folder of the node."""
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["bind", "rprivate", "ro", "nosuid", "nodev", *options],
    }
