"""What goes over a link, message by message.

    who dialled                     who was dialled
    LinkHello                       LinkWelcome             first, once
    PingMessage                     PongMessage
    InvokeFunction, StartCall,      CallReady, CallDone,
    CancelCall                      LinkRefusal
    FetchCode                       CodeChunk ..., LinkRefusal
    PollCall                        PollReply, LinkRefusal
    StoreCode, StoreResult          StoreReply, LinkRefusal since version 2, as what follows
    ListCode                        CodeListReply
                                    KeepAlive               a long message is still coming in

Whoever dialled numbers what it asks, and answers carry the number. How messages become bytes is
`skerry.transport.links.members.framing`; what they mean to either side is `client_link`'s and
`server_link`'s. Fields are only ever added at the end, with a default: a member of an older version passes
over what it does not know.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import CodeList, ForwardedCall, MemberLoad, ResultCopy
from skerry.model.calls import CallReport
from skerry.model.ids import Digest, NodeId

VERSION: Final = 2
COPIES_SINCE: Final = 2  # the version of the first members that keep copies for others

Number = Annotated[int, Meta(ge=1, le=2**62)]
_Id = Annotated[str, Meta(max_length=512)]


class LinkMessage(Struct, frozen=True, array_like=True, gc=False):
    """Any of them."""


class LinkHello(LinkMessage, frozen=True, tag=1):
    """Who dials, and the longest message that it takes. A node's certificate must say the same."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class LinkWelcome(LinkMessage, frozen=True, tag=2):
    """The same of whoever was dialled, which has let the other in."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class PingMessage(LinkMessage, frozen=True, tag=3):
    """How the sender is; without that, only a sign of life is wanted."""

    number: Number
    standing: MemberLoad | None = None


class PongMessage(LinkMessage, frozen=True, tag=4):
    number: Number
    standing: MemberLoad | None = None


class InvokeFunction(LinkMessage, frozen=True, tag=5):
    """Run this; with `at_once` without asking back, if there is a warm worker for it."""

    number: Number
    call: ForwardedCall
    at_once: bool


class CallReady(LinkMessage, frozen=True, tag=6):
    """There is a worker for it, which hears of it after a `StartCall`."""

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
    """Nothing but a sign of life."""


class StoreCode(LinkMessage, frozen=True, tag=16):
    """Keep this code, which `source` has."""

    number: Number
    digest: Annotated[Digest, Meta(max_length=128)]
    source: Annotated[NodeId, Meta(max_length=128)]


class StoreReply(LinkMessage, frozen=True, tag=17):
    """What was to be kept is durable."""

    number: Number


class ListCode(LinkMessage, frozen=True, tag=18):
    """What code is there; `known` is the stamp of the last answer."""

    number: Number
    known: Annotated[str, Meta(max_length=64)] = ""


class CodeListReply(LinkMessage, frozen=True, tag=19):
    number: Number
    listed: CodeList


class StoreResult(LinkMessage, frozen=True, tag=20):
    """Keep what came of an async call."""

    number: Number
    copy: ResultCopy


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
)
