"""Translates an instance to the container it runs as: name and spec. Pure.

A leased cell has the same spec, of which only name and resources matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import msgspec

from skerry.model.containers import INSTANCE_PREFIX, ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.workloads import InstanceSpec

_VALID_IN_NAME = re.compile(r"[a-z0-9-]{1,61}")
_HASH_DIGITS = 40
_MAX_HOST_NAME = 63


def container_name(instance: InstanceId) -> str:
    """`i-` and the id; an id that is not valid in a container name is hashed."""
    if _VALID_IN_NAME.fullmatch(instance):
        return f"{INSTANCE_PREFIX}{instance}"
    # Ids do not begin with a dash, so a hashed name never equals another one.
    return f"{INSTANCE_PREFIX}-{hashlib.sha256(instance.encode()).hexdigest()[:_HASH_DIGITS]}"


def container_spec(instance: InstanceId, spec: InstanceSpec) -> ContainerSpec:
    """Raises Invalid if no container can have this spec."""
    options = spec.options
    return ContainerSpec(
        name=container_name(instance),
        image=spec.uri,
        entrypoint=options.entrypoint,
        arguments=spec.arguments,
        environment=spec.environment,
        user=options.user,
        host_name=options.host_name or _host_name(spec.name),
        stop_signal=options.stop_signal,
        stop_grace_s=options.stop_grace_s,
        resources=spec.resources,
        ports=spec.ports,
        read_only=options.read_only,
        userns=spec.userns,
        cpu_limit=spec.cpu_limit,
        shm=options.shm,
        ulimits=options.ulimits,
        init=options.init,
        extra_hosts=options.extra_hosts,
        dns=options.dns,
        secrets=spec.secrets,
        devices=tuple(map(str, spec.devices)),  # by name: the server has chosen
        mounts=spec.mounts,
    )


class SpecTranslation(msgspec.Struct, frozen=True):
    """Translates instances to containers: `spec` raises Invalid for what cannot run, `name` is unique per
    instance."""

    name: Callable[[InstanceId], str]
    spec: Callable[[InstanceId, InstanceSpec], ContainerSpec]


DEFAULT_TRANSLATION = SpecTranslation(container_name, container_spec)


def _host_name(name: str) -> str:
    """The name of the instance, cut to a valid host name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:_MAX_HOST_NAME].strip("-")
