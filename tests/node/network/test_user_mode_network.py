"""The network between the containers of an ordinary user and the machine's."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.enforcement import ContainerNetwork
from skerry.node.network import user_mode_network
from skerry.node.network.user_mode_network import UserModeNetwork, choose_network


class Programs(UserModeNetwork):
    """Some of the programs start, in the guise of this process."""

    works: frozenset[ContainerNetwork] = frozenset()

    def _start(self, program: ContainerNetwork, path: str) -> user_mode_network.OutsideProcess:
        if program not in self.works:
            raise errors.Unavailable("it has failed")
        self._folder.mkdir(exist_ok=True)
        start_time = user_mode_network.start_time_of(os.getpid())
        return user_mode_network.OutsideProcess(os.getpid(), start_time, program)


def network(folder: Path, *works: ContainerNetwork) -> Programs:
    found = Programs(0, ContainerNetwork.PASTA, folder / "outside")
    found.works = frozenset(works)
    return found


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_mode_network.shutil, "which", lambda name, path: f"/usr/bin/{name}")


def test_a_network_is_chosen_that_this_machine_does_not_use() -> None:
    assert choose_network([]) == IPv4Network("192.0.2.0/24")
    assert choose_network([IPv4Network("192.0.2.128/25")]) == IPv4Network("198.51.100.0/24")
    every = [IPv4Network("192.0.0.0/16"), IPv4Network("198.51.100.0/24"), IPv4Network("203.0.113.7/32")]
    assert choose_network(every) == IPv4Network("192.0.2.0/24")


def test_where_pasta_fails_the_program_is_slirp4netns_also_when_it_is_adopted(tmp_path: Path) -> None:
    first = network(tmp_path, ContainerNetwork.SLIRP4NETNS)
    first.open()
    assert first.program is ContainerNetwork.SLIRP4NETNS
    adopting = network(tmp_path, ContainerNetwork.PASTA)
    adopting.open()
    assert adopting.program is ContainerNetwork.SLIRP4NETNS


def test_where_every_program_fails_containers_have_each_other_alone(tmp_path: Path) -> None:
    alone = network(tmp_path)
    alone.open()
    assert alone.program is ContainerNetwork.LOOPBACK
    assert "pasta: it has failed" in alone.lacking()[0]
