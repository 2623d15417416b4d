"""Targets as settings name them."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.transport.log_forwarding.targets import (
    FileTarget,
    LokiTarget,
    SyslogTarget,
    SyslogTransport,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("file:/var/log/a.log", FileTarget("", "/var/log/a.log")),
        ("file:/a?size=2M&keep=0", FileTarget("", "/a", 2 << 20, 0)),
        ("syslog://logs", SyslogTarget("", SyslogTransport.UDP, "logs", 514)),
        ("syslog+udp://logs:5514", SyslogTarget("", SyslogTransport.UDP, "logs", 5514)),
        ("syslog+tcp://[::1]:601", SyslogTarget("", SyslogTransport.TCP, "::1", 601)),
        ("syslog+tls://logs?ca=/ca.pem", SyslogTarget("", SyslogTransport.TLS, "logs", 6514, ca="/ca.pem")),
        ("syslog:/dev/log", SyslogTarget("", SyslogTransport.UNIX, path="/dev/log")),
        (
            "loki+https://h:3100/loki/api/v1/push?tenant=a&credentials=/c&ca=/p",
            LokiTarget("", "https://h:3100/loki/api/v1/push", "/c", "a", "/p"),
        ),
    ],
)
def test_a_target_is_read(text: str, target: object) -> None:
    assert parse_target(text) == type(target)(**{**_fields(target), "name": text})


def _fields(target: object) -> dict[str, object]:
    return {name: getattr(target, name) for name in target.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "begin with"),
        ("/var/log/a", "begin with"),
        ("http://h/", "begin with"),
        ("file:a.log", "absolute"),
        ("file:/var/log/", "absolute"),
        ("file:/a?size=10", "at least"),
        ("file:/a?keep=-1", "keep"),
        ("file:/a?keep=1&keep=2", "twice"),
        ("file:/a?colour=red", "colour"),
        ("syslog://", "host"),
        ("syslog+tcp:/dev/log", "host"),
        ("syslog://h/path", "no path"),
        ("syslog://h:99999", "no URL"),
        ("loki+http:///push", "host"),
        ("loki+http://h/p?tenant=a b", "tenant"),
        ("loki+http://h/p?credentials=here", "absolute"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(errors.Invalid, match=problem):
        parse_target(text)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(errors.Invalid) as refused:
        parse_target("loki+http://me:hunter2@h/push")
    assert "hunter2" not in str(refused.value)
