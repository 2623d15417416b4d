"""The messages of a link.

    who dialled                     who was dialled
    LinkHello                       LinkWelcome             first, once
    PingMessage                     PongMessage
    InvokeFunction, StartCall,      CallReady, CallDone,
    CancelCall                      LinkRefusal
    FetchCode                       CodeChunk ..., LinkRefusal
    PollCall                        PollReply, LinkRefusal
    StoreCode, StoreResult          StoreReply, LinkRefusal since version 2, as what follows
    ListCode                        CodeListReply
    ReadCalls                       CallsReply              since version 4
    GrantBytes, AbandonResponse     ResponseHead, ResponsePart  since version 3: of calls of web functions,
                                                                before their CallDone
                                    KeepAlive               a long message is still coming in

The end that dialled numbers its requests, and answers carry the number.
`skerry.transport.links.members.framing` encodes messages; `client_link` and `server_link` handle them. Fields
are only added at the end, with a default: a member of an older version ignores those that it does not know.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    CodeList,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
)
from skerry.model.calls import CallReport
from skerry.model.ids import Digest, NodeId
from skerry.model.web_calls import WebResponseHead

VERSION: Final = 4
CALLS_SINCE: Final = 4  # the version of the first members that tell what calls they counted
WEB_SINCE: Final = 3  # the version of the first members that run web functions for others
COPIES_SINCE: Final = 2  # the version of the first members that keep copies for others

Number = Annotated[int, Meta(ge=1, le=2**62)]
_Id = Annotated[str, Meta(max_length=512)]


class LinkMessage(Struct, frozen=True, array_like=True, gc=False):
    """Any of them."""


class LinkHello(LinkMessage, frozen=True, tag=1):
    """The node that dials, and the longest message that it accepts. A node's certificate must name the same
    node."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class LinkWelcome(LinkMessage, frozen=True, tag=2):
    """The same of the end that was dialled, which has accepted the other."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class PingMessage(LinkMessage, frozen=True, tag=3):
    """The sender's state; without it only an answer is needed."""

    number: Number
    load: MemberLoad | None = None


class PongMessage(LinkMessage, frozen=True, tag=4):
    number: Number
    load: MemberLoad | None = None


class InvokeFunction(LinkMessage, frozen=True, tag=5):
    """Run this; with `at_once` without a `CallReady` first, if there is a warm worker for it."""

    number: Number
    call: ForwardedCall
    at_once: bool


class CallReady(LinkMessage, frozen=True, tag=6):
    """There is a worker for it, which gets the call after a `StartCall`."""

    number: Number


class StartCall(LinkMessage, frozen=True, tag=7):
    number: Number


class CallDone(LinkMessage, frozen=True, tag=8):
    number: Number
    report: CallReport


class LinkRefusal(LinkMessage, frozen=True, tag=9):
    """It was not done and will not be, unless it `may_have_run`. `kind` is the slug of an error."""

    number: Number
    kind: str
    message: str
    may_have_run: bool = False


class CancelCall(LinkMessage, frozen=True, tag=10):
    """Nobody waits for this any more."""

    number: Number


class FetchCode(LinkMessage, frozen=True, tag=11):
    number: Number
    digest: Annotated[Digest, Meta(max_length=128)]


class CodeChunk(LinkMessage, frozen=True, tag=12):
    number: Number
    data: bytes
    is_last: bool


class PollCall(LinkMessage, frozen=True, tag=13):
    number: Number
    id: _Id


class PollReply(LinkMessage, frozen=True, tag=14):
    number: Number
    polled: AsyncCallResult | None


class KeepAlive(LinkMessage, frozen=True, tag=15):
    """Shows that the sender is alive."""


class StoreCode(LinkMessage, frozen=True, tag=16):
    """Keep this code, which `source` has."""

    number: Number
    digest: Annotated[Digest, Meta(max_length=128)]
    source: Annotated[NodeId, Meta(max_length=128)]


class StoreReply(LinkMessage, frozen=True, tag=17):
    """What was to be kept is durable."""

    number: Number


class ListCode(LinkMessage, frozen=True, tag=18):
    """Request a list of stored code; `known` is the stamp of the last answer."""

    number: Number
    known: Annotated[str, Meta(max_length=64)] = ""


class CodeListReply(LinkMessage, frozen=True, tag=19):
    number: Number
    listed: CodeList


class StoreResult(LinkMessage, frozen=True, tag=20):
    """Store the result of an async call."""

    number: Number
    copy: ResultCopy


class GrantBytes(LinkMessage, frozen=True, tag=21):
    """So many more bytes of a response may be sent."""

    number: Number
    count: Annotated[int, Meta(ge=0, le=2**31)]


class AbandonResponse(LinkMessage, frozen=True, tag=22):
    """Nobody reads the response any more; the call may end in order."""

    number: Number


class ResponseHead(LinkMessage, frozen=True, tag=23):
    """The response of a call of a web function begins."""

    number: Number
    head: WebResponseHead


class ResponsePart(LinkMessage, frozen=True, tag=24):
    """A part of its body: at most so much ahead as was granted, and a window more."""

    number: Number
    data: bytes


class ReadCalls(LinkMessage, frozen=True, tag=25):
    """Request the counters of calls."""

    number: Number


class CallsReply(LinkMessage, frozen=True, tag=26):
    number: Number
    counted: tuple[FunctionCalls, ...]


RequestMessage: TypeAlias = (
    LinkHello
    | PingMessage
    | InvokeFunction
    | StartCall
    | CancelCall
    | FetchCode
    | PollCall
    | StoreCode
    | ListCode
    | StoreResult
    | GrantBytes
    | AbandonResponse
    | ReadCalls
)
ReplyMessage: TypeAlias = (
    LinkWelcome
    | PongMessage
    | CallReady
    | CallDone
    | LinkRefusal
    | CodeChunk
    | PollReply
    | KeepAlive
    | StoreReply
    | CodeListReply
    | ResponseHead
    | ResponsePart
    | CallsReply
)
