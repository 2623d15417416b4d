"""Certificates of routes on an edge node: they are requested, used, replaced and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.network_objects import NetworkKey
from skerry.model.node_messages import NetworkUpdate
from skerry.model.secrets import SecretRef
from skerry.model.tls_certificates import RouteCertificate
from skerry.node.agent.network_state import NetworkState
from skerry.node.routes.certificate_follower import CertificateFollower, file_name

SHOP = Namespace("shop")


def certificate(name: str, version: int = 1, *hosts: str) -> RouteCertificate:
    return RouteCertificate(SHOP, name, version, (name,), hosts or (name,), 1e12)


class FakeEdge:
    def __init__(self) -> None:
        self.used: dict[str, tuple[tuple[str, ...], bytes]] = {}

    @property
    def certificate_names(self) -> Sequence[str]:
        return tuple(self.used)

    async def set_certificate(self, name: str, domains: tuple[str, ...], pem: bytes) -> None:
        self.used[name] = (domains, pem)

    async def remove_certificate(self, name: str) -> None:
        del self.used[name]


class FakeSecrets:
    """Has the values of these names; the server refuses the others."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    async def values(self, refs: Sequence[SecretRef]) -> Mapping[SecretRef, bytes]:
        for ref in refs:
            if ref.name not in self.names:
                raise errors.FailedPrecondition(f"{ref} is not delivered")
        return {ref: f"{ref.name} {ref.version}".encode() for ref in refs}


async def test_certificates_are_used_replaced_and_removed(tmp_path: Path) -> None:
    state, edge, secrets = NetworkState(tmp_path / "n.json"), FakeEdge(), FakeSecrets("a.org", "b.org")
    follower = CertificateFollower(state, edge, secrets.values)
    state.apply(NetworkUpdate(True, (certificate("a.org"), certificate("b.org", 3, "b.org", "c.org"))))
    assert await follower.apply()
    assert edge.used == {
        "shop--a.org": (("a.org",), b"a.org 1"),
        "shop--b.org": (("b.org", "c.org"), b"b.org 3"),
    }
    assert {ref.name for ref in follower.refs()} == {"a.org", "b.org"}
    removed = NetworkKey(RouteCertificate.kind, "shop/b.org")
    state.apply(NetworkUpdate(False, (certificate("a.org", 2),), (removed,)))
    assert await follower.apply()
    assert edge.used == {"shop--a.org": (("a.org",), b"a.org 2")}


async def test_one_that_cannot_be_had_is_tried_again_and_holds_up_no_other(tmp_path: Path) -> None:
    state, edge, secrets = NetworkState(tmp_path / "n.json"), FakeEdge(), FakeSecrets("b.org")
    follower = CertificateFollower(state, edge, secrets.values)
    state.apply(NetworkUpdate(True, (certificate("a.org"), certificate("b.org"))))
    assert not await follower.apply()
    assert set(edge.used) == {"shop--b.org"}
    secrets.names.add("a.org")
    assert await follower.apply()
    assert set(edge.used) == {"shop--a.org", "shop--b.org"}


def test_names_of_files_are_short_and_differ() -> None:
    long = [file_name(certificate("x" * length + ".org")) for length in (150, 151)]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 128
