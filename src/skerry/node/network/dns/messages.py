"""DNS messages: queries of containers, answers to them, and exchanges with the machine's resolvers. Pure.

The library `dnslib` reads questions and writes messages. Before it sees a packet of a client, its size, the
counts in its header and the form of its name are checked here, so that no packet costs more than a short one.
Answers of other resolvers are relayed as they are, with records of any type: only their header, question,
times to live and EDNS record are looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import dnslib
from dnslib.label import DNSBuffer

from skerry.node.network.dns.zone import LookupStatus, Record, RecordType, SrvTarget, ZoneAnswer

MAX_QUERY: Final = 1232  # bytes; a longer one has no use
MAX_MESSAGE: Final = 65_535
UDP_SIZE: Final = 1232  # passes every link without fragments
CLASSIC_SIZE: Final = 512  # of clients without EDNS
HEADER: Final = 12
MAX_NAME: Final = 255
MAX_RECORDS: Final = 64  # of one answer

_HEADER = struct.Struct("!HHHHHH")
_FIXED = struct.Struct("!HHIH")  # type, class, time to live and length of a record, after its name
_QR, _AA, _TC, _RD, _RA, _AD, _CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
_OPCODE: Final = 0x7800
_DO: Final = 0x8000
_EDNS_SIZE: Final = 11  # of an EDNS record without options
_IN: Final = 1
_OPT: Final = 41
_SOA: Final = 6
_TRANSFERS: Final = (251, 252)

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)


class Unreadable(ValueError):
    """Not a message that can be answered."""


class Query(NamedTuple):
    """A question of a client. `name` is in lower case and without the final dot."""

    id: int
    flags: int
    name: str
    type: int
    klass: int
    question: bytes  # as it was sent
    udp_size: int = 0  # that the client takes; 0: it has no EDNS
    wants_dnssec: bool = False
    rcode: int = NOERROR  # the answer, if that is decided by the form of the query
    edns_version: int = 0
    has_options: bool = False  # of EDNS, such as a cookie

    @property
    def has_edns(self) -> bool:
        return self.udp_size > 0

    @property
    def is_recursive(self) -> bool:
        return bool(self.flags & _RD)

    @property
    def is_checking_disabled(self) -> bool:
        return bool(self.flags & _CD)

    @property
    def limit(self) -> int:
        """The size of a datagram that the client takes."""
        return min(max(self.udp_size, CLASSIC_SIZE), UDP_SIZE)


class UpstreamReply(NamedTuple):
    """A checked answer of another resolver, without its EDNS record."""

    wire: bytes
    question_end: int
    ttl_offsets: tuple[int, ...]
    ttl_s: int  # for how long it may be used; 0: only for those who wait for it
    rcode: int
    is_truncated: bool


def parse_query(packet: bytes) -> Query:
    """Raises Unreadable if nothing is to be answered."""
    if not HEADER <= len(packet) <= MAX_QUERY:
        raise Unreadable("its length")
    id, flags, questions, answers, authorities, extras = _HEADER.unpack_from(packet)
    if flags & _QR:
        raise Unreadable("it is an answer")
    if flags & _OPCODE:
        return Query(id, flags, "", 0, 0, b"", rcode=NOTIMP)
    refused = Query(id, flags, "", 0, 0, b"", rcode=FORMERR)
    if questions != 1 or answers or authorities or extras > 2:
        return refused
    try:
        end = _skip_name(packet, HEADER, takes_pointers=False) + 4
        if end > len(packet):
            return refused
        question = dnslib.DNSQuestion.parse(_buffer_at(packet, HEADER))
        size, ttl = _edns_of(packet, end, extras)
    except (Unreadable, dnslib.DNSError, RecursionError):
        return refused
    version = ttl >> 16 & 0xFF
    rcode = NOERROR
    if question.qclass != _IN:
        rcode = REFUSED if question.qclass in (3, 254, 255) else NOTIMP  # CHAOS has versions of servers
    elif question.qtype in _TRANSFERS:
        rcode = REFUSED
    return Query(
        id,
        flags,
        _text_of(question.qname),
        question.qtype,
        question.qclass,
        packet[HEADER:end],
        size,
        bool(ttl & _DO),
        rcode,
        version,
        len(packet) > end + (_EDNS_SIZE if size else 0),
    )


def _text_of(name: dnslib.DNSLabel) -> str:
    """In lower case. A dot in a label is no end of it, so that no name passes for another one."""
    return ".".join(label.decode().replace(".", "\\.") for label in name.label).lower()


def _buffer_at(packet: bytes, offset: int) -> DNSBuffer:
    buffer = DNSBuffer(packet)
    buffer.offset = offset
    return buffer


def _edns_of(packet: bytes, offset: int, records: int) -> tuple[int, int]:
    """The class and the time to live of the EDNS record: the size of a datagram, and flags."""
    for _ in range(records):
        end = _skip_name(packet, offset)
        type, klass, ttl, length = _fixed(packet, end)
        if type == _OPT:
            return max(klass, CLASSIC_SIZE), ttl
        offset = end + _FIXED.size + length
    return 0, 0


def _skip_name(packet: bytes, offset: int, *, takes_pointers: bool = True) -> int:
    """The offset behind the name at `offset`, whose pointers are not followed. Raises Unreadable."""
    start = offset
    while offset < len(packet) and offset - start < MAX_NAME:
        length = packet[offset]
        if length == 0:
            return offset + 1
        if length >= 0xC0:
            if not takes_pointers or offset + 2 > len(packet):
                break
            return offset + 2
        if length > 63:
            break
        offset += 1 + length
    raise Unreadable("a name")


def _fixed(packet: bytes, offset: int) -> tuple[int, int, int, int]:
    """Type, class, time to live and length of the record whose name ends at `offset`."""
    if offset + _FIXED.size > len(packet):
        raise Unreadable("a record")
    found: tuple[int, int, int, int] = _FIXED.unpack_from(packet, offset)
    return found


def write_rcode(query: Query, rcode: int) -> bytes:
    """An answer without records."""
    flags = _QR | query.flags & (_OPCODE | _RD | _CD) | _RA | rcode
    questions = 1 if query.question else 0
    if not query.has_edns:
        return _HEADER.pack(query.id, flags, questions, 0, 0, 0) + query.question
    return _HEADER.pack(query.id, flags, questions, 0, 0, 1) + query.question + _edns(query)


def write_truncated(query: Query) -> bytes:
    """An answer that asks the client to come again by TCP."""
    answer = bytearray(write_rcode(query, NOERROR))
    answer[2] |= _TC >> 8
    return bytes(answer)


def write_bad_version(query: Query) -> bytes:
    """An answer to a version of EDNS that there is not yet."""
    answer = bytearray(write_rcode(query, NOERROR))
    answer[-6] = 1  # the upper bits of the code 16
    return bytes(answer)


def _edns(query: Query) -> bytes:
    buffer = DNSBuffer()
    dnslib.EDNS0(flags="do" if query.wants_dnssec else "", udp_len=UDP_SIZE).pack(buffer)
    return bytes(buffer.data)


def write_answer(query: Query, answer: ZoneAnswer, *, domain: str, ttl_s: int, serial: int) -> bytes:
    """An answer of the zone `domain`; one without records has the domain's SOA, by which clients may remember
    that there are none."""
    rcode = NXDOMAIN if answer.status is LookupStatus.UNKNOWN else NOERROR
    header = dnslib.DNSHeader(id=query.id, bitmap=_QR | _AA | query.flags & (_RD | _CD) | _RA | rcode)
    message = dnslib.DNSRecord(header)
    question = dnslib.DNSQuestion.parse(_buffer_at(query.question, 0))
    message.add_question(question)
    own = question.qname  # as the client wrote it
    for record in answer.records[:MAX_RECORDS]:
        name = own if record.name == query.name else record.name
        message.add_answer(_resource(record, ttl_s, serial, domain, name))
    for record in answer.extra[:MAX_RECORDS]:
        message.add_ar(_resource(record, ttl_s, serial, domain))
    if not answer.records:
        soa = Record(_zone_of(query.name, domain), RecordType.SOA, f"ns.{domain}")
        message.add_auth(_resource(soa, ttl_s, serial, domain))
    if query.has_edns:
        message.add_ar(dnslib.EDNS0(flags="do" if query.wants_dnssec else "", udp_len=UDP_SIZE))
    return bytes(message.pack())


def _zone_of(name: str, domain: str) -> str:
    return domain if name == domain or name.endswith(f".{domain}") else name.partition(".")[2]


def _resource(
    record: Record, ttl_s: int, serial: int, domain: str, name: dnslib.DNSLabel | str = ""
) -> dnslib.RR:
    value = record.value
    match record.type:
        case RecordType.A:
            data: dnslib.RD = dnslib.A(value)
        case RecordType.AAAA:
            data = dnslib.AAAA(value)
        case RecordType.PTR:
            data = dnslib.PTR(_label(value))
        case RecordType.NS:
            data = dnslib.NS(_label(value))
        case RecordType.SRV:
            assert isinstance(value, SrvTarget)
            data = dnslib.SRV(0, 1, value.port, _label(value.name))
        case _:
            times = (serial & 0xFFFFFFFF, 3600, 600, 86_400, ttl_s)
            data = dnslib.SOA(_label(value), _label(f"hostmaster.{domain}"), times)
    return dnslib.RR(_label(name or record.name), int(record.type), ttl=ttl_s, rdata=data)


def _label(text: object) -> dnslib.DNSLabel:
    """By its bytes: names of clients may have any characters, and no encoding of them is wanted."""
    if isinstance(text, dnslib.DNSLabel):
        return text
    return dnslib.DNSLabel(str(text).encode())


def write_upstream_query(query: Query, id: int, *, has_edns: bool = True) -> bytes:
    """The same question for another resolver."""
    flags = _RD | query.flags & (_CD | _AD)
    head = _HEADER.pack(id, flags, 1, 0, 0, 1 if has_edns else 0)
    return head + query.question + (_edns(query) if has_edns else b"")


def parse_upstream(packet: bytes, query: Query, id: int) -> UpstreamReply:
    """Check an answer against its question. Raises Unreadable: it is none to that."""
    if not HEADER <= len(packet) <= MAX_MESSAGE:
        raise Unreadable("its length")
    own_id, flags, questions, answers, authorities, extras = _HEADER.unpack_from(packet)
    end = HEADER + len(query.question)
    if own_id != id or not flags & _QR or flags & _OPCODE or questions != 1:
        raise Unreadable("its header")
    if fold(packet[HEADER:end]) != fold(query.question):
        raise Unreadable("its question")
    is_truncated = bool(flags & _TC)
    offset, cut, ttls, offsets = end, len(packet), list[int](), list[int]()
    negative_s: int | None = None
    relayed = 0
    for number in range(answers + authorities + extras):
        if is_truncated:
            break  # it is asked for again, and not used
        behind = _skip_name(packet, offset)
        type, _, ttl, length = _fixed(packet, behind)
        after = behind + _FIXED.size + length
        if after > len(packet):
            raise Unreadable("a record")
        if type == _OPT:
            cut = offset  # it is between the two servers; what may follow is optional
            break
        offsets.append(behind + 4)
        if number < answers + authorities:
            ttls.append(0 if ttl & 0x80000000 else ttl)
        if answers <= number < answers + authorities and type == _SOA and length >= 22:
            minimum = int.from_bytes(packet[after - 4 : after], "big")
            negative_s = min(minimum, ttl)
        if number >= answers + authorities:
            relayed += 1
        offset = after
    rcode = flags & 0xF
    if rcode == NXDOMAIN or (rcode == NOERROR and not answers):
        ttl_s = negative_s or 0
    else:
        ttl_s = min(ttls, default=0) if rcode == NOERROR else 0
    wire = bytearray(packet[:cut])
    _HEADER.pack_into(wire, 0, 0, flags & ~_AA | _RA, 1, answers, authorities, relayed)
    return UpstreamReply(bytes(wire), end, tuple(offsets), ttl_s, rcode, is_truncated)


def fold(question: bytes) -> bytes:
    """Equal for questions that differ in the case of letters of their names only."""
    return question[:-4].lower() + question[-4:]


def write_relayed(query: Query, reply: UpstreamReply, age_s: int) -> bytes:
    """An answer of another resolver, for this client and after some time."""
    wire = bytearray(reply.wire)
    flags = int.from_bytes(wire[2:4], "big") & ~(_RD | _CD) | query.flags & (_RD | _CD)
    extras = int.from_bytes(wire[10:12], "big")
    _HEADER.pack_into(wire, 0, query.id, flags, 1, *_HEADER.unpack_from(wire)[3:5], extras + query.has_edns)
    wire[HEADER : reply.question_end] = query.question
    for offset in reply.ttl_offsets if age_s else ():
        ttl = int.from_bytes(wire[offset : offset + 4], "big")
        wire[offset : offset + 4] = max(0, ttl - age_s).to_bytes(4, "big")
    if query.has_edns:
        wire += _edns(query)
    return bytes(wire)


def fit(query: Query, answer: bytes, limit: int) -> bytes:
    """`answer`, or a truncated one if it is longer than the client takes."""
    return answer if len(answer) <= limit else write_truncated(query)


def with_id(answer: bytes, packet: bytes) -> bytes:
    """The same answer to another packet with the same question."""
    return packet[:2] + answer[2:]


def names(records: Iterable[Record]) -> list[str]:
    """The values of records as text, for people."""
    return [str(each.value) if isinstance(each.value, str) else each.value.name for each in records]
