"""The container that an instance is: its name, and what is asked of its home (`backends`) for it. Pure.

A cell is asked for in the same words, of which only its name and its room mean something.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from skerry.model.containers import INSTANCE_PREFIX, ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.workloads import InstanceSpec

_PLAIN = re.compile(r"[a-z0-9-]{1,61}")
_HASH_DIGITS = 40
_MAX_HOST_NAME = 63


def container_name(instance: InstanceId) -> str:
    """`i-` and the id; an id that cannot stand in the name of a container is hashed instead."""
    if _PLAIN.fullmatch(instance):
        return f"{INSTANCE_PREFIX}{instance}"
    # No id begins with a dash, so this is never the name of another one.
    return f"{INSTANCE_PREFIX}-{hashlib.sha256(instance.encode()).hexdigest()[:_HASH_DIGITS]}"


def container_spec(instance: InstanceId, spec: InstanceSpec) -> ContainerSpec:
    """Raises Invalid if no container can be like that."""
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
    )


@dataclass(frozen=True, slots=True)
class SpecTranslation:
    """From instances to containers. What `spec` refuses, by Invalid, no container can be like; no two
    instances may have one `name`."""

    name: Callable[[InstanceId], str]
    spec: Callable[[InstanceId, InstanceSpec], ContainerSpec]


DEFAULT_TRANSLATION = SpecTranslation(container_name, container_spec)


def _host_name(name: str) -> str:
    """The name of the instance, as far as a host may have it."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:_MAX_HOST_NAME].strip("-")
