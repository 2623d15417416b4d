"""Messages of tunnels: the request to a node, and the frames, which are the same at both ends.

An error at one end is sent to the other as its slug and message, and raised there as the same kind of error.
"""

from __future__ import annotations

from typing import Final

from skerry.kit.field_copy import copy_fields
from skerry.model import errors, ids
from skerry.model.cells import OutputChannel
from skerry.model.ids import InstanceId
from skerry.model.node_messages import TunnelRequest
from skerry.model.streams import (
    CellListRequest,
    ExecStreamRequest,
    GuestSessionRequest,
    GuestStreamRequest,
    LogStreamRequest,
    MetricsRequest,
    StreamRequest,
)
from skerry.model.volume_tasks import VolumeTask
from skerry.transport.enum_values import decode_enum
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import volume_task_codec

_MAX_MESSAGE = 1000


def _kinds(root: type[errors.SkerryError]) -> dict[str, type[errors.SkerryError]]:
    found: dict[str, type[errors.SkerryError]] = {}
    for kind in root.__subclasses__():
        found |= {kind.slug: kind, **_kinds(kind)}
    return found


_KIND_OF: Final = _kinds(errors.SkerryError)
END: Final = pb.Frame(end=pb.End())


def encode_tunnel(tunnel: TunnelRequest) -> pb.OpenTunnel:
    message = pb.OpenTunnel(id=tunnel.id, instance=tunnel.instance)
    match tunnel.stream:
        case LogStreamRequest() as request:
            message.logs.CopyFrom(_encode_logs(request))
        case ExecStreamRequest() as request:
            message.exec.CopyFrom(_encode_exec(request))
        case GuestSessionRequest():
            message.session.SetInParent()
        case GuestStreamRequest(instance, LogStreamRequest() as request):
            message.guest.CopyFrom(pb.GuestAsk(instance=instance, logs=_encode_logs(request)))
        case GuestStreamRequest(instance, ExecStreamRequest() as request):
            message.guest.CopyFrom(pb.GuestAsk(instance=instance, exec=_encode_exec(request)))
        case VolumeTask() as task:
            message.volume.CopyFrom(volume_task_codec.encode_task(task))
        case CellListRequest():
            message.cells.SetInParent()
        case MetricsRequest(is_open_metrics):
            message.metrics.CopyFrom(pb.MetricsAsk(is_open_metrics=is_open_metrics))
    return message


def decode_tunnel(message: pb.OpenTunnel) -> TunnelRequest:
    request: StreamRequest
    match message.WhichOneof("ask"):
        case "logs":
            request = _logs_of(message.logs)
        case "exec":
            request = _exec_of(message.exec)
        case "session":
            request = GuestSessionRequest()
        case "guest":
            request = decode_guest(message.guest)
        case "volume":
            request = volume_task_codec.decode_task(message.volume)
        case "cells":
            request = CellListRequest()
        case "metrics":
            request = MetricsRequest(message.metrics.is_open_metrics)
        case _:
            raise errors.Invalid("the server requested a tunnel of an unknown kind")
    return TunnelRequest(message.id, InstanceId(message.instance), request)


def decode_guest(message: pb.GuestAsk) -> GuestStreamRequest:
    instance = InstanceId(ids.check_id(message.instance, "instance"))
    match message.WhichOneof("ask"):
        case "logs":
            return GuestStreamRequest(instance, _logs_of(message.logs))
        case "exec":
            return GuestStreamRequest(instance, _exec_of(message.exec))
        case _:
            raise errors.Invalid("of an instance in a leased cell only logs and exec are available")


def _encode_logs(request: LogStreamRequest) -> pb.LogsAsk:
    return pb.LogsAsk(
        follow=request.follow, tail=request.tail, stream=request.stream or "", previous=request.previous
    )


def _encode_exec(request: ExecStreamRequest) -> pb.ExecAsk:
    return copy_fields(pb.ExecAsk, request)


def _logs_of(logs: pb.LogsAsk) -> LogStreamRequest:
    return LogStreamRequest(
        follow=logs.follow,
        tail=logs.tail if logs.HasField("tail") else None,
        stream=decode_enum(OutputChannel, logs.stream, "stream") if logs.stream else None,
        previous=logs.previous,
    )


def _exec_of(exec_: pb.ExecAsk) -> ExecStreamRequest:
    return copy_fields(
        ExecStreamRequest,
        exec_,
        arguments=tuple(exec_.arguments),
        environment=tuple(exec_.environment),
    )


def encode_data(frame: bytes) -> pb.Frame:
    return pb.Frame(data=frame)


def encode_failure(error: errors.SkerryError) -> pb.Frame:
    """The message for the other end about `error`, without its detail."""
    return pb.Frame(failure=pb.Failure(code=error.slug, message=error.message))


def decode_failure(message: pb.Failure) -> errors.SkerryError:
    """The error that the other end had; one of a kind that is not known here is its fault."""
    kind = _KIND_OF.get(message.code, errors.Internal)
    return kind(message.message[:_MAX_MESSAGE])
