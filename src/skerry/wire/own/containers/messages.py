"""Translates types of `skerry.model` to and from messages of `skerry.containers.v1`.

Pure and total: a message gives a value, or `Invalid` with the contract's name of the field. Exits and usage
are messages of cells, see `skerry.wire.own.cells.messages`.
"""

from __future__ import annotations

from typing import Final

from skerry.kit.field_copy import copy_fields
from skerry.model import errors, ports
from skerry.model.containers import ContainerSpec, ContainerState, ContainerStats, ContainerView, NetworkMode
from skerry.model.images import Image, PullProgress
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.workloads import UserNamespaceMode
from skerry.transport.proto import containers_pb2 as pb
from skerry.wire.field_names import contract_fields
from skerry.wire.own.cells.messages import encode_exit, encode_usage

_FIELDS: Final = {"cpu": "cpu_milli", "memory": "memory_mb", "disk": "disk_gb"}
_NETWORK: Final = {pb.NETWORK_BRIDGE: NetworkMode.BRIDGE, pb.NETWORK_NONE: NetworkMode.NONE}
_NETWORK_MESSAGES: Final = {mode: message for message, mode in _NETWORK.items()}
_USERNS: Final = {
    pb.USER_NAMESPACE_PRIVATE: UserNamespaceMode.PRIVATE,
    pb.USER_NAMESPACE_HOST: UserNamespaceMode.HOST,
}
_USERNS_MESSAGES: Final = {mode: message for message, mode in _USERNS.items()}
_STATE_MESSAGES: Final = {
    ContainerState.CREATED: pb.STATE_CREATED,
    ContainerState.RUNNING: pb.STATE_RUNNING,
    ContainerState.EXITED: pb.STATE_EXITED,
    ContainerState.REMOVING: pb.STATE_REMOVING,
}


def decode_spec(message: pb.ContainerSpec) -> ContainerSpec:
    """The spec of a container."""
    if message.network not in _NETWORK:
        raise errors.Invalid(f"network {message.network} is neither bridge nor none", field="network")
    if message.userns not in _USERNS:
        raise errors.Invalid(f"userns {message.userns} is neither private nor host", field="userns")
    with contract_fields(_FIELDS):
        return ContainerSpec(
            name=message.name,
            image=message.image,
            entrypoint=tuple(message.entrypoint),
            arguments=tuple(message.arguments),
            environment=tuple(message.environment),
            user=message.user,
            folder=message.folder,
            host_name=message.host_name,
            stop_signal=message.stop_signal,
            stop_grace_s=message.stop_grace_s if message.HasField("stop_grace_s") else None,
            resources=Resources(
                cpu=Millicores(message.cpu_milli),
                memory=Megabytes(message.memory_mb),
                disk=Gigabytes(message.disk_gb),
            ),
            pids=message.pids,
            network=_NETWORK[message.network],
            ports=tuple(map(ports.parse, message.ports)),
            read_only=message.read_only,
            userns=_USERNS[message.userns],
        )


def encode_spec(spec: ContainerSpec) -> pb.ContainerSpec:
    return copy_fields(
        pb.ContainerSpec,
        spec,
        cpu_milli=spec.resources.cpu,
        memory_mb=spec.resources.memory,
        disk_gb=spec.resources.disk,
        network=_NETWORK_MESSAGES[spec.network],
        ports=map(str, spec.ports),
        userns=_USERNS_MESSAGES[spec.userns],
    )


def encode_container(view: ContainerView) -> pb.Container:
    return copy_fields(
        pb.Container,
        view,
        spec=encode_spec(view.spec),
        state=_STATE_MESSAGES[view.state],
        exit=None if view.exit is None else encode_exit(view.exit),
    )


def encode_stats(stats: ContainerStats) -> pb.StatsReply:
    return copy_fields(pb.StatsReply, stats, usage=encode_usage(stats.usage))


def encode_image(image: Image) -> pb.Image:
    return copy_fields(
        pb.Image,
        image,
        platform=str(image.platform),
        config=copy_fields(pb.ImageConfig, image.config),
        manifest=image.manifest or "",
    )


def encode_progress(progress: PullProgress) -> pb.Progress:
    layers = [copy_fields(pb.LayerProgress, layer) for layer in progress.layers]
    return copy_fields(pb.Progress, progress, layers=layers)
