"""Container options and mounts in JSON documents: fields beside those of `skerry.wire.spec_documents`.

Input is applied to the present options as a merge patch. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model.container_options import NO_OPTIONS, ContainerOptions, HostAlias, Ulimit
from skerry.model.devices import DeviceRequest
from skerry.model.images import ImageAccess
from skerry.model.mounts import Mount, MountKind, parse_template, parse_tmpfs, parse_volume
from skerry.model.network import Egress
from skerry.model.network_policies import EgressChoice
from skerry.model.resources import MAX_AMOUNT, Millicores
from skerry.model.secrets import SecretKind, SecretUse
from skerry.model.workloads import InstanceSpec
from skerry.wire import secret_documents
from skerry.wire.secret_documents import SecretUseDocument, SecretUseInput

T = TypeVar("T")

OptionalField: TypeAlias = T | UnsetType | None  # null differs from a field that is not given

# Fields of a document by those of the model, where the names differ.
_NAMES = {"host_name": "hostname"}
_PARSERS = {"ulimits": Ulimit.parse, "extra_hosts": HostAlias.parse}
# Mounts, by the fields that have them.
_MOUNTS = {"volumes": parse_volume, "tmpfs": parse_tmpfs, "volume_templates": parse_template}
_MOUNT_FIELDS = {
    MountKind.VOLUME: "volumes",
    MountKind.HOST: "volumes",
    MountKind.TMPFS: "tmpfs",
    MountKind.TEMPLATE: "volume_templates",
}
# All fields, for documents that select among those of a spec.
OPTION_FIELDS = (
    "node",
    "cpu_limit",
    "devices",
    "egress",
    *(_NAMES.get(name, name) for name in ContainerOptions.__struct_fields__),
    "secrets",
    "configs",
    *_MOUNTS,
)


class OptionsInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a container is run, and on which node."""

    node: OptionalField[Annotated[str, Meta(description="The only node it may be on, by name or id")]] = UNSET
    cpu_limit: OptionalField[
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_AMOUNT,
                description="Most cpu, in thousandths of a core; 0: no limit; null: `resources.cpu`",
            ),
        ]
    ] = UNSET
    devices: OptionalField[
        Annotated[
            list[str],
            Meta(description="`nvidia.com/gpu:2`, `gpu` (any vendor's), or by CDI name: `nvidia.com/gpu=0`"),
        ]
    ] = UNSET
    egress: OptionalField[
        Annotated[
            Egress,
            Meta(
                description="What it may reach: `all`, `internet` (public addresses and this cloud), `mesh` "
                "(this cloud), `none`; counts if stricter than its namespace's, or an admin's; null: as that"
            ),
        ]
    ] = UNSET
    user: OptionalField[Annotated[str, Meta(description="`USER[:GROUP]`, names or numbers")]] = UNSET
    entrypoint: OptionalField[
        Annotated[list[str], Meta(description="Instead of the image's entrypoint and command")]
    ] = UNSET
    stop_signal: OptionalField[Annotated[str, Meta(description="Such as `SIGINT`")]] = UNSET
    stop_grace_s: OptionalField[
        Annotated[float, Meta(description="Between the stop signal and SIGKILL; null: the node's setting")]
    ] = UNSET
    read_only: OptionalField[Annotated[bool, Meta(description="The root file system")]] = UNSET
    shm: OptionalField[
        Annotated[int, Meta(ge=0, le=MAX_AMOUNT, description="MB of /dev/shm; 0: the usual 64")]
    ] = UNSET
    ulimits: OptionalField[
        Annotated[list[str], Meta(description="`nofile=4096`, or soft and hard: `nofile=1024:4096`")]
    ] = UNSET
    init: OptionalField[Annotated[bool, Meta(description="Process 1 is an init that reaps")]] = UNSET
    hostname: OptionalField[Annotated[str, Meta(description="Empty: made of the name")]] = UNSET
    extra_hosts: OptionalField[Annotated[list[str], Meta(description="`db:10.0.0.7`")]] = UNSET
    dns: OptionalField[
        Annotated[list[str], Meta(description="Name servers, IPv4; none: those of the node")]
    ] = UNSET
    secrets: OptionalField[
        Annotated[list[str | SecretUseInput], Meta(description=secret_documents.SECRETS)]
    ] = UNSET
    configs: OptionalField[
        Annotated[list[str | SecretUseInput], Meta(description=secret_documents.CONFIGS)]
    ] = UNSET
    volumes: OptionalField[
        Annotated[
            list[str],
            Meta(description="`NAME:/path`, `NAME:/path:ro`; for admins paths of the node, `/srv:/path`"),
        ]
    ] = UNSET
    tmpfs: OptionalField[
        Annotated[list[str], Meta(description="`/path`, or with its size in MB `/path:64`")]
    ] = UNSET
    volume_templates: OptionalField[
        Annotated[
            list[str],
            Meta(description="Of a service: `NAME:/path:GB`; each copy has a volume `NAME-INDEX`"),
        ]
    ] = UNSET

    def secrets_onto(self, base: tuple[SecretUse, ...]) -> tuple[SecretUse, ...]:
        """`base` with the given secrets and configs; raises `Invalid`."""
        return secret_documents.merge_uses(base, self.secrets, self.configs)

    def options_onto(self, base: ContainerOptions) -> ContainerOptions:
        """`base` with these options applied; raises `Invalid`."""
        fields = ContainerOptions.__struct_fields__
        return ContainerOptions(**{name: self._field(name, getattr(base, name)) for name in fields})

    def _field(self, name: str, base: Any) -> Any:
        given = getattr(self, _NAMES.get(name, name))
        if given is UNSET:
            return base
        if given is None:
            return getattr(NO_OPTIONS, name)
        if not isinstance(given, list):
            return given
        parse = _PARSERS.get(name, str)
        return tuple(parse(text) for text in given)

    def mounts_onto(self, base: tuple[Mount, ...], caller_access: ImageAccess) -> tuple[Mount, ...]:
        """`base` with the mounts that are given instead; raises `Invalid`. Paths of the node are granted to a
        caller who may name any."""
        mounts: list[Mount] = []
        for field, parse in _MOUNTS.items():
            given = getattr(self, field)
            if given is UNSET:
                mounts += [mount for mount in base if _MOUNT_FIELDS[mount.kind] == field]
                continue
            for mount in map(parse, given or ()):
                is_granted = mount.kind is MountKind.HOST and caller_access is ImageAccess.ALL
                mounts.append(msgspec.structs.replace(mount, is_granted=is_granted))
        return tuple(mounts)

    def cpu_limit_onto(self, base: Millicores | None) -> Millicores | None:
        if self.cpu_limit is UNSET:
            return base
        return None if self.cpu_limit is None else Millicores(self.cpu_limit)

    def egress_onto(self, base: EgressChoice | None, caller_access: ImageAccess) -> EgressChoice | None:
        """`base`, or what is given instead; that of an admin counts in every namespace."""
        is_granted = caller_access is ImageAccess.ALL
        if isinstance(self.egress, UnsetType):
            return base
        if self.egress is None:
            return None
        if base is not None and base.egress is self.egress and not is_granted:
            return base
        return EgressChoice(self.egress, is_granted)

    def devices_onto(self, base: tuple[DeviceRequest, ...]) -> tuple[DeviceRequest, ...]:
        if self.devices is UNSET:
            return base
        return tuple(map(DeviceRequest.parse, self.devices or ()))


class OptionsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """How a container is run, and on which node."""

    node: Annotated[str, Meta(description="The only node it may be on, by name or id; empty: any")]
    cpu_limit: Annotated[
        int | None, Meta(description="Most cpu, in thousandths of a core; 0: no limit; null: `resources.cpu`")
    ]
    user: Annotated[str, Meta(description="Empty: the image's")]
    entrypoint: tuple[str, ...]
    stop_signal: Annotated[str, Meta(description="Empty: the image's, or SIGTERM")]
    stop_grace_s: Annotated[float | None, Meta(description="null: the node's setting")]
    read_only: bool
    shm: Annotated[int, Meta(description="MB of /dev/shm; 0: the usual 64")]
    ulimits: tuple[str, ...]
    init: bool
    hostname: Annotated[str, Meta(description="Empty: made of the name")]
    extra_hosts: tuple[str, ...]
    dns: tuple[str, ...]
    secrets: tuple[SecretUseDocument, ...]
    configs: tuple[SecretUseDocument, ...]
    devices: Annotated[tuple[str, ...], Meta(description="Requested of its node, for it alone")]
    volumes: Annotated[tuple[str, ...], Meta(description="`NAME:/path`, `NAME:/path:ro`")] = ()
    tmpfs: Annotated[tuple[str, ...], Meta(description="`/path`, `/path:MB`")] = ()
    volume_templates: Annotated[tuple[str, ...], Meta(description="`NAME:/path:GB`")] = ()
    egress: Annotated[Egress | None, Meta(description="Its own choice; null: as its namespace")] = None


def option_fields(spec: InstanceSpec) -> dict[str, Any]:
    """The fields of an `OptionsDocument` for `spec`."""
    fields: dict[str, Any] = {"node": spec.node, "cpu_limit": spec.cpu_limit}
    for name in ContainerOptions.__struct_fields__:
        value = getattr(spec.options, name)
        fields[_NAMES.get(name, name)] = tuple(map(str, value)) if isinstance(value, tuple) else value
    for kind in (SecretKind.SECRET, SecretKind.CONFIG):
        fields[f"{kind}s"] = secret_documents.use_documents(spec.secrets, kind)
    for field in _MOUNTS:
        fields[field] = tuple(str(mount) for mount in spec.mounts if _MOUNT_FIELDS[mount.kind] == field)
    fields["egress"] = None if spec.egress is None else spec.egress.egress
    return {**fields, "devices": tuple(map(str, spec.devices))}
