"""Messages that are answered where they are read: only those, and counted by flow control."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpclib.protocol import Buffer
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import WindowUpdated

from skerry.transport.grpc.inline_replies import InlineReply, encode_data_frame

REQUEST, REPLY = b"\x1a\x00", b"\x3a\x00"
HEADERS = [(":method", "POST"), (":path", "/s/M"), (":scheme", "https"), (":authority", "x")]


class Call:
    """Both ends of a call, without a socket."""

    def __init__(self, *, answer: bytes | None = REPLY, headers: list[tuple[str, str]] = HEADERS) -> None:
        self.client = H2Connection(H2Configuration(client_side=True))
        self.server = H2Connection(H2Configuration(client_side=False))
        self.client.initiate_connection()
        self.server.initiate_connection()
        self.client.send_headers(1, headers)
        self.exchange()
        self.server.send_headers(1, [(":status", "200")])
        self.exchange()
        self.is_writing = True
        self.is_between = True
        self.answered = 0
        self.buffer = Buffer(lambda size: None)
        wire = SimpleNamespace(
            id=1,
            buffer=self.buffer,
            connection=SimpleNamespace(write_ready=SimpleNamespace(is_set=lambda: self.is_writing)),
        )
        self._answer = answer
        self.reply = InlineReply(cast(Any, wire), REQUEST, self._answered, lambda: self.is_between)

    def _answered(self) -> bytes | None:
        self.answered += 1
        return self._answer

    def exchange(self) -> list[Any]:
        """What each end has sent reaches the other; events of the client."""
        events = []
        for _ in range(3):
            self.server.receive_data(self.client.data_to_send())
            events += self.client.receive_data(self.server.data_to_send())
        return events

    def send(self, message: bytes = REQUEST, *, end: bool = False) -> bytes | None:
        """What the client sends is offered to the inline reply."""
        self.client.send_data(1, b"\0" + len(message).to_bytes(4) + message, end_stream=end)
        return self.reply.take(self.client.data_to_send(), self.server)


def test_the_message_is_answered_with_a_frame_that_the_client_understands() -> None:
    call = Call()
    frame = call.send()
    assert frame == encode_data_frame(1, REPLY)
    [event] = call.client.receive_data(frame)
    assert event.data == b"\0\0\0\0\x02" + REPLY
    assert call.answered == 1


def test_an_answer_may_be_empty_and_may_change() -> None:
    call = Call(answer=b"")
    assert call.send() == b""
    call._answer = b"other"
    assert call.send() == encode_data_frame(1, b"other")
    call._answer = None
    assert call.send() is None


def test_both_windows_are_counted_so_that_the_client_can_go_on_for_ever() -> None:
    call = Call()
    updates = 0
    for _ in range(12_000):  # 84,000 bytes, through windows of 65,535
        frame = call.send()
        assert frame is not None
        call.client.receive_data(frame)
        call.client.acknowledge_received_data(7, 1)
        call.server.receive_data(call.client.data_to_send())
        updates += sum(
            isinstance(event, WindowUpdated) for event in call.client.receive_data(call.server.data_to_send())
        )
    assert updates >= 2
    assert call.client.local_flow_control_window(1) > 0
    assert call.server.local_flow_control_window(1) == call.client.remote_flow_control_window(1)
    assert call.server.remote_flow_control_window(1) == call.client.local_flow_control_window(1)


def test_a_client_that_gives_no_room_is_answered_the_usual_way() -> None:
    call = Call()
    answers = 0
    while call.send() is not None:  # the client reads nothing
        answers += 1
    assert answers * 7 > 60_000
    assert call.answered == answers


def test_after_inline_replies_the_usual_way_goes_on() -> None:
    call = Call()
    assert call.send()
    call.client.send_data(1, b"abc")
    [event] = call.server.receive_data(call.client.data_to_send())
    assert event.data == b"abc"
    call.server.send_data(1, b"def")
    assert call.exchange()[0].data == b"def"


def test_another_message_goes_the_usual_way() -> None:
    call = Call()
    assert call.send(b"\x1a\x01") is None
    assert call.send(b"") is None
    assert call.answered == 0


def test_a_message_with_anything_beside_it_goes_the_usual_way() -> None:
    call = Call()
    frame = encode_data_frame(1, REQUEST)
    for data in (frame + frame, frame[:-1], b"\0" + frame, encode_data_frame(3, REQUEST)):
        assert call.reply.take(data, call.server) is None


def test_the_last_message_of_a_client_goes_the_usual_way() -> None:
    assert Call().send(end=True) is None


def test_what_continues_a_frame_or_a_message_is_no_message() -> None:
    call = Call()
    call.server.incoming_buffer._data += b"\0"
    assert call.send() is None
    call = Call()
    call.is_between = False
    assert call.send() is None
    call = Call()
    call.buffer.add(b"\0", 1)
    assert call.send() is None


def test_a_peer_that_does_not_read_and_a_call_that_has_ended_are_not_answered() -> None:
    call = Call()
    call.is_writing = False
    assert call.send() is None
    call = Call()
    call.server.end_stream(1)
    assert call.send() is None


def test_a_call_of_a_stated_length_is_counted_by_the_usual_way() -> None:
    call = Call(headers=[*HEADERS, ("content-length", "7")])
    assert call.send() is None


def test_a_large_message_is_refused() -> None:
    with pytest.raises(ValueError, match="no small message"):
        encode_data_frame(1, bytes(5000))
