"""What a container may be asked to be."""

from __future__ import annotations

import pytest

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.containers import ContainerSpec
from skerry.model.ports import PortMapping


def test_a_spec_that_was_written_before_there_were_containers_apart_is_not_apart() -> None:
    old = b'{"name": "web", "image": "example.org/web:1"}'

    assert json_codec.decode(old, ContainerSpec) == ContainerSpec(name="web", image="example.org/web:1")
    assert json_codec.decode(old, ContainerSpec).is_isolated is False


def test_a_spec_that_is_isolated_stays_so_on_disk() -> None:
    spec = ContainerSpec(name="web", image="example.org/web:1", is_isolated=True)

    assert json_codec.decode(json_codec.encode(spec), ContainerSpec) == spec


def test_nothing_that_is_kept_apart_publishes_ports() -> None:
    with pytest.raises(errors.Invalid, match="isolated network") as caught:
        ContainerSpec(name="web", image="web", ports=(PortMapping(8080, 80),), is_isolated=True)

    assert caught.value.field == "ports"
