"""Container options between `skerry.model.container_options` and the fields of `Spec` that hold them.

Part of `skerry.transport.links.nodes.messages`, and as total: what cannot be is an `Invalid`.
"""

from __future__ import annotations

from typing import Any

from skerry.model.container_options import NO_OPTIONS, ContainerOptions, HostAlias, Ulimit
from skerry.model.resources import Megabytes
from skerry.transport.proto import nodes_pb2 as pb


def encode_options(options: ContainerOptions) -> dict[str, Any]:
    """The fields of a `Spec`."""
    return {
        "user": options.user,
        "entrypoint": options.entrypoint,
        "stop_signal": options.stop_signal,
        "stop_grace_s": options.stop_grace_s,
        "read_only": options.read_only,
        "shm": options.shm,
        "ulimits": [str(limit) for limit in options.ulimits],
        "init": options.init,
        "host_name": options.host_name,
        "extra_hosts": [str(alias) for alias in options.extra_hosts],
        "dns": options.dns,
    }


def decode_options(spec: pb.Spec) -> ContainerOptions:
    options = ContainerOptions(
        user=spec.user,
        entrypoint=tuple(spec.entrypoint),
        stop_signal=spec.stop_signal,
        stop_grace_s=spec.stop_grace_s if spec.HasField("stop_grace_s") else None,
        read_only=spec.read_only,
        shm=Megabytes(spec.shm),
        ulimits=tuple(Ulimit.parse(text) for text in spec.ulimits),
        init=spec.init,
        host_name=spec.host_name,
        extra_hosts=tuple(HostAlias.parse(text) for text in spec.extra_hosts),
        dns=tuple(spec.dns),
    )
    return NO_OPTIONS if options == NO_OPTIONS else options
