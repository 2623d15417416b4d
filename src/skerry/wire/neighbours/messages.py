"""What goes over a link, message by message.

    who dialled                     who was dialled
    Hello                           Welcome              first, once
    Ping                            Pong
    Invoke, Go, Cancel              Ready, Done, Refused
    Fetch                           Piece ..., Refused
    Poll                            Told, Refused
                                    Beat                 a long message is still coming in

Whoever dialled numbers what it asks, and answers carry the number. How messages become bytes is
`skerry.wire.neighbours.frames`; what they mean to either side is `asking`'s and `answering`'s. Fields are
only ever added at the end, with a default: a member of an older version passes over what it does not know.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skerry.functions.continuum.neighbours import FarCall, Standing
from skerry.functions.results import Polled
from skerry.model.calls import Report
from skerry.model.ids import Digest, NodeId

VERSION: Final = 1

Number = Annotated[int, Meta(ge=1, le=2**62)]
_Id = Annotated[str, Meta(max_length=512)]


class Message(Struct, frozen=True, array_like=True, gc=False):
    """Any of them."""


class Hello(Message, frozen=True, tag=1):
    """Who dials, and the longest message that it takes. A node's certificate must say the same."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class Welcome(Message, frozen=True, tag=2):
    """The same of whoever was dialled, which has let the other in."""

    node: Annotated[NodeId, Meta(min_length=1, max_length=128)]
    max_bytes: Annotated[int, Meta(ge=1)]
    version: int = VERSION


class Ping(Message, frozen=True, tag=3):
    """How the sender is; without that, only a sign of life is wanted."""

    number: Number
    standing: Standing | None = None


class Pong(Message, frozen=True, tag=4):
    number: Number
    standing: Standing | None = None


class Invoke(Message, frozen=True, tag=5):
    """Run this; with `at_once` without asking back, if there is a warm worker for it."""

    number: Number
    call: FarCall
    at_once: bool


class Ready(Message, frozen=True, tag=6):
    """There is a worker for it, which hears of it after a `Go`."""

    number: Number


class Go(Message, frozen=True, tag=7):
    number: Number


class Done(Message, frozen=True, tag=8):
    number: Number
    report: Report


class Refused(Message, frozen=True, tag=9):
    """It was not done and will not be, unless it `may_have_run`. `kind` is the slug of an error."""

    number: Number
    kind: str
    message: str
    may_have_run: bool = False


class Cancel(Message, frozen=True, tag=10):
    """Nobody waits for this any more."""

    number: Number


class Fetch(Message, frozen=True, tag=11):
    number: Number
    digest: Annotated[Digest, Meta(max_length=128)]


class Piece(Message, frozen=True, tag=12):
    number: Number
    data: bytes
    is_last: bool


class Poll(Message, frozen=True, tag=13):
    number: Number
    id: _Id


class Told(Message, frozen=True, tag=14):
    number: Number
    polled: Polled | None


class Beat(Message, frozen=True, tag=15):
    """Nothing but a sign of life."""


Asked: TypeAlias = Hello | Ping | Invoke | Go | Cancel | Fetch | Poll
Answered: TypeAlias = Welcome | Pong | Ready | Done | Refused | Piece | Told | Beat
