"""Ids and names: one type per kind of id, and the rules for names.

The types differ only for the type checker; at run time an id is a `str`. Every record checks its names when
it is created, so an existing one has valid ones. A name is accepted as it is or refused; it is never
repaired, so that one object never has two names.
"""

from __future__ import annotations

import re
from typing import NewType

from skerry.model import errors

NodeId = NewType("NodeId", str)
CellName = NewType("CellName", str)  # see `skerry.model.cells`
ExecutableName = NewType("ExecutableName", str)
WorkloadId = NewType("WorkloadId", str)
InstanceId = NewType("InstanceId", str)
ServiceId = NewType("ServiceId", str)
JobId = NewType("JobId", str)
ScheduleId = NewType("ScheduleId", str)
VolumeId = NewType("VolumeId", str)
FunctionName = NewType("FunctionName", str)
CloudId = NewType("CloudId", str)  # a buyer or a provider
OfferId = NewType("OfferId", str)
HoldId = NewType("HoldId", str)
ContractId = NewType("ContractId", str)
TokenId = NewType("TokenId", str)
Namespace = NewType("Namespace", str)  # of workloads and instances
Digest = NewType("Digest", str)  # "sha256:" and 64 hex digits

MAX_ID = 128
MAX_NAMESPACE = 63
NAMESPACE_PATTERN = r"[a-z](?:[a-z0-9-]*[a-z0-9])?"
DEFAULT_NAMESPACE = Namespace("default")
MARKET_NAMESPACE = Namespace("market")  # of the cells of contracts, which the market alone makes
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REQUEST_ID_PATTERN = r"[A-Za-z0-9._:/+=@-]{1,64}"
_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)


def check_id(text: str, field: str = "id") -> str:
    """A text that may be one segment of a path, a key or a file name."""
    if len(text) > MAX_ID or not _WORD.fullmatch(text):
        raise errors.Invalid(
            f"{field} {text[:MAX_ID]!r} must be 1 to {MAX_ID} letters, digits, '.', '_' or '-', "
            "and begin and end with a letter or digit",
            field=field,
        )
    return text


def check_namespace(text: str) -> Namespace:
    """A name for what belongs together. It is no id of ours: those begin with a digit."""
    if len(text) > MAX_NAMESPACE or not _NAMESPACE.fullmatch(text):
        raise errors.Invalid(
            f"namespace {text[:MAX_NAMESPACE]!r} must be 1 to {MAX_NAMESPACE} lower-case letters, digits or "
            "'-', and begin with a letter and end with a letter or digit",
            field="namespace",
        )
    return Namespace(text)


def check_display_text(text: str, field: str) -> str:
    """A line for people: at most 256 printable characters, and possibly none."""
    if len(text) > 256 or not text.isprintable():
        raise errors.Invalid(f"{field} must be at most 256 printable characters on one line", field=field)
    return text


def is_request_id(text: str) -> bool:
    """True if a client may choose this as a request id; otherwise the request gets another one."""
    return _REQUEST_ID.fullmatch(text) is not None


def check_digest(text: str, field: str = "digest") -> Digest:
    """The SHA-256 of some content, as registries write it."""
    if not _DIGEST.fullmatch(text):
        raise errors.Invalid(f"{field} must be `sha256:` and 64 lower-case hex digits", field=field)
    return Digest(text)
