"""Tunnels on the wire: how a node is asked for one, and the frames in it, which are the same at both ends.

What goes wrong at one end is told to the other by the error's slug and text, and is raised there as the same
kind of error.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors
from skerry.model.cells import Stream
from skerry.model.ids import InstanceId
from skerry.model.sessions import OpenTunnel
from skerry.model.tunnels import Ask, ExecAsk, LogsAsk
from skerry.wire.nodes.words import one_of
from skerry.wire.proto import nodes_pb2 as pb

_MAX_MESSAGE = 1000


def _kinds(root: type[errors.SkerryError]) -> dict[str, type[errors.SkerryError]]:
    found: dict[str, type[errors.SkerryError]] = {}
    for kind in root.__subclasses__():
        found |= {kind.slug: kind, **_kinds(kind)}
    return found


_KIND_OF: Final = _kinds(errors.SkerryError)
END: Final = pb.Frame(end=pb.End())


def told_tunnel(tunnel: OpenTunnel) -> pb.OpenTunnel:
    message = pb.OpenTunnel(id=tunnel.id, instance=tunnel.instance)
    match tunnel.ask:
        case LogsAsk() as ask:
            message.logs.CopyFrom(pb.LogsAsk(follow=ask.follow, tail=ask.tail, stream=ask.stream or ""))
        case ExecAsk() as ask:
            message.exec.CopyFrom(
                pb.ExecAsk(
                    arguments=ask.arguments,
                    environment=ask.environment,
                    user=ask.user,
                    folder=ask.folder,
                    terminal=ask.terminal,
                    takes_input=ask.takes_input,
                    rows=ask.rows,
                    columns=ask.columns,
                )
            )
    return message


def tunnel_of(message: pb.OpenTunnel) -> OpenTunnel:
    ask: Ask
    match message.WhichOneof("ask"):
        case "logs":
            logs = message.logs
            ask = LogsAsk(
                follow=logs.follow,
                tail=logs.tail if logs.HasField("tail") else None,
                stream=one_of(Stream, logs.stream, "stream") if logs.stream else None,
            )
        case "exec":
            exec_ = message.exec
            ask = ExecAsk(
                arguments=tuple(exec_.arguments),
                environment=tuple(exec_.environment),
                user=exec_.user,
                folder=exec_.folder,
                terminal=exec_.terminal,
                takes_input=exec_.takes_input,
                rows=exec_.rows,
                columns=exec_.columns,
            )
        case _:
            raise errors.Invalid("the server asked for a tunnel of a kind that is not known here")
    return OpenTunnel(message.id, InstanceId(message.instance), ask)


def told_data(frame: bytes) -> pb.Frame:
    return pb.Frame(data=frame)


def told_failure(error: errors.SkerryError) -> pb.Frame:
    """What the other end may know of `error`: never its detail."""
    return pb.Frame(failure=pb.Failure(code=error.slug, message=error.message))


def failure_of(message: pb.Failure) -> errors.SkerryError:
    """The error that the other end had; one of a kind that is not known here is its fault."""
    kind = _KIND_OF.get(message.code, errors.Internal)
    return kind(message.message[:_MAX_MESSAGE])
