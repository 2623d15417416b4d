"""Devices: what nodes have beside processors, memory and disk, such as GPUs, by the names of CDI.

The Container Device Interface (CDI) names a device `KIND=NAME`, where a kind is `VENDOR/CLASS`:
`nvidia.com/gpu=0`. A spec requests one by that name, or a number of a kind or of a class; the scheduler
assigns devices by name, each to one instance at a time. What a device means for a container is known on its
node alone (`skerry.node.devices`).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from skerry.model import errors

MAX_REQUESTS = 16  # in one spec
MAX_DEVICES = 1024  # that a node reports
MAX_COUNT = MAX_DEVICES  # of one request
_MAX_KIND = 128
_MAX_NAME = 128
_VENDOR: Final = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_CLASS: Final = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KIND: Final = re.compile(rf"{_VENDOR}/{_CLASS}")
_KIND_OR_CLASS: Final = re.compile(rf"(?:{_VENDOR}/)?{_CLASS}")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_COUNT: Final = re.compile(r"[0-9]{1,4}")


def is_kind(text: str) -> bool:
    """True for `VENDOR/CLASS`, by the rules of CDI."""
    return len(text) <= _MAX_KIND and _KIND.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True for the name of a device within its kind."""
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def check_device(text: str) -> str:
    """A device by its full name, `KIND=NAME`."""
    kind, equals, name = text.partition("=")
    if not (equals and is_kind(kind) and is_name(name)):
        raise errors.Invalid(
            f"{text[:80]!r} is no device; devices are VENDOR/CLASS=NAME, as in nvidia.com/gpu=0",
            field="devices",
        )
    return text


def kind_of(device: str) -> str:
    """`nvidia.com/gpu` of `nvidia.com/gpu=0`."""
    return device.partition("=")[0]


def is_of_kind(device: str, kind: str) -> bool:
    """True if the device is of this kind, or class if that is all that `kind` names."""
    own = kind_of(device)
    return own == kind if "/" in kind else own.partition("/")[2] == kind


class DeviceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """So many devices of a kind or class, or the one of a name."""

    kind: str  # `nvidia.com/gpu`, or only a class: `gpu`
    count: int = 1
    name: str = ""  # the only one that will do; empty: any

    def __post_init__(self) -> None:
        if len(self.kind) > _MAX_KIND or not _KIND_OR_CLASS.fullmatch(self.kind):
            raise errors.Invalid(
                f"{self.kind[:80]!r} is no kind of devices; write VENDOR/CLASS, as in nvidia.com/gpu, or a "
                "class alone, as in gpu",
                field="devices",
            )
        if self.name:
            check_device(f"{self.kind}={self.name}")
        if not 1 <= self.count <= (1 if self.name else MAX_COUNT):
            raise errors.Invalid(f"a request is for 1 to {MAX_COUNT} devices of a kind", field="devices")

    def __str__(self) -> str:
        if self.name:
            return f"{self.kind}={self.name}"
        return self.kind if self.count == 1 else f"{self.kind}:{self.count}"

    @classmethod
    def parse(cls, text: str) -> DeviceRequest:
        """`nvidia.com/gpu` for one of a kind, `nvidia.com/gpu:2` for two, `gpu:2` for two of any one vendor,
        `nvidia.com/gpu=0` for the one of that name."""
        kind, equals, name = text.partition("=")
        if equals:
            check_device(text)
            return cls(kind, name=name)
        kind, colon, count = text.partition(":")
        if colon and not _COUNT.fullmatch(count):
            raise errors.Invalid(
                f"{text[:80]!r} is no request for devices; write KIND, KIND:COUNT or KIND=NAME, as in "
                "nvidia.com/gpu:2 or nvidia.com/gpu=0",
                field="devices",
            )
        return cls(kind, int(count) if colon else 1)


def check_requests(requests: tuple[DeviceRequest, ...]) -> None:
    """Raise if there are too many, or two of the same kind or name."""
    if len(requests) > MAX_REQUESTS:
        raise errors.Invalid(f"at most {MAX_REQUESTS} requests for devices", field="devices")
    keys = [(request.kind, request.name) for request in requests]
    if len(set(keys)) < len(keys):
        raise errors.Invalid(
            "the same kind or device is requested twice; request it once, with a count", field="devices"
        )
