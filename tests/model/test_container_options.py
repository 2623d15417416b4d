"""Options of containers: what is read is written again, and what cannot be is refused with what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.container_options import UNLIMITED, ContainerOptions, HostAlias, NodeFeature, Ulimit
from skerry.model.resources import Millicores, Resources
from skerry.model.workloads import InstanceSpec
from tests.support.option_strategies import container_options


@pytest.mark.parametrize(
    ("text", "soft", "hard"),
    [
        ("nofile=4096", 4096, 4096),
        ("nofile=1024:4096", 1024, 4096),
        ("memlock=unlimited", UNLIMITED, UNLIMITED),
        ("stack=8192:-1", 8192, UNLIMITED),
    ],
)
def test_a_ulimit_is_read(text: str, soft: int, hard: int) -> None:
    ulimit = Ulimit.parse(text)
    assert (ulimit.name, ulimit.soft, ulimit.hard) == (text.partition("=")[0], soft, hard)


@given(container_options)
def test_what_is_read_is_written_again(options: ContainerOptions) -> None:
    assert tuple(Ulimit.parse(str(each)) for each in options.ulimits) == options.ulimits
    assert tuple(HostAlias.parse(str(each)) for each in options.extra_hosts) == options.extra_hosts
    assert json_codec.decode(json_codec.encode(options), ContainerOptions) == options


def test_options_that_are_not_asked_for_are_not_written_down() -> None:
    assert json_codec.encode(ContainerOptions()) == b"{}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nofile", "NAME=SOFT:HARD"),
        ("core=0", "is no ulimit that can be set"),
        ("rtprio=10", "is no ulimit that can be set"),
        ("nofile=10:5", "cannot be above the hard one"),
        ("nofile=unlimited", "at most 1048576"),
    ],
)
def test_a_ulimit_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(errors.Invalid, match=why):
        Ulimit.parse(text)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"user": "a\nb"}, "user"),
        ({"entrypoint": ("",)}, "program to run"),
        ({"entrypoint": ("a\0",)}, "NUL"),
        ({"stop_signal": "please"}, "SIGTERM"),
        ({"stop_grace_s": -1.0}, "0 to 86400"),
        ({"stop_grace_s": float("nan")}, "0 to 86400"),
        ({"shm": -1}, "shm"),
        ({"ulimits": (Ulimit("nproc", 1, 1), Ulimit("nproc", 2, 2))}, "twice"),
        ({"host_name": "-db"}, "hostname"),
        ({"extra_hosts": (HostAlias("db", "10.0.0.7"),) * 65}, "at most 64"),
        ({"dns": ("127.0.0.1",)}, "loopback"),
        ({"dns": ("::1",)}, "IPv4"),
        ({"dns": ("192.0.2.1",) * 4}, "at most 3"),
    ],
)
def test_options_that_cannot_be_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(errors.Invalid, match=why):
        ContainerOptions(**fields)


@pytest.mark.parametrize("text", ["db", "db:", "db:nowhere", "a b:10.0.0.7", ":10.0.0.7", "db:fe80::1%eth0"])
def test_an_extra_host_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid):
        HostAlias.parse(text)


def _spec(**more: Any) -> InstanceSpec:
    return InstanceSpec("web", "web:1", resources=Resources(Millicores(500)), **more)


def test_a_cpu_limit_is_no_less_than_what_is_guaranteed() -> None:
    for limit in (None, 0, 500, 2000):
        assert _spec(cpu_limit=limit).cpu_limit == limit
    with pytest.raises(errors.Invalid, match=r"cpu_limit \(499\) is below cpu \(500\)"):
        _spec(cpu_limit=499)


def test_a_plain_spec_needs_no_feature_and_one_with_options_those_of_nodes_that_know_them() -> None:
    assert _spec().needed_features == ()
    assert _spec(node="edge-1").needed_features == ()  # which is the server's business
    assert _spec(cpu_limit=0).needed_features == (NodeFeature.OPTIONS,)
    assert _spec(options=ContainerOptions(init=True)).needed_features == (
        NodeFeature.OPTIONS,
        NodeFeature.INIT,
    )
