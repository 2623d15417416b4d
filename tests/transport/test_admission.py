"""Who gets a place: limits per source, places kept for root, and who has to go when there is none."""

from __future__ import annotations

import pytest

from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.admission import (
    BARRED_S,
    FAULTS,
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


class Hall:
    """An admission, its clock, and who was dropped."""

    def __init__(self, most: int = 32, per_source: int = 8) -> None:
        self.now = 0.0
        self.dropped: list[str] = []
        self.admission = ConnectionAdmission(
            AdmissionLimits(most, per_source), frozenset({ROOT}), lambda: self.now
        )

    def enter(self, peer: ConnectionPeer, name: str = "") -> ConnectionSlot:
        return self.admission.admit(peer, lambda: self.dropped.append(name))

    def fill(self, *, from_address: int = 1) -> list[ConnectionSlot]:
        """All places that strangers may have, from several addresses."""
        return [
            self.enter(remote(from_address + n // 8), f"stranger {n}")
            for n in range(32 - AdmissionLimits(32, 8).reserved)
        ]


def test_no_user_and_no_address_holds_more_than_its_share() -> None:
    hall = Hall()
    held = [hall.enter(local(USER)) for _ in range(8)]
    with pytest.raises(AdmissionRefused, match="holds 8 places"):
        hall.enter(local(USER))
    hall.enter(local(OTHER))
    for _ in range(8):
        hall.enter(remote(1))
    with pytest.raises(AdmissionRefused, match="holds 8 places"):
        hall.enter(remote(1))
    hall.enter(remote(2))
    hall.admission.leave(held[0])
    hall.enter(local(USER))
    assert hall.dropped == []


def test_addresses_of_one_ipv6_network_share_one_limit() -> None:
    hall = Hall()
    for n in range(8):
        hall.enter(ConnectionPeer(address=f"2001:db8:1:2::{n:x}"))
    with pytest.raises(AdmissionRefused, match="holds 8 places"):
        hall.enter(ConnectionPeer(address="2001:db8:1:2:ffff::1"))
    hall.enter(ConnectionPeer(address="2001:db8:1:3::1"))


def test_ipv4_addresses_on_a_listener_of_both_kinds_are_told_apart() -> None:
    hall = Hall()
    for _ in range(8):
        hall.enter(ConnectionPeer(address="::ffff:192.0.2.1"))
    for same in ("::ffff:192.0.2.1", "192.0.2.1"):
        with pytest.raises(AdmissionRefused, match="holds 8 places"):
            hall.enter(ConnectionPeer(address=same))
    hall.enter(ConnectionPeer(address="::ffff:192.0.2.2"))


def test_faults_of_those_who_have_left_are_not_kept() -> None:
    hall = Hall()
    place = hall.enter(remote(1))
    hall.admission.leave(place)
    for _ in range(FAULTS):
        place.blame()
    hall.enter(remote(1))
    assert not hall.admission._faults


def test_local_processes_whose_user_is_not_known_share_one_limit() -> None:
    hall = Hall()
    for _ in range(8):
        hall.enter(local(None))
    with pytest.raises(AdmissionRefused):
        hall.enter(local(None))


def test_root_has_no_limit_and_places_that_are_kept_for_it() -> None:
    hall = Hall()
    for place in hall.fill():
        place.occupy()
    assert len(hall.admission) == 30
    for _ in range(2):
        hall.enter(local(ROOT))
    assert hall.dropped == []
    hall.enter(local(ROOT))
    assert hall.dropped == ["stranger 0"]
    assert len(hall.admission) == 32


def test_who_is_silent_for_longest_makes_room_for_a_newcomer() -> None:
    hall = Hall()
    places = hall.fill()
    places[0].occupy()
    places[0].rest()  # it spoke last
    places[1].recognize()
    places[2].occupy()
    newcomer = hall.enter(remote(99))
    assert hall.dropped == ["stranger 3"]
    newcomer.recognize()
    newcomer.rest()
    for n in range(27):
        hall.enter(remote(100 + n))
    assert hall.dropped[-1] == "stranger 0"
    assert "stranger 1" not in hall.dropped
    assert "stranger 2" not in hall.dropped


def test_a_crowd_at_work_of_one_address_makes_room_for_one_that_has_less() -> None:
    hall = Hall()
    for place in hall.fill():
        place.occupy()
    hall.enter(remote(99)).occupy()
    hall.enter(remote(98)).occupy()
    assert hall.dropped == ["stranger 0", "stranger 1"]
    hall.enter(remote(4)).occupy()  # it holds six, and so does the first by now, but the second has eight
    assert hall.dropped[2:] == ["stranger 8"]
    with pytest.raises(AdmissionRefused, match="at work"):
        hall.enter(remote(4))  # nobody has so many more than its seven


def test_one_at_work_of_a_small_source_does_not_stand_before_a_crowd() -> None:
    hall = Hall()
    hall.enter(remote(99), "alone").occupy()
    for n in range(29):
        hall.enter(remote(1 + n // 8), f"stranger {n}").occupy()
    hall.enter(remote(98))
    assert hall.dropped == ["stranger 0"]


def test_the_addresses_that_one_host_can_have_for_nothing_are_one_source() -> None:
    hall = Hall()
    for n in range(8):
        hall.enter(ConnectionPeer(address=f"2001:db8:0:1:{n:x}::1"))
    with pytest.raises(AdmissionRefused, match="holds 8 places"):
        hall.enter(ConnectionPeer(address="2001:db8:0:1:ffff::1"))
    hall.enter(ConnectionPeer(address="2001:db8:0:2::1"))
    for n in range(8):
        hall.enter(ConnectionPeer(address=f"127.0.{n}.1", loopback=True))
    with pytest.raises(AdmissionRefused, match="holds 8 places"):
        hall.enter(ConnectionPeer(address="127.9.9.9", loopback=True))
    hall.enter(ConnectionPeer(address="::ffff:192.0.2.1"))
    hall.enter(ConnectionPeer(address="::ffff:192.0.2.2")).blame(at_once=True)
    hall.enter(remote(1))
    with pytest.raises(AdmissionRefused, match="flooded"):
        hall.enter(remote(2))


def test_who_is_known_and_at_work_loses_its_place_to_nobody() -> None:
    hall = Hall()
    places = hall.fill()
    for place in places:
        place.recognize()
        place.occupy()
    with pytest.raises(AdmissionRefused, match="at work"):
        hall.enter(remote(99))
    for _ in range(2):
        hall.enter(local(ROOT))
    with pytest.raises(AdmissionRefused, match="at work"):
        hall.enter(local(ROOT))
    places[5].rest()
    hall.enter(local(ROOT))
    assert hall.dropped == ["stranger 5"]


def test_a_source_that_flooded_is_kept_out_for_a_while() -> None:
    hall = Hall()
    hall.enter(remote(1)).blame(at_once=True)
    with pytest.raises(AdmissionRefused, match="flooded"):
        hall.enter(remote(1))
    hall.enter(remote(2))
    hall.now += BARRED_S
    hall.enter(remote(1))
    hall.enter(local(ROOT)).blame(at_once=True)
    hall.enter(local(ROOT))


def test_breaking_the_protocol_over_and_over_counts_as_a_flood() -> None:
    hall = Hall(most=1000, per_source=500)
    for _ in range(FAULTS):
        hall.enter(remote(1)).blame()
    with pytest.raises(AdmissionRefused, match="flooded"):
        hall.enter(remote(1))


def test_who_has_lost_its_place_holds_none() -> None:
    hall = Hall()
    first, *_ = hall.fill()
    hall.enter(remote(99))
    first.occupy()
    first.recognize()
    hall.admission.leave(first)
    hall.admission.leave(first)
    assert len(hall.admission) == 30


def test_what_passes_on_requests_of_others_goes_like_any_stranger() -> None:
    hall = Hall(most=16)  # one of them is kept for root
    proxied = [hall.enter(local(ROOT), f"proxied {n}") for n in range(16)]
    for place in proxied:
        place.distrust()
    hall.enter(remote(1))
    assert hall.dropped == ["proxied 0"]
    hall.enter(local(ROOT))
    assert hall.dropped == ["proxied 0", "proxied 1"]
    proxied[2].recognize()  # by a token that came along
    hall.enter(remote(2))
    assert hall.dropped[2:] == ["proxied 3"]


def test_who_was_never_trusted_keeps_what_it_has_shown() -> None:
    place = Hall().enter(remote(1))
    place.recognize()
    place.distrust()
    assert place.is_known
