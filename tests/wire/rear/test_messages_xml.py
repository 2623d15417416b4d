"""Messages in XML: what the schema accepts, what is read, and what is refused before it can do harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from skerry.model import errors
from skerry.wire.rear import messages, messages_xml
from skerry.wire.rear.documents import SelectorBody
from skerry.wire.rear.messages import SubscribeMessage, SubscriptionScope, UnsubscribeMessage
from tests.wire.rear.test_goldens import FOLDER, MESSAGES

SCHEMA = etree.XMLSchema(etree.fromstring(messages_xml.schema()))

# As REAR's document has them.
REFRESH = b"""<RefreshMessage>
    <Flavor>
        <!-- Details of the Flavor object that has been refreshed -->
        <FlavorID>string</FlavorID>
        <ProviderID>string</ProviderID>
        <FlavorType>string</FlavorType>
    </Flavor>
    <ModificationDetails>
        <FieldModified>string</FieldModified>
        <OldValue>string</OldValue>
        <NewValue>string</NewValue>
    </ModificationDetails>
</RefreshMessage>"""
WITHDRAW = b"""<WithdrawMessage>
    <Flavor>
        <FlavorID>string</FlavorID>
        <ProviderID>string</ProviderID>
        <FlavorType>string</FlavorType>
    </Flavor>
    <Reason>
        <Message>string</Message>
    </Reason>
</WithdrawMessage>"""

ASKED = [
    (b"<SubscribeMessage><All>true</All></SubscribeMessage>", SubscribeMessage(all=True)),
    (b"<SubscribeMessage><FlavorID>f-1</FlavorID></SubscribeMessage>", SubscribeMessage(flavor_id="f-1")),
    (
        b"<SubscribeMessage><SubscriptionID>a</SubscriptionID><FlavorType>vm</FlavorType>"
        b"<Resume>12</Resume></SubscribeMessage>",
        SubscribeMessage(subscription_id="a", flavor_type="vm", resume=12),
    ),
    (
        b"<SubscribeMessage><Selector><MoreThanCpu>2</MoreThanCpu><Partition><Cpu>1</Cpu></Partition></Selector>"
        b"</SubscribeMessage>",
        None,
    ),
    (
        "<SubscribeMessage><FlavorID>\n \xa0f\x85 </FlavorID></SubscribeMessage>".encode(),
        SubscribeMessage(flavor_id="\xa0f\x85"),
    ),
    (b"<SubscribeMessage><Selector/></SubscribeMessage>", SubscribeMessage(selector=SelectorBody())),
    (
        b"<!-- --><SubscribeMessage><SubscriptionID><![CDATA[<a>]]>&amp;</SubscriptionID>\n"
        b" <All>tr<!-- -->ue\n</All></SubscribeMessage>",
        SubscribeMessage(subscription_id="<a>&", all=True),
    ),
    (b"<UnsubscribeMessage><SubscriptionID>a</SubscriptionID></UnsubscribeMessage>", UnsubscribeMessage("a")),
]


@pytest.mark.parametrize("sample", [REFRESH, WITHDRAW, *(data for data, _ in ASKED)])
def test_the_schema_accepts_the_samples_of_the_document_and_what_clients_send(sample: bytes) -> None:
    assert SCHEMA.validate(etree.fromstring(sample)), SCHEMA.error_log


@pytest.mark.parametrize("name", MESSAGES)
def test_the_schema_accepts_what_is_written(name: str) -> None:
    document = etree.fromstring((FOLDER / f"message-{name}.xml").read_bytes())
    assert SCHEMA.validate(document), SCHEMA.error_log


@pytest.mark.parametrize(
    "sample",
    [
        REFRESH.replace(b"<ProviderID>string</ProviderID>", b""),
        WITHDRAW.replace(b"Message>", b"Note>"),
        b"<SubscribeMessage><All>true</All><FlavorID>f</FlavorID></SubscribeMessage>",
        b"<Other/>",
    ],
)
def test_the_schema_refuses_others(sample: bytes) -> None:
    assert not SCHEMA.validate(etree.fromstring(sample))


def asked(inside: str) -> bytes:
    return f"<SubscribeMessage>{inside}</SubscribeMessage>".encode()


def selected(inside: str) -> bytes:
    return asked(f"<Selector>{inside}</Selector>")


def scope_of(data: bytes) -> SubscriptionScope:
    message = messages_xml.decode(data)
    assert isinstance(message, SubscribeMessage)
    return message.scope()


@pytest.mark.parametrize(
    "data",
    [
        asked(""),
        asked("<FlavorID> </FlavorID>"),
        asked("<All>false</All>"),
        asked("<All>true</All><Resume>+1</Resume>"),
        asked("<All>true</All><Resume>-1</Resume>"),
        asked(f"<SubscriptionID>{'x' * 257}</SubscriptionID><All>true</All>"),
        asked('<All>true</All><o:Other xmlns:o="urn:o"/>'),
        asked('<All xmlns="urn:o">true</All>'),
        asked('<All kind="x">true</All>'),
        asked("everything<All>true</All>"),
        selected("<Cpu>-1</Cpu>"),
        selected("<Cpu>1.5</Cpu>"),
        selected("<Cpu>007</Cpu>"),
        selected("<Cpu>2147484</Cpu>"),
        selected("<MoreThanMemory>2147483648</MoreThanMemory>"),
        selected("<Partition><Count>0</Count></Partition>"),
        selected('<o:Other xmlns:o="urn:o"/>'),
        selected("<Limit>5</Limit>"),
        selected("<MaxPrice><Amount>-1</Amount><Currency>EUR</Currency></MaxPrice>"),
        selected("<MaxPrice><Amount>1</Amount><Currency>euro</Currency></MaxPrice>"),
        selected("<MaxPrice><Amount>1</Amount><Currency>EUR</Currency><Period>hour</Period></MaxPrice>"),
        selected("<MaxPrice/>"),
        b'<UnsubscribeMessage><o:Other xmlns:o="urn:o"/></UnsubscribeMessage>',
    ],
)
def test_what_is_refused_is_refused_by_the_schema_too(data: bytes) -> None:
    with pytest.raises(errors.Invalid):
        scope_of(data)
    assert not SCHEMA.validate(etree.fromstring(data))


@pytest.mark.parametrize(
    "data",
    [
        asked("<SubscriptionID/><FlavorID>f</FlavorID><Resume>9999999999999999999</Resume>"),
        asked("<All> 1 </All>"),
        selected("<MoreThanCpu>2147483</MoreThanCpu><LessThanEph>2147483647</LessThanEph>"),
        selected("<MaxPrice><Amount>0.10</Amount><Currency>EUR</Currency><Period>P1M</Period></MaxPrice>"),
        selected("<Partition/>"),
    ],
)
def test_what_is_valid_by_the_schema_is_understood(data: bytes) -> None:
    assert SCHEMA.validate(etree.fromstring(data)), SCHEMA.error_log
    assert scope_of(data)


@pytest.mark.parametrize(("data", "wanted"), ASKED)
def test_what_clients_send_is_read_as_in_json(data: bytes, wanted: object) -> None:
    found = messages_xml.decode(data)
    if wanted is None:
        in_json = {"SubscribeMessage": {"Selector": {"MoreThanCpu": 2, "Partition": {"Cpu": 1}}}}
        wanted = messages.decode(json.dumps(in_json).encode())
    assert found == wanted


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=12)
NUMBER = st.integers(0, 2**31 - 1)
SELECTOR = st.fixed_dictionaries(
    {},
    optional={
        "FlavorType": TEXT,
        "Cpu": st.integers(0, (2**31 - 1) // 1000),
        "MoreThanMemory": NUMBER,
        "LessThanEph": NUMBER,
        "MaxPrice": st.fixed_dictionaries(
            {"Amount": st.decimals("0", "1000", places=2).map(str), "Currency": st.just("EUR")}
        ),
        "Partition": st.fixed_dictionaries({}, optional={"Memory": NUMBER, "Count": st.integers(1, 99)}),
    },
)
SCOPES = st.one_of(
    st.fixed_dictionaries({"FlavorID": TEXT}),
    st.fixed_dictionaries({"FlavorType": TEXT}),
    st.fixed_dictionaries({"Selector": SELECTOR}),
    st.just({"All": True}),
)


def element(name: str, value: Any) -> etree._Element:
    made = etree.Element(name)
    if isinstance(value, dict):
        made.extend([element(inner, part) for inner, part in value.items()])
    else:
        made.text = str(value).lower() if isinstance(value, bool) else str(value)
    return made


@given(id=TEXT, scope=SCOPES, resume=st.none() | st.integers(0, 2**62))
def test_both_forms_of_a_message_say_the_same_and_are_valid(id: str, scope: Any, resume: int | None) -> None:
    fields = {"SubscriptionID": id, **scope} | ({} if resume is None else {"Resume": resume})
    root = element("SubscribeMessage", fields)
    assert SCHEMA.validate(root), SCHEMA.error_log
    read = messages.decode(json.dumps({"SubscribeMessage": fields}).encode())
    assert messages_xml.decode(etree.tostring(root, encoding="utf-8")) == read


BOMB = (
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "&%c;&%c;&%c;&%c;">' % ((n + 1, *[n] * 4)) for n in range(97, 110))
    + b"]><SubscribeMessage><FlavorID>&n;</FlavorID></SubscribeMessage>"
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (BOMB, "no DOCTYPE"),
        (BOMB.decode().encode("utf-16"), "DOCTYPE|not well-formed|namespace"),
        (
            b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><SubscribeMessage><FlavorID>&f;</FlavorID>'
            b"</SubscribeMessage>",
            "no DOCTYPE",
        ),
        (b"<!DOCTYPE x><SubscribeMessage/>", "no DOCTYPE"),
        (b"<SubscribeMessage><FlavorID>&f;</FlavorID></SubscribeMessage>", "not well-formed"),
        (b"<a>" * 9 + b"</a>" * 9, "inside each other"),
        (b"<a>" * 5000 + b"</a>" * 5000, "inside each other|not well-formed"),
        (b"<SubscribeMessage>" + b"<All/>" * 300 + b"</SubscribeMessage>", "at most 256 elements"),
        (b"<SubscribeMessage><All>true</All><All>true</All></SubscribeMessage>", "given twice"),
        (b'<SubscribeMessage x="1"/>', "no attributes"),
        (b'<SubscribeMessage xmlns="urn:x"><All>true</All></SubscribeMessage>', "no namespace"),
        (b"<SubscribeMessage>all<All>true</All></SubscribeMessage>", "elements and text"),
        (b"<SubscribeMessage><All>true</All>f-1</SubscribeMessage>", "elements and text"),
        (b"<Subscribe-Message/>", "none of SubscribeMessage"),
        ("<SubscribeMessage><All>true</All></SubscribeMessage>".encode("utf-16"), "not well-formed"),
        (
            b"<?xml version='1.0' encoding='iso-8859-1'?><SubscribeMessage><FlavorID>\xe9</FlavorID>"
            b"</SubscribeMessage>",
            "not well-formed",
        ),
        (b"<SubscribeMessage>", "not well-formed"),
        (b"", "not well-formed"),
        (b"\x00", "not well-formed"),
        (b"<SubscribeMessage><All>perhaps</All></SubscribeMessage>", "All"),
        (b"<SubscribeMessage><Resume>-1</Resume></SubscribeMessage>", "Resume"),
        (b"<SubscribeMessage><Selector><Cpu>1.5</Cpu></Selector></SubscribeMessage>", "Cpu"),
        (b"<RefreshMessage/>", "none of SubscribeMessage"),
        (b"<SubscribeMessage><Flavor>f</Flavor></SubscribeMessage>", "has no 'Flavor'"),
    ],
)
def test_what_is_wrong_or_dangerous_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        messages_xml.decode(data)


def test_what_is_too_large_is_not_even_parsed() -> None:
    with pytest.raises(errors.TooLarge):
        messages_xml.decode(b"<a>" + b" " * messages_xml.MAX_BYTES + b"</a>")
