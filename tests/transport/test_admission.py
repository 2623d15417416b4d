"""Admission of connections: limits per source, reserved slots, and which connection is dropped first."""

from __future__ import annotations

import pytest

from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.admission import (
    BARRED_S,
    FAULTS,
    SOURCE_FRAMES,
    AdmissionLimits,
    AdmissionRefused,
    ConnectionAdmission,
    ConnectionSlot,
)

ROOT, USER, OTHER = 0, 1000, 1001


def local(uid: int | None) -> ConnectionPeer:
    return ConnectionPeer(address="127.0.0.1", loopback=True, uid=uid)


def remote(number: int) -> ConnectionPeer:
    return ConnectionPeer(address=f"192.0.2.{number}")


class FakeListener:
    """An admission, its clock, and the names of dropped connections."""

    def __init__(self, most: int = 32, per_source: int = 8) -> None:
        self.now = 0.0
        self.dropped: list[str] = []
        self.admission = ConnectionAdmission(
            AdmissionLimits(most, per_source), frozenset({ROOT}), lambda: self.now
        )

    def connect(self, peer: ConnectionPeer, name: str = "") -> ConnectionSlot:
        return self.admission.admit(peer, lambda: self.dropped.append(name))

    def fill(self, *, from_address: int = 1) -> list[ConnectionSlot]:
        """Take all slots that are not reserved, from several addresses."""
        return [
            self.connect(remote(from_address + n // 8), f"client {n}")
            for n in range(32 - AdmissionLimits(32, 8).reserved)
        ]


def test_each_user_and_each_address_has_a_limit_of_connections() -> None:
    listener = FakeListener()
    slots = [listener.connect(local(USER)) for _ in range(8)]
    with pytest.raises(AdmissionRefused, match="has 8 connections"):
        listener.connect(local(USER))
    listener.connect(local(OTHER))
    for _ in range(8):
        listener.connect(remote(1))
    with pytest.raises(AdmissionRefused, match="has 8 connections"):
        listener.connect(remote(1))
    listener.connect(remote(2))
    listener.admission.leave(slots[0])
    listener.connect(local(USER))
    assert listener.dropped == []


def test_addresses_of_one_ipv6_network_share_one_limit() -> None:
    listener = FakeListener()
    for n in range(8):
        listener.connect(ConnectionPeer(address=f"2001:db8:1:2::{n:x}"))
    with pytest.raises(AdmissionRefused, match="has 8 connections"):
        listener.connect(ConnectionPeer(address="2001:db8:1:2:ffff::1"))
    listener.connect(ConnectionPeer(address="2001:db8:1:3::1"))


def test_ipv4_addresses_on_a_dual_stack_listener_are_different_sources() -> None:
    listener = FakeListener()
    for _ in range(8):
        listener.connect(ConnectionPeer(address="::ffff:192.0.2.1"))
    for same in ("::ffff:192.0.2.1", "192.0.2.1"):
        with pytest.raises(AdmissionRefused, match="has 8 connections"):
            listener.connect(ConnectionPeer(address=same))
    listener.connect(ConnectionPeer(address="::ffff:192.0.2.2"))


def test_faults_of_closed_connections_are_not_counted() -> None:
    listener = FakeListener()
    slot = listener.connect(remote(1))
    listener.admission.leave(slot)
    for _ in range(FAULTS):
        slot.blame()
    listener.connect(remote(1))
    assert not listener.admission._faults


def test_local_processes_of_unknown_users_share_one_limit() -> None:
    listener = FakeListener()
    for _ in range(8):
        listener.connect(local(None))
    with pytest.raises(AdmissionRefused):
        listener.connect(local(None))


def test_root_has_no_limit_and_reserved_slots() -> None:
    listener = FakeListener()
    for slot in listener.fill():
        slot.occupy()
    assert len(listener.admission) == 30
    for _ in range(2):
        listener.connect(local(ROOT))
    assert listener.dropped == []
    listener.connect(local(ROOT))
    assert listener.dropped == ["client 0"]
    assert len(listener.admission) == 32


def test_the_connection_idle_for_longest_is_dropped_for_a_new_one() -> None:
    listener = FakeListener()
    slots = listener.fill()
    slots[0].occupy()
    slots[0].rest()  # it is the last that was busy
    slots[1].recognize()
    slots[2].occupy()
    new = listener.connect(remote(99))
    assert listener.dropped == ["client 3"]
    new.recognize()
    new.rest()
    for n in range(27):
        listener.connect(remote(100 + n))
    assert listener.dropped[-1] == "client 0"
    assert "client 1" not in listener.dropped
    assert "client 2" not in listener.dropped


def test_a_busy_connection_of_a_source_with_many_is_dropped_for_a_source_with_fewer() -> None:
    listener = FakeListener()
    for slot in listener.fill():
        slot.occupy()
    listener.connect(remote(99)).occupy()
    listener.connect(remote(98)).occupy()
    assert listener.dropped == ["client 0", "client 1"]
    listener.connect(remote(4)).occupy()  # it has six, and so has the first by now, but the second has eight
    assert listener.dropped[2:] == ["client 8"]
    with pytest.raises(AdmissionRefused, match="in use"):
        listener.connect(remote(4))  # no source has more than its seven and one


def test_the_only_connection_of_a_source_is_not_dropped_before_those_of_a_source_with_many() -> None:
    listener = FakeListener()
    listener.connect(remote(99), "alone").occupy()
    for n in range(29):
        listener.connect(remote(1 + n // 8), f"client {n}").occupy()
    listener.connect(remote(98))
    assert listener.dropped == ["client 0"]


def test_all_addresses_that_one_host_can_have_are_one_source() -> None:
    listener = FakeListener()
    for n in range(8):
        listener.connect(ConnectionPeer(address=f"2001:db8:0:1:{n:x}::1"))
    with pytest.raises(AdmissionRefused, match="has 8 connections"):
        listener.connect(ConnectionPeer(address="2001:db8:0:1:ffff::1"))
    listener.connect(ConnectionPeer(address="2001:db8:0:2::1"))
    for n in range(8):
        listener.connect(ConnectionPeer(address=f"127.0.{n}.1", loopback=True))
    with pytest.raises(AdmissionRefused, match="has 8 connections"):
        listener.connect(ConnectionPeer(address="127.9.9.9", loopback=True))
    listener.connect(ConnectionPeer(address="::ffff:192.0.2.1"))
    listener.connect(ConnectionPeer(address="::ffff:192.0.2.2")).blame(at_once=True)
    listener.connect(remote(1))
    with pytest.raises(AdmissionRefused, match="flooded"):
        listener.connect(remote(2))


def test_a_known_and_busy_connection_is_never_dropped() -> None:
    listener = FakeListener()
    slots = listener.fill()
    for slot in slots:
        slot.recognize()
        slot.occupy()
    with pytest.raises(AdmissionRefused, match="in use"):
        listener.connect(remote(99))
    for _ in range(2):
        listener.connect(local(ROOT))
    with pytest.raises(AdmissionRefused, match="in use"):
        listener.connect(local(ROOT))
    slots[5].rest()
    listener.connect(local(ROOT))
    assert listener.dropped == ["client 5"]


def test_a_source_that_flooded_is_refused_for_a_while() -> None:
    listener = FakeListener()
    listener.connect(remote(1)).blame(at_once=True)
    with pytest.raises(AdmissionRefused, match="flooded"):
        listener.connect(remote(1))
    listener.connect(remote(2))
    listener.now += BARRED_S
    listener.connect(remote(1))
    listener.connect(local(ROOT)).blame(at_once=True)
    listener.connect(local(ROOT))


def test_a_source_that_flooded_loses_its_other_connections_unless_they_are_known() -> None:
    listener = FakeListener()
    listener.connect(remote(1), "idle")
    listener.connect(remote(1), "busy").occupy()
    listener.connect(remote(1), "known").recognize()
    listener.connect(remote(2), "of another source")
    listener.connect(remote(1), "the flooder's own, which its protocol ends").blame(at_once=True)
    assert listener.dropped == ["idle", "busy"]


def test_frames_without_content_are_counted_over_all_unknown_connections_of_a_source() -> None:
    listener = FakeListener()
    slots = [listener.connect(remote(1)) for _ in range(4)]
    known = listener.connect(remote(1))
    known.recognize()
    for n in range(SOURCE_FRAMES):
        assert slots[n % 4].spend_frame()
    assert not slots[0].spend_frame()
    assert known.spend_frame()
    assert listener.connect(remote(2)).spend_frame()
    listener.now += 1.0
    assert slots[1].spend_frame(), "there are new ones each second"
    for slot in (*slots, known):
        listener.admission.leave(slot)
    assert list(listener.admission._frames) == ["192.0.2.2"], "sources without connections are forgotten"


def test_breaking_the_protocol_over_and_over_counts_as_a_flood() -> None:
    listener = FakeListener(most=1000, per_source=500)
    for _ in range(FAULTS):
        listener.connect(remote(1)).blame()
    with pytest.raises(AdmissionRefused, match="flooded"):
        listener.connect(remote(1))


def test_a_dropped_connection_has_no_slot() -> None:
    listener = FakeListener()
    first, *_ = listener.fill()
    listener.connect(remote(99))
    first.occupy()
    first.recognize()
    listener.admission.leave(first)
    listener.admission.leave(first)
    assert len(listener.admission) == 30


def test_connections_of_a_proxy_are_dropped_like_those_of_any_client() -> None:
    listener = FakeListener(most=16)  # one of them is reserved for root
    proxied = [listener.connect(local(ROOT), f"proxied {n}") for n in range(16)]
    for slot in proxied:
        slot.distrust()
    listener.connect(remote(1))
    assert listener.dropped == ["proxied 0"]
    listener.connect(local(ROOT))
    assert listener.dropped == ["proxied 0", "proxied 1"]
    proxied[2].recognize()  # by a token in a request
    listener.connect(remote(2))
    assert listener.dropped[2:] == ["proxied 3"]


def test_a_connection_that_was_never_trusted_stays_authenticated() -> None:
    slot = FakeListener().connect(remote(1))
    slot.recognize()
    slot.distrust()
    assert slot.is_known
