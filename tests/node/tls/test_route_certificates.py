"""Certificates on an edge node: requested, given to what serves, and taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.network_objects import NetworkObject
from skerry.model.node_messages import NetworkUpdate, SecretDelivery, SecretValue
from skerry.model.tls_certificates import RouteCertificate
from skerry.node.agent.network_state import NetworkState
from skerry.node.secrets.memory_folder import MemoryFolder
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.tls.route_certificates import RouteCertificates, file_name
from tests.support.waiting import eventually

HOST = "shop.example.org"


def certificate(version: int = 1, name: str = HOST, *hosts: str) -> RouteCertificate:
    return RouteCertificate(DEFAULT_NAMESPACE, name, version, (name,), hosts or (name,), 0.0)


class PlayedProxy:
    """What serves, with what it was given."""

    def __init__(self) -> None:
        self.served: dict[str, tuple[tuple[str, ...], bytes]] = {}
        self.refuses: set[str] = set()

    def certificate_names(self) -> Iterable[str]:
        return list(self.served)

    async def set_certificate(self, name: str, domains: tuple[str, ...], pem: bytes) -> None:
        if name in self.refuses:
            raise errors.Unavailable("it is not running") if pem == b"" else errors.Internal("it refuses")
        self.served[name] = domains, pem

    async def remove_certificate(self, name: str) -> None:
        del self.served[name]


class Edge:
    """An edge node whose server is the test."""

    def __init__(self, folder: Path, proxy: PlayedProxy) -> None:
        self.state = NetworkState(folder / "network.json")
        self.secrets = NodeSecrets(MemoryFolder(folder / "secrets", mounts=False))
        self.proxy = proxy
        self.certificates = RouteCertificates(self.state, self.secrets, proxy)

    def tell(self, *objects: NetworkObject) -> None:
        self.state.apply(NetworkUpdate(True, objects))

    async def deliver(self) -> list[str]:
        """Answer a request; gives what was requested."""
        refs = await self.secrets.next_request()
        values = tuple(SecretValue(ref, f"{ref.name} {ref.version}".encode()) for ref in refs)
        self.secrets.deliver(SecretDelivery(values))
        return [f"{ref.kind} {ref.name} {ref.version}" for ref in refs]


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    made = Edge(tmp_path, PlayedProxy())
    task = asyncio.create_task(made.certificates.run())
    yield made
    await cancel_and_wait([task])


async def test_a_certificate_is_requested_served_renewed_and_removed(edge: Edge) -> None:
    name = f"default.{HOST}"
    edge.tell(certificate(1))
    assert await edge.deliver() == [f"tls {HOST} 1"]
    await eventually(lambda: edge.proxy.served == {name: ((HOST,), f"{HOST} 1".encode())})
    edge.tell(certificate(2))
    assert edge.proxy.served[name][1] == f"{HOST} 1".encode()  # until the new one is here
    assert await edge.deliver() == [f"tls {HOST} 2"]
    await eventually(lambda: edge.proxy.served[name][1] == f"{HOST} 2".encode())
    edge.tell(certificate(2, HOST, HOST, "www.example.org"))  # more hosts, and no request
    await eventually(lambda: edge.proxy.served[name][0] == (HOST, "www.example.org"))
    edge.tell()
    await eventually(lambda: edge.proxy.served == {})


async def test_what_was_removed_while_the_agent_was_down_is_removed_at_its_start(tmp_path: Path) -> None:
    proxy = PlayedProxy()
    proxy.served = {"default.old.example.org": (("old.example.org",), b"")}
    edge = Edge(tmp_path, proxy)
    task = asyncio.create_task(edge.certificates.run())
    await eventually(lambda: proxy.served == {})
    await cancel_and_wait([task])


async def test_one_that_is_refused_does_not_keep_another_from_being_served(edge: Edge) -> None:
    edge.proxy.refuses.add("default.a.example.org")
    edge.tell(certificate(1, "a.example.org"), certificate(1, "b.example.org"))
    await edge.deliver()
    await eventually(lambda: list(edge.proxy.served) == ["default.b.example.org"])
    edge.proxy.refuses.clear()
    edge.tell(
        certificate(1, "a.example.org"), certificate(1, "b.example.org"), certificate(1, "c.example.org")
    )
    await edge.deliver()
    await eventually(lambda: len(edge.proxy.served) == 3)


def test_names_of_files_are_short_and_differ() -> None:
    long = ".".join(["a" * 60] * 4)
    one, other = certificate(1, long), certificate(1, long + "b")
    assert len(file_name(one)) <= 120
    assert file_name(one) != file_name(other)
    assert file_name(RouteCertificate(Namespace("shop"), "x", 1, (), (), 0.0)) == "shop.x"
