"""The CA is replaced: both count, certificates follow, and a process that dies anywhere goes on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.identity import authority_rotation
from skerry.control.identity.authenticator import Authenticator
from skerry.control.identity.authority_rotation import AuthorityRotation, RotationPhase
from skerry.control.identity.server_certificates import ServerCertificates
from skerry.control.identity.server_names import ServerNames
from skerry.kit import pki, tls
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle, TrustedAuthorities
from skerry.model.callers import Certificate, Role, Token
from skerry.model.ids import NodeId
from skerry.model.settings import EventSettings, IdentitySettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from tests.support.waiting import eventually

CLOCK = SystemClock()
NODE = NodeId("01kb3k2v8x1w0d5q0m8s6n4r2t")


class Killed(BaseException):
    """As if the process had been killed."""


def certificate(
    issuer: str, node: str = "", name: str = "x", role: str = "node", **more: float
) -> Certificate:
    made = Certificate(f"{issuer}-{node}-{name}", role, name, node, 1.0, 100.0, issuer=issuer)
    return replace(made, **more)


def test_pending_are_nodes_clients_and_invitations_of_the_old_ca() -> None:
    holders = [
        certificate("old", "n1", not_before=1.0),
        certificate("new", "n1", not_before=2.0),  # it has renewed
        certificate("old", "n2", "edge"),
        certificate("new", "n5", "cut off"),  # issued, and not received
        certificate("old", "n3", revoked_at=3.0),
        certificate("old", "n4", not_after=5.0),  # expired
        certificate("old", "", "host", "server"),
        certificate("old", "", "ann", "viewer"),
        certificate("new", "", "ben", "viewer"),
    ]
    joining = Token("t1", Role.NODE, "", 5.0, expires_at=50.0)
    tokens = [joining, replace(joining, id="t2", created_at=9.0), replace(joining, id="t3", used_at=6.0)]
    found = authority_rotation.pending(
        holders, tokens, "new", started_at=8.0, now=10.0, has_stored={"n1"}.__contains__
    )
    assert [one.split(":")[0] for one in found] == [
        "certificate old--ann of ann",
        "invitation t1",
        "node cut off (n5)",
        "node edge (n2)",
    ]


@pytest.mark.parametrize("step", ["root", "key", "certificate", "removed"])
def test_a_promotion_that_is_killed_anywhere_is_finished_at_the_next_start(tmp_path: Path, step: str) -> None:
    old = pki.CertificateAuthority.load_or_create(tmp_path, CLOCK)
    secret = old.derive(b"use")
    new = pki.CertificateAuthority.create(CLOCK)
    old.adopt(tmp_path, new)

    def kill(at: str) -> None:
        if at == step:
            raise Killed

    with pytest.raises(Killed):
        old.promote(tmp_path, kill)
    found = pki.CertificateAuthority.load_or_create(tmp_path, CLOCK)
    if step == "root":  # it had not begun: the record in the store has it done again
        assert found.fingerprint == old.fingerprint
        found.promote(tmp_path)
    assert found.fingerprint == new.fingerprint
    assert found.successor is None
    assert pki.CertificateAuthority.load_or_create(tmp_path, CLOCK).derive(b"use") == secret
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "ca.crt", "ca.key", "derive.key"]


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Raises `ssl.SSLError` if the two do not accept each other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for end in ends:
        end.do_handshake()


class Server:
    """One server of a cloud, on a store of others or its own."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        self.folder, self.store = folder, store
        self.events = EventLog(store, CLOCK, EventSettings())
        self.authority = pki.CertificateAuthority.load_or_create(folder / "pki", CLOCK)
        self.identity = Authenticator(store, self.events, self.authority, CLOCK, IdentitySettings())
        self.rotation = AuthorityRotation(
            store, self.events, self.authority, CLOCK, folder / "pki", node=NODE
        )
        names = ServerNames("host", frozenset(), frozenset({"localhost"}))
        self.certificates = ServerCertificates(
            folder, self.identity, self.authority, CLOCK, names=lambda: names
        )
        self.loops = TaskSupervisor("server", clock=CLOCK)

    async def start(self) -> None:
        await self.loops.__aenter__()
        await self.rotation.catch_up()
        self.identity.use_rotation(self.rotation)
        self.loops.forever("identity", self.identity.run)
        await self.identity.ready()
        self.loops.forever("rotation", self.rotation.run)
        self.rotation.refresh = self.certificates.prepare
        await self.rotation.ready()

    async def stop(self) -> None:
        await self.loops.__aexit__(None, None, None)

    async def set_issuing(self) -> None:
        """As the leader does, when all nodes trust the new CA."""
        stored = await self.rotation.table.read("ca")
        assert stored is not None
        after = replace(stored.value, phase=RotationPhase.ISSUING)
        table = self.rotation.table
        await table.wait_for_change(await table.commit([table.put("ca", after)], []))

    def bundle(self) -> AuthorityBundle:
        (found,) = self.rotation.objects(NODE)
        assert isinstance(found, AuthorityBundle)
        return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    store = MemoryStore(CLOCK)
    made = Server(tmp_path / "one", store)
    await made.start()
    yield made
    await made.stop()
    await store.close()


async def test_until_the_end_the_server_is_accepted_by_those_who_know_either_ca(server: Server) -> None:
    old = server.authority.certificate_pem
    await server.rotation.begin(actor="test")
    new = server.authority.newest.certificate_pem
    for known in (old, new, old + new):
        handshake(tls.client(known, tls.HTTP1), server.certificates.contexts.http)
    await server.rotation.finish(force=True, actor="test")
    handshake(tls.client(new, tls.HTTP1), server.certificates.contexts.http)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.client(old, tls.HTTP1), server.certificates.contexts.http)
    assert server.authority.fingerprint == pki.fingerprint(new)
    assert pki.split_bundle(server.bundle().pem.encode()) == [new]


async def test_who_waits_for_it_again_and_nodes_that_trust_it_replace_no_certificates(server: Server) -> None:
    """Every session of a node waits for it, and reports what the node trusts."""
    refreshed: list[str] = []
    sent: list[object] = []

    async def refresh() -> None:
        refreshed.append(server.authority.newest.fingerprint)

    server.rotation.refresh = refresh
    server.rotation.listen(lambda node, key, value: sent.append(value))
    for _ in range(3):
        await server.rotation.ready()
    assert len(refreshed) == len(sent) == 1
    await server.rotation.begin(actor="test")
    assert refreshed[-1] == server.authority.newest.fingerprint != refreshed[0]
    applied = await _settled(refreshed)
    for number in range(3):
        trusted = TrustedAuthorities((server.authority.newest.fingerprint,), server.authority.key_id)
        await server.rotation.trusted(NodeId(f"other-{number}"), [trusted])
    await server.rotation.trust.sync()
    assert await _settled(refreshed) == applied


async def _settled(calls: list[str]) -> int:
    """How many there are when the loops have nothing left to do."""
    before = -1
    while before != len(calls):
        before = len(calls)
        for _ in range(50):
            await asyncio.sleep(0)
    return before


async def test_a_node_gets_a_certificate_of_the_new_ca_once_it_trusts_it(server: Server) -> None:
    old = server.authority.certificate_pem
    token, text = await server.identity.create_token(Role.NODE, ttl_s=None, note="", actor="test")
    joined = await server.identity.join(text, pki.make_request(key := pki.new_key()), "edge")
    assert token.role is Role.NODE
    der = ssl.PEM_cert_to_DER_cert(joined.certificate_pem.decode())

    async def renewed() -> bytes:
        caller = server.identity.caller_from_certificate(der)
        return await server.identity.renew(caller, pki.make_request(key))

    await server.rotation.begin(actor="test")
    await server.set_issuing()
    assert pki.is_issued_by(await renewed(), old), "it has not said that it trusts the new one"
    new = server.authority.newest
    with pytest.raises(errors.FailedPrecondition, match="edge"):
        await server.rotation.finish(force=False, actor="test")
    node = NodeId(joined.node)
    trusted = (pki.fingerprint(old), new.fingerprint)
    await server.rotation.trusted(node, [TrustedAuthorities(trusted, server.authority.key_id)])
    assert pki.is_issued_by(await renewed(), new.certificate_pem)
    with pytest.raises(errors.FailedPrecondition, match="edge"):  # it may have been killed before it got it
        await server.rotation.finish(force=False, actor="test")
    await server.rotation.trusted(node, [TrustedAuthorities(trusted, new.key_id)])
    await eventually(lambda: server.rotation.status().pending == ())
    await server.rotation.finish(force=False, actor="test")
    with pytest.raises(errors.Unauthenticated, match=r"another CA|not signed"):
        server.identity.caller_from_certificate(der)


async def test_invitations_and_offline_tokens_name_a_ca_that_counts(server: Server) -> None:
    before = server.authority.fingerprint
    _, offline = await server.identity.create_token(
        Role.VIEWER, ttl_s=None, note="", actor="test", offline=True
    )
    await server.rotation.begin(actor="test")
    _, text = await server.identity.create_token(Role.NODE, ttl_s=None, note="", actor="test")
    assert text.endswith(server.authority.newest.fingerprint[:32])
    joined = await server.identity.join(text, pki.make_request(pki.new_key()), "edge")
    assert pki.is_issued_by(joined.certificate_pem, server.authority.newest.certificate_pem)
    assert server.identity.caller_from_token(offline).role is Role.VIEWER
    await server.rotation.finish(force=True, actor="test")
    assert server.identity.caller_from_token(offline).role is Role.VIEWER, "for as long as it lives"
    assert before[:32] in server.bundle().issuers


async def test_a_server_that_was_away_follows_and_one_without_the_key_is_refused(
    server: Server, tmp_path: Path
) -> None:
    """The files of the CA are copied to a second server, as the page says."""
    (tmp_path / "two/pki").mkdir(parents=True)
    for name in ("ca.key", "ca.crt"):
        (tmp_path / "two/pki" / name).write_bytes((server.folder / "pki" / name).read_bytes())
    await server.rotation.begin(actor="test")
    second = Server(tmp_path / "two", server.store)
    await second.start()
    assert second.authority.newest.fingerprint == server.authority.newest.fingerprint
    await second.stop()  # it has the new key, and misses the end
    await server.rotation.finish(force=True, actor="test")
    again = Server(tmp_path / "two", server.store)
    await again.start()
    assert again.authority.fingerprint == server.authority.fingerprint
    await again.stop()
    await authority_rotation.check_root(server.store, again.authority, again.folder / "pki")
    (tmp_path / "two/pki/derive.key").unlink()
    lacking = Server(tmp_path / "two", server.store)
    with pytest.raises(errors.FailedPrecondition, match=r"derive\.key"):
        await authority_rotation.check_root(server.store, lacking.authority, lacking.folder / "pki")
    entry = await server.store.get(f"{authority_rotation.PREFIX}ca")
    assert entry is not None
    assert b'sealed":null' in entry.value or b"sealed" not in entry.value, "its key is not kept"


async def test_one_replacement_at_a_time_and_none_to_finish_is_an_error(server: Server) -> None:
    with pytest.raises(errors.FailedPrecondition, match="not being replaced"):
        await server.rotation.finish(force=True, actor="test")
    await server.rotation.begin(actor="test")
    with pytest.raises(errors.FailedPrecondition, match="already"):
        await server.rotation.begin(actor="test")
    with pytest.raises(errors.FailedPrecondition, match="trust the new CA yet"):
        await server.rotation.finish(force=False, actor="test")
    await server.rotation.finish(force=True, actor="test")
    await server.store.commit([Put("x", b"")])
    await server.rotation.begin(actor="test")
    assert server.rotation.status().phase == "trusting"
