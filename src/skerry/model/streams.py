"""Tunnels: requests to an instance or a volume on a remote node, and their frames.

A tunnel carries frames of bytes in both directions, whole and in order. The first byte of a frame is its
channel, the rest is data. A tunnel ends regularly by `TunnelChannel.EXIT` (a program) or by its end (logs
without follow); a failure at the node comes as an error of `skerry.model.errors` instead.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.model.ids import InstanceId
from skerry.model.volume_tasks import VolumeTask

MAX_FRAME = 64 * 1024


class TunnelChannel(enum.IntEnum):
    """What a frame holds."""

    OUTPUT = 1  # from the node
    ERRORS = 2  # from the node: what was written to the error output
    EXIT = 3  # from the node, the last: the exit code in decimal digits
    INPUT = 4  # to the node
    END_OF_INPUT = 5  # to the node; no data
    SIZE = 6  # to the node: rows and columns of the terminal in decimal digits, divided by a space
    SIGNAL = 7  # to the node: its number in decimal digits
    LOST = 8  # from the node: a stream and how many pieces of it were missed, such as `stdout 12`


class TunnelFrame(msgspec.Struct, frozen=True):
    """Some bytes of one channel."""

    channel: TunnelChannel
    data: bytes = b""

    def pack(self) -> bytes:
        return bytes([self.channel]) + self.data

    @classmethod
    def unpack(cls, packed: bytes) -> TunnelFrame:
        """The frame in `packed`; `Invalid` if there is none."""
        try:
            return cls(TunnelChannel(packed[0]), packed[1:])
        except (IndexError, ValueError):
            raise errors.Invalid("a frame of a tunnel must begin with the number of a channel") from None


class LogStreamRequest(msgspec.Struct, frozen=True, tag="logs"):
    """What an instance has written, and with `follow` what it writes from now on."""

    follow: bool = False
    tail: int | None = None  # only the last so many lines
    stream: OutputChannel | None = None  # None: both
    previous: bool = False  # of the run before the last one, which does not follow


class ExecStreamRequest(msgspec.Struct, frozen=True, tag="exec"):
    """A program to run in an instance, as `skerry container exec` has it."""

    arguments: tuple[str, ...]
    environment: tuple[str, ...] = ()  # KEY=VALUE, over the container's
    user: str = ""
    folder: str = ""
    terminal: bool = False
    takes_input: bool = False
    rows: int = 0
    columns: int = 0


class GuestSessionRequest(msgspec.Struct, frozen=True, tag="session"):
    """To a leased cell: a node session, with the buyer as control plane."""


class GuestStreamRequest(msgspec.Struct, frozen=True, tag="guest"):
    """To a leased cell: a request to one of the buyer's instances in it."""

    instance: InstanceId
    stream: LogStreamRequest | ExecStreamRequest


class CellListRequest(msgspec.Struct, frozen=True, tag="cells"):
    """All cells of a node: frames of lines, each of which is a `skerry.model.cell_reports.CellReport`."""


class MetricsRequest(msgspec.Struct, frozen=True, tag="metrics"):
    """To a node with `NodeFeature.METRICS`: its metrics for Prometheus, as one text in frames of
    `TunnelChannel.OUTPUT`. The instance of the tunnel is that of none."""

    is_open_metrics: bool = False  # in that format, instead of the older text format


StreamRequest = (
    LogStreamRequest
    | ExecStreamRequest
    | GuestSessionRequest
    | GuestStreamRequest
    | VolumeTask
    | CellListRequest
    | MetricsRequest
)


class TunnelStream(Protocol):
    """One end of a tunnel: frames of bytes both ways, whole and in order.

    Whatever is not received holds up the other side's sending, and the other way round.
    """

    async def receive(self) -> bytes | None:
        """The next frame; None once the other side has finished. Raises `Unavailable` if it is lost."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send one frame of 1 to `MAX_FRAME` bytes."""
        ...

    async def end(self) -> None:
        """Send no more; the other side may go on."""
        ...

    async def fail(self, error: errors.SkerryError) -> None:
        """Tell the other side what went wrong, and send no more."""
        ...
