"""The messages of the WebSocket in XML, with the document's elements.

Parsing is hardened: no DOCTYPE and so no entities, nothing is fetched, and size, depth and count of elements
are limited. Elements have no namespace, as in the document. `rear.xsd` describes all of it. Pure.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skerry.model import errors
from skerry.wire.rear import messages
from skerry.wire.rear.messages import ClientSubscriptionMessage, ServerSubscriptionMessage

if TYPE_CHECKING:
    from lxml import etree  # imported with the first message in XML

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 8
MAX_ELEMENTS: Final = 256
_BLANK: Final = " \t\r\n"  # of XML; other spaces are text
_OBJECTS: Final = ("selector", "partition", "maxprice")  # that mean something also if they are empty


def schema() -> bytes:
    """The XML schema of all messages."""
    return resources.files(__package__).joinpath("rear.xsd").read_bytes()


def encode(message: ServerSubscriptionMessage) -> bytes:
    """The message as XML."""
    from lxml import etree

    root = _element(type(message).__name__, msgspec.to_builtins(message))
    return bytes(etree.tostring(root, encoding="utf-8"))


def _element(name: str, value: Any) -> etree._Element:
    from lxml import etree

    element = etree.Element(name)
    if isinstance(value, dict):
        for inner, part in value.items():
            # A second spelling of a name in lower case is for JSON only.
            if part is None or inner[:1].islower():
                continue
            for one in part if isinstance(part, list) else [part]:
                element.append(_element(inner, one))
    else:
        element.text = messages.xml_text(value)
    return element


def decode(data: bytes) -> ClientSubscriptionMessage:
    """A message of a client; `Invalid` if it is none."""
    root = parse_xml(data)
    return messages.decode_message({root.tag: _value(root)}, strict=False)


def parse_xml(data: bytes) -> etree._Element:
    """The root of a document within the limits and without references."""
    if len(data) > MAX_BYTES:
        raise errors.TooLarge(f"a message may have at most {MAX_BYTES} bytes; send less")
    from lxml import etree

    parser = etree.XMLParser(
        encoding="utf-8",  # always, whatever the declaration says: another encoding could hide something
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    # Before anything is parsed: a document type allows entity bombs and references to local files.
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise errors.Invalid("a message has no DOCTYPE and no entities; leave them out")
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        if "Excessive depth" in error.msg:  # the parser's own limit, which is higher than ours
            raise _too_much() from None
        raise errors.Invalid(f"not well-formed XML: {' '.join(error.msg.split())}") from None
    except ValueError as error:
        raise errors.Invalid(f"not well-formed XML: {error}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise errors.Invalid("a message has no DOCTYPE and no entities; leave them out")
    _check_bounds(root)
    return root


def _too_much() -> errors.Invalid:
    return errors.Invalid(
        f"a message has at most {MAX_ELEMENTS} elements, {MAX_DEPTH} of them inside each other"
    )


def _check_bounds(root: etree._Element) -> None:
    seen = 0
    waiting = [(root, 1)]
    while waiting:
        element, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_ELEMENTS:
            raise _too_much()
        # `{` before a namespace; what is no element, such as a reference to an entity, has a `<function>`.
        if str(element.tag).startswith(("{", "<")) or element.attrib:
            raise errors.Invalid("elements of a message have no namespace and no attributes")
        if len(element) and any(
            (text or "").strip(_BLANK) for text in (element.text, *(e.tail for e in element))
        ):
            raise errors.Invalid(f"<{element.tag[:40]}> has elements and text; leave the text out")
        waiting += [(inner, depth + 1) for inner in element]


def _value(element: etree._Element) -> Any:
    if not len(element):
        text = (element.text or "").strip(_BLANK)
        return text or ({} if element.tag.lower() in _OBJECTS else None)
    found: dict[str, Any] = {}
    for inner in element:
        if inner.tag in found:
            raise errors.Invalid(f"<{inner.tag}> is given twice; give it once", field=str(inner.tag))
        found[str(inner.tag)] = _value(inner)
    return found
