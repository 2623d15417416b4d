"""Chooses the best image of an index for this machine. Pure.

Variants of an architecture are ordered: a machine runs images of its own variant and of older ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from skerry.model.images import Platform

_STEP = re.compile(r"v([0-9]{1,2})")
# Meaning of a missing variant.
_USUAL_STEP = {"amd64": 1, "arm64": 8, "arm": 7}
# Aliases that some tools and distributions write.
_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "armel": "arm"}


def canonical(platform: Platform) -> Platform:
    """The same platform with canonical names."""
    architecture = platform.architecture.lower()
    return Platform(
        platform.system.lower(), _ARCHITECTURES.get(architecture, architecture), platform.variant.lower()
    )


def fitness(machine: Platform, image: Platform) -> int | None:
    """How well `machine` runs an image for `image`: higher is better, None is not at all."""
    machine, image = canonical(machine), canonical(image)
    if (machine.system, machine.architecture) != (image.system, image.architecture):
        return None
    supported, required = _step(machine), _step(image)
    if supported is None or required is None:  # variants without an order
        return 0 if machine.variant == image.variant or not image.variant else None
    return required if required <= supported else None


def choose(machine: Platform, offered: Iterable[Platform]) -> int | None:
    """The index in `offered` of the best one for `machine`, the first of equals; None if it runs none."""
    fits = [
        (fit, position)
        for position, image in enumerate(offered)
        if (fit := fitness(machine, image)) is not None
    ]
    return min(fits, key=lambda pair: (-pair[0], pair[1]))[1] if fits else None


def _step(platform: Platform) -> int | None:
    if not platform.variant:
        return _USUAL_STEP.get(platform.architecture)
    step = _STEP.fullmatch(platform.variant)
    return int(step[1]) if step else None
