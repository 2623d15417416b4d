"""Translates members and functions of `skerry.model` to and from messages of `skerry.nodes.v1`.

The part of `skerry.transport.links.nodes.messages` for members of the continuum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from skerry.kit.field_copy import copy_fields
from skerry.model import errors
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import FunctionUpdate, MemberList
from skerry.transport.enum_values import decode_enum, decode_image_access
from skerry.transport.links.nodes import secret_messages
from skerry.transport.links.nodes.message_parts import split_into_parts
from skerry.transport.proto import nodes_pb2 as pb


def encode_member(member: ContinuumMember) -> pb.Member:
    return copy_fields(pb.Member, member, memory_mb=member.memory, server=member.is_server)


def decode_member(message: pb.Member) -> ContinuumMember:
    return copy_fields(ContinuumMember, message, memory=message.memory_mb, is_server=message.server)


def encode_members(members: MemberList) -> Iterator[pb.Members]:
    for part, is_more in split_into_parts(members.members, encode_member):
        yield pb.Members(more=is_more, members=part)


def decode_members(parts: Sequence[pb.Members]) -> MemberList:
    return MemberList(tuple(decode_member(member) for part in parts for member in part.members))


def encode_functions(update: FunctionUpdate) -> Iterator[pb.Functions]:
    removed = update.removed
    for part, is_more in split_into_parts(update.functions, encode_function, beside=sum(map(len, removed))):
        yield pb.Functions(whole=update.is_full, more=is_more, functions=part, gone=removed)
        removed = ()


def decode_functions(parts: Sequence[pb.Functions]) -> FunctionUpdate:
    last = parts[-1]
    if any(part.whole != last.whole for part in parts):
        raise errors.Invalid("the server sent parts of different sets of functions as one", field="whole")
    return FunctionUpdate(
        is_full=last.whole,
        functions=tuple(decode_function(function) for part in parts for function in part.functions),
        removed=tuple(FunctionName(name) for part in parts for name in part.gone),
    )


def encode_function(function: Function) -> pb.Function:
    return copy_fields(
        pb.Function,
        function,
        memory_mb=function.memory,
        cpu_milli=function.cpu or 0,
        code=function.code or "",
        timeout_s=function.timeout_s or 0.0,
        idempotent=function.is_idempotent,
        secrets=secret_messages.encode_uses(function.secrets),
        web=function.is_web,
        no_template=not function.uses_template,
    )


def decode_function(message: pb.Function) -> Function:
    for field in ("created_at", "updated_at"):
        if not math.isfinite(getattr(message, field)):
            raise errors.Invalid(f"{field} must be a number of seconds", field=field)
    return copy_fields(
        Function,
        message,
        memory=message.memory_mb,
        cpu=message.cpu_milli or None,
        code=message.code or None,
        environment=tuple(message.environment),
        network=decode_enum(NetworkMode, message.network, "network"),
        timeout_s=message.timeout_s or None,
        is_idempotent=message.idempotent,
        image_access=decode_image_access(message.image_access),
        secrets=secret_messages.decode_uses(message.secrets),
        is_web=message.web,
        uses_template=not message.no_template,
    )
