"""Tunnels on the wire: how a node is asked for one, and the frames in it, which are the same at both ends.

What goes wrong at one end is told to the other by the error's slug and text, and is raised there as the same
kind of error.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors, ids
from skerry.model.cells import Stream
from skerry.model.ids import InstanceId
from skerry.model.sessions import OpenTunnel
from skerry.model.tunnels import Ask, ExecAsk, GuestAsk, LogsAsk, SessionAsk
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
            message.logs.CopyFrom(_told_logs(ask))
        case ExecAsk() as ask:
            message.exec.CopyFrom(_told_exec(ask))
        case SessionAsk():
            message.session.SetInParent()
        case GuestAsk(instance, LogsAsk() as ask):
            message.guest.CopyFrom(pb.GuestAsk(instance=instance, logs=_told_logs(ask)))
        case GuestAsk(instance, ExecAsk() as ask):
            message.guest.CopyFrom(pb.GuestAsk(instance=instance, exec=_told_exec(ask)))
    return message


def tunnel_of(message: pb.OpenTunnel) -> OpenTunnel:
    ask: Ask
    match message.WhichOneof("ask"):
        case "logs":
            ask = _logs_of(message.logs)
        case "exec":
            ask = _exec_of(message.exec)
        case "session":
            ask = SessionAsk()
        case "guest":
            ask = guest_of(message.guest)
        case _:
            raise errors.Invalid("the server asked for a tunnel of a kind that is not known here")
    return OpenTunnel(message.id, InstanceId(message.instance), ask)


def guest_of(message: pb.GuestAsk) -> GuestAsk:
    instance = InstanceId(ids.check_id(message.instance, "instance"))
    match message.WhichOneof("ask"):
        case "logs":
            return GuestAsk(instance, _logs_of(message.logs))
        case "exec":
            return GuestAsk(instance, _exec_of(message.exec))
        case _:
            raise errors.Invalid("of an instance in a lent cell there are only logs and programs to ask for")


def _told_logs(ask: LogsAsk) -> pb.LogsAsk:
    return pb.LogsAsk(follow=ask.follow, tail=ask.tail, stream=ask.stream or "")


def _told_exec(ask: ExecAsk) -> pb.ExecAsk:
    return pb.ExecAsk(
        arguments=ask.arguments,
        environment=ask.environment,
        user=ask.user,
        folder=ask.folder,
        terminal=ask.terminal,
        takes_input=ask.takes_input,
        rows=ask.rows,
        columns=ask.columns,
    )


def _logs_of(logs: pb.LogsAsk) -> LogsAsk:
    return LogsAsk(
        follow=logs.follow,
        tail=logs.tail if logs.HasField("tail") else None,
        stream=one_of(Stream, logs.stream, "stream") if logs.stream else None,
    )


def _exec_of(exec_: pb.ExecAsk) -> ExecAsk:
    return ExecAsk(
        arguments=tuple(exec_.arguments),
        environment=tuple(exec_.environment),
        user=exec_.user,
        folder=exec_.folder,
        terminal=exec_.terminal,
        takes_input=exec_.takes_input,
        rows=exec_.rows,
        columns=exec_.columns,
    )


def told_data(frame: bytes) -> pb.Frame:
    return pb.Frame(data=frame)


def told_failure(error: errors.SkerryError) -> pb.Frame:
    """What the other end may know of `error`: never its detail."""
    return pb.Frame(failure=pb.Failure(code=error.slug, message=error.message))


def failure_of(message: pb.Failure) -> errors.SkerryError:
    """The error that the other end had; one of a kind that is not known here is its fault."""
    kind = _KIND_OF.get(message.code, errors.Internal)
    return kind(message.message[:_MAX_MESSAGE])
