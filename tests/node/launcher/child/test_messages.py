"""Packets between agent, launcher and inits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from skerry.node.launcher.child import messages

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = messages.pair()
    with one, other:
        yield one, other


def test_a_message_arrives_whole_with_its_descriptors(ends: Ends) -> None:
    reading, writing = os.pipe()
    messages.send(ends[0], messages.encode({"text": "é\udc80\u2028", "list": [1, None]}), [reading, writing])
    os.close(reading)
    os.close(writing)
    message = messages.receive(ends[1])
    assert message is not None
    assert message.body == {"text": "é\udc80\u2028", "list": [1, None]}
    os.write(message.descriptors[1], b"through")
    assert os.read(message.descriptors[0], 10) == b"through"
    assert not any(os.get_inheritable(descriptor) for descriptor in message.descriptors)
    message.close()


def test_messages_are_not_run_together(ends: Ends) -> None:
    for number in range(3):
        messages.send(ends[0], messages.encode({"number": number}))
    received = [messages.receive(ends[1]) for _ in range(3)]
    assert [message.body["number"] for message in received if message] == [0, 1, 2]
    with pytest.raises(BlockingIOError):
        messages.receive(ends[1])


@pytest.mark.root(tries=1)  # names a process that is not itself
def test_the_receiver_is_told_which_process_is_meant(ends: Ends) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    messages.send(ends[1], messages.encode({}), process=child)
    os.waitpid(child, 0)
    message = messages.receive(ends[0])
    assert message is not None
    assert message.process == child, "also when it is gone by then"


def test_the_largest_message_fits_and_a_larger_one_is_refused(ends: Ends) -> None:
    cell = messages.MAX_BYTES - len(messages.encode({"text": ""}))
    messages.send(ends[0], messages.encode({"text": "x" * cell}))
    message = messages.receive(ends[1])
    assert message is not None
    assert len(message.body["text"]) == cell
    with pytest.raises(messages.MessageTooLarge):
        messages.encode({"text": "x" * (cell + 1)})


@pytest.mark.parametrize("packet", [b"{", b"[]", b"\xff", b"x" * (messages.MAX_BYTES + 2)])
def test_what_is_no_message_leaves_no_descriptor_open(ends: Ends, packet: bytes) -> None:
    before = set(os.listdir("/proc/self/fd"))
    messages.send(ends[0], packet, [0, 1])
    with pytest.raises(messages.MalformedMessage):
        messages.receive(ends[1])
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_other_side_is_none(ends: Ends) -> None:
    messages.send(ends[0], messages.encode({"last": True}))
    ends[0].close()
    last = messages.receive(ends[1])
    assert last is not None
    assert last.body == {"last": True}
    assert messages.receive(ends[1]) is None
