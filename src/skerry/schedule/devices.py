"""Devices of nodes in placement: which of them a request gets, or which it lacks. Pure.

A device is held by one instance at a time, by its full name. The first free ones in the order in which the
node reports them are chosen, so that the same state gives the same choice.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from skerry.model.devices import DeviceRequest, is_of_kind, kind_of
from skerry.schedule.results import DevicesUnavailable


class DeviceChoice(NamedTuple):
    """The chosen devices, by name; or the first request that cannot be met, and then none."""

    devices: tuple[str, ...]
    lack: DevicesUnavailable | None = None


def choose(present: Sequence[str], taken: Container[str], requests: Sequence[DeviceRequest]) -> DeviceChoice:
    """Devices of a node that has `present`, of which `taken` are others', for all of `requests`."""
    chosen: dict[DeviceRequest, tuple[str, ...]] = {}
    chosen_names: set[str] = set()
    # Those by name first, then those of a kind: others can do with more.
    for request in sorted(requests, key=lambda request: (not request.name, "/" not in request.kind)):
        free = [device for device in present if device not in taken and device not in chosen_names]
        found = _named(free, request) if request.name else _counted(free, request)
        if len(found) < request.count:
            return DeviceChoice((), _lack(present, request, len(found)))
        chosen[request] = found
        chosen_names.update(found)
    return DeviceChoice(tuple(device for request in requests for device in chosen[request]))


def _named(free: Sequence[str], request: DeviceRequest) -> tuple[str, ...]:
    device = str(request)
    return (device,) if device in free else ()


def _counted(free: Sequence[str], request: DeviceRequest) -> tuple[str, ...]:
    """Of one kind, also if only a class is requested: the kind with enough, or else with the most."""
    of_kind: dict[str, list[str]] = {}
    for device in free:
        if is_of_kind(device, request.kind):
            of_kind.setdefault(kind_of(device), []).append(device)
    found: list[str] = []
    for kind in sorted(of_kind):
        if len(of_kind[kind]) >= request.count:
            return tuple(of_kind[kind][: request.count])
        if len(of_kind[kind]) > len(found):
            found = of_kind[kind]
    return tuple(found)


def _lack(present: Sequence[str], request: DeviceRequest, free: int) -> DevicesUnavailable:
    if request.name:
        device = str(request)
        return DevicesUnavailable(device, 1, free, int(device in present))
    there = sum(is_of_kind(device, request.kind) for device in present)
    return DevicesUnavailable(request.kind, request.count, free, there)
