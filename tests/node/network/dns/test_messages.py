"""Packets of every form: what is a question, what is answered, and what other resolvers say."""

from __future__ import annotations

import struct

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.node.network.dns import messages
from skerry.node.network.dns.messages import Unreadable
from skerry.node.network.dns.zone import LookupStatus, Record, RecordType, ZoneAnswer
from tests.node.network.dns.resolvers import parsed, question

_HEAD = struct.Struct("!HHHHHH")


def head(flags: int = 0x0100, counts: tuple[int, int, int, int] = (1, 0, 0, 0)) -> bytes:
    return _HEAD.pack(7, flags, *counts)


def upstream(name: str = "example.org", *answers: dnslib.RR, id: int = 9, **more: int) -> bytes:
    record = dnslib.DNSRecord(dnslib.DNSHeader(id=id, qr=1, ra=1, **more), q=dnslib.DNSQuestion(name))
    record.add_answer(*answers)
    return bytes(record.pack())


ASKED = messages.parse_query(question("example.org"))


def test_a_question_is_read_in_lower_case_and_echoed_as_it_was() -> None:
    query = messages.parse_query(question("WeB.Shop.SKERRY", "SRV", edns=4096))
    assert (query.name, query.type, query.udp_size, query.limit) == ("web.shop.skerry", 33, 4096, 1232)
    answer = parsed(messages.write_rcode(query, messages.SERVFAIL))
    assert str(answer.q.qname) == "WeB.Shop.SKERRY."
    assert messages.parse_query(question("a.b")).limit == 512


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (head(counts=(0, 0, 0, 0)), messages.FORMERR),
        (head(counts=(2, 0, 0, 0)) + b"\x01a\0\0\1\0\1" * 2, messages.FORMERR),
        (head(counts=(1, 1, 0, 0)) + b"\x01a\0\0\1\0\1", messages.FORMERR),
        (head(counts=(1, 0, 0, 9)) + b"\x01a\0\0\1\0\1", messages.FORMERR),
        (head() + b"\x01a\0\0\1", messages.FORMERR),
        (head() + b"\xc0\x0c\0\1\0\1", messages.FORMERR),  # a pointer to itself
        (head() + b"\x01a\xc0\x0c\0\1\0\1", messages.FORMERR),  # a loop
        (head() + b"\x40" + b"a" * 64 + b"\0\0\1\0\1", messages.FORMERR),
        (head() + b"\x01a" * 128 + b"\0\0\1\0\1", messages.FORMERR),  # 257 bytes
        (head() + b"\x01\xff\0\0\1\0\1", messages.FORMERR),
        (head(counts=(1, 0, 0, 1)) + b"\x01a\0\0\1\0\1\0\0\x29", messages.FORMERR),
        (head(flags=0x2800) + b"\x01a\0\0\1\0\1", messages.NOTIMP),  # an update
        (head() + b"\x07version\x04bind\0\0\x10\0\x03", messages.REFUSED),
        (head() + b"\x01a\0\0\xfc\0\1", messages.REFUSED),  # a transfer
    ],
)
def test_what_is_no_question_for_us_gets_a_code(packet: bytes, code: int) -> None:
    query = messages.parse_query(packet)
    assert query.rcode == code
    answer = messages.write_rcode(query, query.rcode)
    assert answer[:2] == packet[:2]
    assert len(answer) <= len(packet) + 12


@pytest.mark.parametrize("packet", [b"", b"\0" * 11, head(flags=0x8000) + b"\0\0\1\0\1", b"\0" * 1233])
def test_what_is_no_query_at_all_is_not_answered(packet: bytes) -> None:
    with pytest.raises(Unreadable):
        messages.parse_query(packet)


def test_a_dot_in_a_label_ends_no_label() -> None:
    query = messages.parse_query(head() + b"\x08web.shop\x06skerry\0\0\1\0\1")
    assert query.name == "web\\.shop.skerry"


def test_an_answer_without_records_has_the_authority_of_the_domain() -> None:
    query = messages.parse_query(question("web.shop.skerry", "AAAA"))
    for status, code in ((LookupStatus.FOUND, 0), (LookupStatus.UNKNOWN, messages.NXDOMAIN)):
        packet = messages.write_answer(query, ZoneAnswer(status), domain="skerry", ttl_s=5, serial=3)
        answer = parsed(packet)
        assert (answer.header.rcode, answer.header.aa, answer.auth[0].rdata.times) == (
            code,
            1,
            (3, 3600, 600, 86400, 5),
        )
        assert str(answer.auth[0].rname) == "skerry."


def test_an_answer_that_is_too_long_for_a_datagram_is_truncated() -> None:
    query = messages.parse_query(question("web.instances.shop.skerry"))
    records = tuple(Record(query.name, RecordType.A, f"10.64.0.{number}") for number in range(200))
    answer = messages.write_answer(
        query, ZoneAnswer(LookupStatus.FOUND, records), domain="skerry", ttl_s=5, serial=1
    )
    assert len(parsed(answer).rr) == messages.MAX_RECORDS
    cut = parsed(messages.fit(query, answer, query.limit))
    assert (cut.header.tc, cut.rr) == (1, [])


@pytest.mark.parametrize(
    "packet",
    [
        upstream(id=8),
        upstream("example.com"),
        question("example.org", id=9),  # no answer
        upstream()[:20],
        upstream()[:6] + b"\0\5" + upstream()[8:],  # more records than there are
        upstream()[:-4] + b"\0\2\0\1",  # of another type
        b"",
    ],
)
def test_an_answer_that_is_not_to_the_question_is_none(packet: bytes) -> None:
    with pytest.raises(Unreadable):
        messages.parse_upstream(packet, ASKED, 9)


def test_an_answer_is_relayed_with_records_of_any_type_and_ages() -> None:
    odd = dnslib.RR("example.org", 65280, rdata=dnslib.RD(b"\1\2\3"), ttl=300)
    plain = dnslib.RR("EXAMPLE.org", rdata=dnslib.A("192.0.2.7"), ttl=60)
    reply = messages.parse_upstream(upstream("example.org", odd, plain), ASKED, 9)
    assert reply.ttl_s == 60
    asked = messages.parse_query(question("Example.ORG", edns=1400, id=77))
    answer = parsed(messages.write_relayed(asked, reply, 50))
    assert [each.ttl for each in answer.rr] == [250, 10]
    assert bytes(answer.rr[0].rdata.data) == b"\1\2\3"
    assert (answer.header.id, str(answer.q.qname), answer.ar[0].rtype) == (
        77,
        "Example.ORG.",
        dnslib.QTYPE.OPT,
    )
    assert parsed(messages.write_relayed(ASKED, reply, 1000)).rr[0].ttl == 0


def test_the_edns_record_of_the_other_resolver_is_not_relayed() -> None:
    record = dnslib.DNSRecord.parse(
        upstream("example.org", dnslib.RR("example.org", rdata=dnslib.A("192.0.2.7")))
    )
    record.add_ar(dnslib.EDNS0(udp_len=4000))
    reply = messages.parse_upstream(bytes(record.pack()), ASKED, 9)
    assert parsed(messages.write_relayed(ASKED, reply, 0)).ar == []


def test_the_time_of_a_negative_answer_is_the_least_of_its_authority() -> None:
    record = dnslib.DNSRecord(dnslib.DNSHeader(id=9, qr=1, rcode=3), q=dnslib.DNSQuestion("example.org"))
    assert messages.parse_upstream(bytes(record.pack()), ASKED, 9).ttl_s == 0
    record.add_auth(
        dnslib.RR("org", dnslib.QTYPE.SOA, rdata=dnslib.SOA("a.org", "b.org", (1, 2, 3, 4, 30)), ttl=900)
    )
    assert messages.parse_upstream(bytes(record.pack()), ASKED, 9).ttl_s == 30


@given(st.binary(max_size=1300) | st.binary(max_size=300).map(lambda rest: head() + rest))
def test_no_packet_of_a_client_breaks_the_reader(packet: bytes) -> None:
    try:
        query = messages.parse_query(packet)
    except Unreadable:
        return
    assert len(messages.write_rcode(query, query.rcode)) <= len(packet) + 12
    if not query.rcode:
        found = ZoneAnswer(LookupStatus.FOUND, (Record(query.name, RecordType.A, "10.64.0.2"),))
        messages.write_answer(query, found, domain="skerry", ttl_s=5, serial=1)
        messages.write_answer(query, ZoneAnswer(LookupStatus.UNKNOWN), domain="skerry", ttl_s=5, serial=1)


@given(st.data())
def test_no_answer_of_another_resolver_breaks_the_reader(data: st.DataObject) -> None:
    records = [dnslib.RR("example.org", rdata=dnslib.A("192.0.2.7"), ttl=60)] * 3
    packet = bytearray(upstream("example.org", *records))
    for _ in range(data.draw(st.integers(0, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packet)))
    try:
        reply = messages.parse_upstream(bytes(packet[:cut]), ASKED, 9)
    except Unreadable:
        return
    answer = messages.write_relayed(ASKED, reply, 5)
    assert answer[:2] == question("example.org")[:2]
