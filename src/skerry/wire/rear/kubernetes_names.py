"""Names of flavors and clouds for the public program, whose clients create Kubernetes objects named by ids.

An id that is a valid name in Kubernetes is its own name. Any other gets a derived one: in lower case, with
`-` for invalid characters, and a digest, so that two ids never share a name. A reservation may use either.
Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from skerry.model.ids import CloudId, OfferId

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_DIGITS: Final = 10
_MADE: Final = re.compile(rf"[a-z0-9-]+-[0-9a-f]{{{_DIGITS}}}")


def kubernetes_name(id: OfferId | CloudId | str) -> str:
    """The name of a flavor or a cloud, valid in Kubernetes."""
    if not id or _NAME.fullmatch(id):
        return id
    digest = hashlib.sha256(id.encode()).hexdigest()[:_DIGITS]
    return f"{_OTHER.sub('-', id.lower()).lstrip('-') or 'id'}-{digest}"


def find_flavor_id(name: str, flavors: Iterable[OfferId]) -> OfferId:
    """The one of `flavors` with this name, or else the name as an id; `flavors` is only searched for names
    that may be derived."""
    if _MADE.fullmatch(name):
        return next((flavor for flavor in flavors if name == kubernetes_name(flavor)), OfferId(name))
    return OfferId(name)
