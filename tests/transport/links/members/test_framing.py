"""Messages as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.calls import CallReport, CallResult
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members import messages
from skerry.transport.links.members.framing import (
    FrameDecoder,
    MalformedFrame,
    decode_reply,
    decode_request,
    encode_frame,
    max_frame_bytes,
)
from tests.transport.links.members.conftest import LOAD, call

ASKED = [
    messages.LinkHello("n1", 1000),
    messages.PingMessage(1, LOAD),
    messages.PingMessage(2),
    messages.InvokeFunction(3, call(b'{"a": 1}', hops_left=1, deadline_s=2.5), at_once=True),
    messages.StartCall(3),
    messages.CancelCall(3),
    messages.FetchCode(4, "sha256:" + "0" * 64),
    messages.PollCall(5, "f-1"),
]
ANSWERED = [
    messages.LinkWelcome("n2", 1000),
    messages.PongMessage(1, LOAD),
    messages.CallReady(3),
    messages.CallDone(3, CallReport(CallResult(0.1, b"{}"), 0.2)),
    messages.LinkRefusal(3, "no-room", "none left", may_have_run=True),
    messages.CodeChunk(4, b"x" * 1000, is_last=True),
    messages.PollReply(5, None),
    messages.KeepAlive(),
]


@given(st.lists(st.integers(0, 5000)), st.sampled_from([(ASKED, decode_request), (ANSWERED, decode_reply)]))
def test_messages_come_out_as_they_went_in_wherever_the_stream_is_cut(cuts, which):
    sent, decode = which
    stream = b"".join(map(encode_frame, sent))
    frames, got = FrameDecoder(decode, 10_000), []
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    for begin, end in zip([0, *ends], ends, strict=False):
        frames.feed(stream[begin:end], got.append)
    assert got == sent
    assert not frames.is_in_message


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_broken(noise):
    frame = len(noise).to_bytes(4, "big") + noise
    for decode in (decode_request, decode_reply):
        got = []
        try:
            FrameDecoder(decode, 1000).feed(frame, got.append)
        except MalformedFrame:
            assert got == []
        else:
            assert len(got) == 1


@pytest.mark.parametrize("sent", ASKED, ids=lambda message: type(message).__name__)
@given(st.data())
def test_a_message_with_a_flaw_is_a_message_or_broken(sent, data):
    frame = encode_frame(sent)
    at = data.draw(st.integers(4, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    got = []
    try:
        FrameDecoder(decode_request, 10_000).feed(bytes(frame), got.append)
    except MalformedFrame:
        assert got == []
    else:
        assert len(got) == 1


def test_a_message_that_is_too_long_is_refused_by_its_length_alone_and_after_those_before_it():
    frames, got = FrameDecoder(decode_request, 100), []
    with pytest.raises(MalformedFrame, match="101 bytes, and 100 is the most"):
        frames.feed(encode_frame(messages.StartCall(1)) + (101).to_bytes(4, "big"), got.append)
    assert got == [messages.StartCall(1)]
    assert not frames.is_in_message


def test_what_one_side_says_is_no_message_of_the_other():
    with pytest.raises(MalformedFrame, match="no message"):
        FrameDecoder(decode_request, 1000).feed(encode_frame(messages.CallReady(1)), lambda _: None)


def test_the_longest_message_holds_the_largest_parameters_and_the_largest_result():
    settings = FunctionSettings(max_params_bytes=5000, max_result_bytes=3000, max_output_bytes=1024)
    asked = encode_frame(messages.InvokeFunction(2**62, call(b"x" * 5000), at_once=True))
    answer = CallResult(0.1, b"x" * 3000, "y" * 1024, error="z" * 64 * 1024)
    done = encode_frame(messages.CallDone(2**62, CallReport(answer, 0.2)))
    assert max(len(asked), len(done)) < max_frame_bytes(settings)
