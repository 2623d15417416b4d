"""Files of the Container Device Interface (CDI): what they say about devices, validated. Pure.

A file describes devices of one kind, each with the edits to a container's configuration that give it the
device: device nodes, mounts, environment, hooks, groups. Vendors install them in `/etc/cdi` and
`/var/run/cdi`, as JSON or YAML. Versions up to 1.0 of the specification are read; fields that are not known
here make a file invalid, rather than a device that works by half.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from skerry.model import devices

_VERSION: Final = re.compile(r"v?(0\.[2-8]\.\d+|1\.0\.\d+)")
_MAX_HOOKS = 32
_MAX_EDITS = 1024
_DEVICE_TYPES: Final = ("", "b", "c", "u", "p")
_PERMISSIONS: Final = re.compile(r"[rwm]{0,3}")
_HOOKS: Final = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


class InvalidCdiFile(ValueError):
    """A file that cannot be used, and why."""


class DeviceNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A device file in the container, and the one on the node that it is; without `host_path` the same."""

    path: str
    host_path: str = ""
    type: str = ""  # of the file: `c` or `b`; empty: as on the node
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""  # for the container's processes; empty: rwm
    uid: int | None = None  # in the container; None: as on the node
    gid: int | None = None

    @property
    def source(self) -> str:
        return self.host_path or self.path


class CdiMount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A path of the node that is mounted in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class CdiHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A program of the node that the runtime runs at a moment of the container's life."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Changes to the configuration of a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[Any, ...] = ()
    hooks: tuple[CdiHook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    intel_rdt: dict[str, Any] | None = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")


class CdiDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One device of a kind."""

    name: str
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}


class CdiSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A file: the devices of one kind, and edits that come with each of them."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}


def parse_file(data: bytes, *, is_yaml: bool) -> CdiSpec:
    """The content of a file. Raises `InvalidCdiFile`."""
    try:
        content = _load_yaml(data) if is_yaml else msgspec.json.decode(data)
        spec = msgspec.convert(content, CdiSpec, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCdiFile(_shortened(error)) from None
    _check(spec)
    return spec


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _load_yaml(data: bytes) -> Any:
    """Plain values; without aliases, of which a few lines can mean gigabytes."""
    import yaml  # few machines have devices, and fewer describe them in YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the faster one, if it is there
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, loader)):
            raise InvalidCdiFile("aliases are not read; write the values out")
        return yaml.load(data, loader)  # noqa: S506 - it makes plain values only
    except yaml.YAMLError as error:
        raise InvalidCdiFile(_shortened(error)) from None


def _check(spec: CdiSpec) -> None:
    if not _VERSION.fullmatch(spec.cdi_version):
        raise InvalidCdiFile(f"version {spec.cdi_version[:20]!r} is not known here; 0.2 to 1.0 are")
    if not devices.is_kind(spec.kind):
        raise InvalidCdiFile(f"{spec.kind[:80]!r} is no kind, such as vendor.com/class")
    if not spec.devices:
        raise InvalidCdiFile("it has no devices")
    if len(spec.devices) > devices.MAX_DEVICES:
        raise InvalidCdiFile(f"it has more than {devices.MAX_DEVICES} devices")
    names = [device.name for device in spec.devices]
    for name in names:
        if not devices.is_name(name):
            raise InvalidCdiFile(f"{name[:80]!r} is no name of a device")
    if len(set(names)) < len(names):
        raise InvalidCdiFile("two of its devices have the same name")
    _check_edits("the file", spec.container_edits)
    for device in spec.devices:
        _check_edits(f"device {device.name}", device.container_edits)


def _check_edits(place: str, edits: ContainerEdits) -> None:
    if edits.net_devices:
        raise InvalidCdiFile(f"{place} has network devices, which are not supported")
    if edits.intel_rdt is not None:
        raise InvalidCdiFile(f"{place} has intelRdt, which is not supported")
    lists = (edits.env, edits.device_nodes, edits.mounts, edits.additional_gids)
    if any(len(each) > _MAX_EDITS for each in lists) or len(edits.hooks) > _MAX_HOOKS:
        raise InvalidCdiFile(f"{place} has too many edits")
    for variable in edits.env:
        key, equals, _ = variable.partition("=")
        if not (key and equals) or "\0" in variable:
            raise InvalidCdiFile(f"{place}: env must be KEY=VALUE")
    for node in edits.device_nodes:
        _check_paths(place, node.path, node.source)
        if node.type not in _DEVICE_TYPES or not _PERMISSIONS.fullmatch(node.permissions):
            raise InvalidCdiFile(f"{place}: {node.path} has an unknown type or permissions")
        if min(node.major, node.minor, node.uid or 0, node.gid or 0, node.file_mode or 0) < 0:
            raise InvalidCdiFile(f"{place}: {node.path} has a negative number")
    for mount in edits.mounts:
        _check_paths(place, mount.host_path, mount.container_path)
        if any("\0" in option or not option.isprintable() for option in mount.options):
            raise InvalidCdiFile(f"{place}: a mount has an invalid option")
    for hook in edits.hooks:
        _check_paths(place, hook.path)
        if hook.hook_name not in _HOOKS:
            raise InvalidCdiFile(f"{place}: there is no hook {hook.hook_name[:40]!r}")
        if hook.timeout is not None and hook.timeout < 1:
            raise InvalidCdiFile(f"{place}: the timeout of a hook is at least 1 second")
    if any(not 0 < group < 2**32 - 1 for group in edits.additional_gids):
        raise InvalidCdiFile(f"{place}: additionalGids must be numbers of groups above 0")


def _check_paths(place: str, *paths: str) -> None:
    for path in paths:
        if not path.startswith("/") or "\0" in path or len(path) > 4096:
            raise InvalidCdiFile(f"{place}: {path[:80]!r} must be an absolute path")
        if ".." in path.split("/"):
            raise InvalidCdiFile(f"{place}: {path[:80]!r} must be a path without `..`")
