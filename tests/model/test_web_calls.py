"""Requests and responses of web functions as they travel, and what of a response is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.response_stream import ResponseStream
from skerry.model import web_calls
from skerry.model.ids import FunctionName
from skerry.model.web_calls import InvalidResponse, WebCallRequest, WebRequestHead, check_response


@given(st.text(), st.lists(st.tuples(st.text(), st.text())), st.binary())
def test_a_request_is_decoded_as_it_was_encoded(
    path: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    head = WebRequestHead("GET", path, headers=tuple(headers))
    assert web_calls.decode_request(web_calls.encode_request(head, body)) == (head, body)


def test_headers_of_a_connection_and_of_the_server_are_removed() -> None:
    head = check_response(
        200,
        [
            ("Content-Type", " text/plain "),
            ("Connection", "X-Mine, close"),
            ("x-mine", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Date", "never"),
            ("X-Request-Id", "forged"),
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
        ],
    )
    assert head.headers == (("content-type", "text/plain"), ("set-cookie", "a=1"), ("set-cookie", "b=2"))


@pytest.mark.parametrize("status", [-1, 0, 100, 101, 199, 600, 10**9])
def test_only_statuses_of_responses_are_accepted(status: int) -> None:
    with pytest.raises(InvalidResponse):
        check_response(status, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("a\n", "x"),
        ("ä", "x"),
        ("a", "b\r\nc: d"),
        ("a", "b\nc"),
        ("a", "\x00"),
        ("a", "\x7f"),
        ("a", "\u20ac"),
        ("a", "x" * 70_000),
        ("content-length", "x"),
        ("content-length", "-1"),
        ("content-length", "1" * 30),
    ],
)
def test_headers_that_would_be_others_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidResponse):
        check_response(200, [(name, value)])


def test_a_response_has_one_length_and_none_without_a_body() -> None:
    length = ("content-length", "5")
    assert check_response(200, [length, length]).content_length == 5
    assert check_response(204, [length]).content_length is None
    with pytest.raises(InvalidResponse):
        check_response(200, [length, ("content-length", "6")])
    with pytest.raises(InvalidResponse):
        check_response(200, [(f"x-{n}", "") for n in range(300)])


@given(st.binary())
def test_no_bytes_of_a_worker_are_more_than_refused(data: bytes) -> None:
    try:
        web_calls.decode_response(data)
    except InvalidResponse:
        pass


def test_a_call_goes_to_another_member_without_its_response() -> None:
    request = WebCallRequest(
        function=FunctionName("f"), params=b"p", max_response_s=3.0, response=ResponseStream()
    )
    sent = request.for_member()
    assert (type(sent).__name__, sent.is_web, sent.params, sent.max_response_s) == (
        "CallRequest",
        True,
        b"p",
        3.0,
    )
