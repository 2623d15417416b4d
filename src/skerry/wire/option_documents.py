"""Container options as documents write them in JSON: fields beside those of `skerry.wire.spec_documents`.

What comes in is laid over what is there, as a merge patch says. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model.container_options import NO_OPTIONS, ContainerOptions, HostAlias, Ulimit
from skerry.model.resources import MAX_AMOUNT, Millicores
from skerry.model.workloads import InstanceSpec

T = TypeVar("T")

OptionalField: TypeAlias = T | UnsetType | None  # null is not the same as nothing

# Fields of a document by those of the model, where their names differ.
_NAMES = {"host_name": "hostname"}
_PARSERS = {"ulimits": Ulimit.parse, "extra_hosts": HostAlias.parse}
# All fields here, for documents that choose among those of a spec.
OPTION_FIELDS = (
    "node",
    "cpu_limit",
    *(_NAMES.get(name, name) for name in ContainerOptions.__struct_fields__),
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

    def options_onto(self, base: ContainerOptions) -> ContainerOptions:
        """The options that this makes of `base`; raises `Invalid`."""
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

    def cpu_limit_onto(self, base: Millicores | None) -> Millicores | None:
        if self.cpu_limit is UNSET:
            return base
        return None if self.cpu_limit is None else Millicores(self.cpu_limit)


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


def option_fields(spec: InstanceSpec) -> dict[str, Any]:
    """The fields of an `OptionsDocument` that shows `spec`."""
    shown: dict[str, Any] = {"node": spec.node, "cpu_limit": spec.cpu_limit}
    for name in ContainerOptions.__struct_fields__:
        value = getattr(spec.options, name)
        shown[_NAMES.get(name, name)] = tuple(map(str, value)) if isinstance(value, tuple) else value
    return shown
