"""Answers from the zone, from memory and through other resolvers, without sockets of clients."""

from __future__ import annotations

import asyncio

import dnslib

from skerry.kit.clock import ManualClock
from skerry.node.network.dns.budgets import ClientLimit, WorkBudget
from skerry.node.network.dns.reply_cache import ReplyCache
from skerry.node.network.dns.resolver import Client
from tests.node.network.dns import resolvers
from tests.node.network.dns.objects import endpoint, instance, put, service
from tests.node.network.dns.resolvers import (
    LOCAL,
    answering,
    fake_resolver,
    parsed,
    question,
    rcode,
    values,
)


async def test_a_name_of_the_zone_follows_every_change_at_once() -> None:
    parts = resolvers.make()
    for address in ("10.64.0.2", "10.64.0.3"):
        put(parts.zone, instance("web", address))
        for _ in range(2):  # the second is remembered
            assert values(await parts.ask(question("web.shop.skerry"))) == [address]
    answer = parsed(await parts.ask(question("web.shop.skerry", id=99)))
    assert (answer.header.id, answer.header.aa, answer.header.ra, answer.rr[0].ttl) == (99, 1, 1, 5)


async def test_an_unknown_name_is_a_failure_while_the_node_may_have_missed_it() -> None:
    parts = resolvers.make()
    put(parts.zone, instance("web", "10.64.0.2"))
    parts.is_confirmed = False
    assert rcode(await parts.ask(question("other.shop.skerry"))) == "SERVFAIL"
    assert values(await parts.ask(question("web.shop.skerry"))) == ["10.64.0.2"]
    assert rcode(await parts.ask(question("web.shop.skerry", "AAAA"))) == "NOERROR"
    parts.is_confirmed = True
    assert rcode(await parts.ask(question("other.shop.skerry"))) == "NXDOMAIN"


async def test_many_copies_come_in_changing_order_and_not_all_at_once() -> None:
    clock = ManualClock()
    parts = resolvers.make(clock=clock)
    copies = [endpoint(f"10.64.{number // 200}.{number % 200 + 2}", number) for number in range(300)]
    put(parts.zone, service("web", *copies))
    client = Client("10.64.0.9", "10.64.0.1", 65535)
    orders = set()
    for _ in range(3):
        answer = parsed(await parts.ask(question("web.instances.shop.skerry"), client))
        assert len(answer.rr) == 64
        orders.add(tuple(str(each.rdata) for each in answer.rr))
        clock.advance(1.5)
    assert len(orders) == 3
    assert parsed(await parts.ask(question("web.instances.shop.skerry"))).header.tc


async def test_another_name_is_asked_for_once_and_ages() -> None:
    clock = ManualClock()
    async with fake_resolver(answering(ttl=60)) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port, clock=clock)
        answers = await asyncio.gather(*(parts.ask(question("example.org", id=id)) for id in range(20)))
        assert {tuple(values(each)) for each in answers} == {("192.0.2.7",)}
        assert {parsed(each).header.id for each in answers} == set(range(20))
        clock.advance(20)
        assert parsed(await parts.ask(question("EXAMPLE.org"))).rr[0].ttl == 40
        assert fake.asked == ["example.org."]
        clock.advance(41)
        await parts.ask(question("example.org"))
        assert len(fake.asked) == 2
        await parts.resolver.close()


async def test_names_of_the_domain_never_leave_the_node() -> None:
    async with fake_resolver(answering()) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port)
        put(parts.zone, instance("web", "10.64.0.2"))
        parts.is_confirmed = False
        for name in (
            "web.shop.skerry",
            "nope.shop.skerry",
            "skerry",
            "nope.fn.shop.skerry",
            "2.0.64.10.in-addr.arpa",
        ):
            await parts.ask(question(name))
        assert fake.asked == []
        await parts.resolver.close()


async def test_a_negative_answer_is_remembered_as_long_as_its_authority_says() -> None:
    clock = ManualClock()

    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        reply = record.reply()
        reply.header.rcode = dnslib.RCODE.NXDOMAIN
        soa = dnslib.SOA("ns.org", "host.org", (1, 2, 3, 4, 30))
        reply.add_auth(dnslib.RR("org", dnslib.QTYPE.SOA, rdata=soa, ttl=900))
        return bytes(reply.pack())

    async with fake_resolver(play) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port, clock=clock)
        for wait_s, count in ((0, 1), (29, 1), (2, 2)):
            clock.advance(wait_s)
            assert rcode(await parts.ask(question("nope.org"))) == "NXDOMAIN"
            assert len(fake.asked) == count
        await parts.resolver.close()


async def test_a_resolver_that_refuses_or_fails_is_followed_by_the_next() -> None:
    def fail(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        reply = record.reply()
        reply.header.rcode = dnslib.RCODE.SERVFAIL
        return bytes(reply.pack())

    async with (
        fake_resolver(fail, "127.0.0.2") as failing,
        fake_resolver(answering(), LOCAL, failing.port) as fake,
    ):
        # Nothing listens on the first.
        parts = resolvers.make(resolvers=["127.0.0.3", "127.0.0.2", LOCAL], port=fake.port)
        assert values(await parts.ask(question("example.org"))) == ["192.0.2.7"]
        assert len(failing.asked) == 1
        await parts.ask(question("example.com"))
        assert len(failing.asked) == 1, "the one that answered is asked first"
        await parts.resolver.close()


async def test_without_any_resolver_it_is_a_failure_and_not_no() -> None:
    parts = resolvers.make(resolvers=["127.0.0.3"])
    assert rcode(await parts.ask(question("example.org"))) == "SERVFAIL"
    assert rcode(await resolvers.make().ask(question("example.org"))) == "SERVFAIL"
    await parts.resolver.close()


async def test_an_answer_that_does_not_fit_a_datagram_is_fetched_by_tcp() -> None:
    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        reply = record.reply()
        if not is_tcp:
            reply.header.tc = 1
            return bytes(reply.pack())
        for number in range(200):
            reply.add_answer(dnslib.RR(record.q.qname, rdata=dnslib.A(f"192.0.2.{number}"), ttl=9))
        return bytes(reply.pack())

    async with fake_resolver(play) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port)
        assert parsed(await parts.ask(question("example.org"))).header.tc
        assert len(values(await parts.ask(question("example.org"), Client("c", "h", 65535)))) == 200
        await parts.resolver.close()


async def test_forged_answers_are_ignored_and_every_question_has_its_own_port_and_id() -> None:
    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes | None:
        fake = record.reply()
        fake.header.id ^= 1
        fake.add_answer(dnslib.RR(record.q.qname, rdata=dnslib.A("203.0.113.66"), ttl=9999))
        other = parsed(question("evil.example", id=record.header.id)).reply()
        assert sender._transport is not None
        for forged in (fake, other):
            sender._transport.sendto(bytes(forged.pack()), ("127.0.0.1", max(sender.ports)))
        return answering()(record, is_tcp)

    async with fake_resolver(play) as sender:
        parts = resolvers.make(resolvers=[LOCAL], port=sender.port)
        for number in range(20):
            sender.ports.clear()
            assert values(await parts.ask(question(f"a{number}.example.org"))) == ["192.0.2.7"]
        assert len(sender.ids) > 15
        await parts.resolver.close()


async def test_a_dotted_label_poisons_no_other_name() -> None:
    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        if len(record.q.qname.label) == 3:
            return answering()(record, is_tcp)
        reply = record.reply()
        reply.header.rcode = dnslib.RCODE.NXDOMAIN
        soa = dnslib.SOA("ns.org", "host.org", (1, 2, 3, 4, 300))
        reply.add_auth(dnslib.RR("org", dnslib.QTYPE.SOA, rdata=soa, ttl=900))
        return bytes(reply.pack())

    async with fake_resolver(play) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port)
        evil = bytes(dnslib.DNSRecord(q=dnslib.DNSQuestion(dnslib.DNSLabel([b"www.example", b"org"]))).pack())
        assert rcode(await parts.ask(evil)) == "NXDOMAIN"
        assert values(await parts.ask(question("www.example.org"))) == ["192.0.2.7"]
        await parts.resolver.close()


async def test_a_resolver_without_edns_is_asked_without() -> None:
    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        if not record.ar:
            return answering()(record, is_tcp)
        reply = record.reply()
        reply.header.rcode = dnslib.RCODE.FORMERR
        return bytes(reply.pack())

    async with fake_resolver(play) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port)
        assert values(await parts.ask(question("example.org"))) == ["192.0.2.7"]
        await parts.resolver.close()


async def test_questions_without_recursion_are_for_the_zone_only() -> None:
    parts = resolvers.make(resolvers=[LOCAL])
    record = dnslib.DNSRecord.question("example.org")
    record.header.rd = 0
    assert rcode(await parts.ask(bytes(record.pack()))) == "REFUSED"


async def test_one_client_cannot_use_up_what_others_may_cause() -> None:
    clock = ManualClock()
    parts = resolvers.make(clock=clock, rate=100)
    put(parts.zone, instance("web", "10.64.0.2"))
    greedy, modest = Client("10.64.0.8", "10.64.0.1"), Client("10.64.0.9", "10.64.0.1")
    answers: list[bytes] = []
    for _ in range(10_000):
        parts.resolver.handle(question("web.shop.skerry"), greedy, answers.append)
    assert 150 < len(answers) < 210, "what a burst of two seconds is"
    assert await parts.ask(question("web.shop.skerry"), modest)
    clock.advance(1)
    answers.clear()
    for number in range(1000):
        parts.resolver.handle(question(f"x{number}.shop.skerry"), greedy, answers.append)
    assert len(answers) < 30, "answers that must be written cost more"


async def test_questions_that_wait_are_limited_for_each_client() -> None:
    async with fake_resolver(lambda record, is_tcp: None) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port)
        taken = [
            parts.resolver.handle(question(f"x{number}.org"), parts.client, lambda answer: None)
            for number in range(200)
        ]
        assert sum(taken) == 64
        assert parts.resolver.handle(
            question("y.org"), Client("10.64.0.10", "10.64.0.1"), lambda answer: None
        )
        await parts.resolver.close()


async def test_memory_is_bounded() -> None:
    cache = ReplyCache(50, 20_000)
    async with fake_resolver(answering()) as fake:
        parts = resolvers.make(resolvers=[LOCAL], port=fake.port, cache=cache)
        for number in range(120):
            await parts.ask(question(f"x{number}.org"))
        assert len(cache) <= 50
        assert cache.size <= 20_000
        for number in range(4200):
            parts.resolver.handle(question(f"x{number}.shop.skerry"), parts.client, lambda answer: None)
        assert len(parts.resolver._memory) <= 4096
        await parts.resolver.close()
    cache.clear()
    assert cache.size == 0


def test_tokens_come_back_and_all_clients_share_a_limit() -> None:
    budget = WorkBudget(10, 30)
    assert [budget.admit("a", 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert budget.admit("a", 0.2)
    budget.charge("a", 50)
    assert not budget.admit("a", 1.0)
    assert sum(budget.admit(f"c{number}", 1.0) for number in range(100)) < 60
    for number in range(10_000):
        budget.admit(f"d{number}", 100.0)
    assert len(budget._clients) <= 4096


def test_places_are_counted_for_each_client_and_in_all() -> None:
    places = ClientLimit(2, 3)
    assert [places.acquire(each) for each in "aaabc"] == [True, True, False, True, False]
    places.release("a")
    assert places.acquire("c")
    for each in "abc":
        places.release(each)
    assert (places.total, places._counts) == (0, {})
