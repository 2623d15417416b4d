"""Which of the images in an index this machine can run, and which of those it runs best.

Pure. A variant is a step of an architecture: a machine runs images of its own step and of the older ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from skerry.model.images import Platform

_STEP = re.compile(r"v([0-9]{1,2})")
# What a missing variant stands for.
_USUAL_STEP = {"amd64": 1, "arm64": 8, "arm": 7}
# Names that some tools write, by machines' and by distributions' words.
_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "armel": "arm"}


def canonical(platform: Platform) -> Platform:
    """The same platform in the usual words."""
    architecture = platform.architecture.lower()
    return Platform(
        platform.system.lower(), _ARCHITECTURES.get(architecture, architecture), platform.variant.lower()
    )


def fitness(machine: Platform, image: Platform) -> int | None:
    """How well `machine` runs an image for `image`: more is better, None is not at all."""
    machine, image = canonical(machine), canonical(image)
    if (machine.system, machine.architecture) != (image.system, image.architecture):
        return None
    able, wanted = _step(machine), _step(image)
    if able is None or wanted is None:  # variants that are no steps
        return 0 if machine.variant == image.variant or not image.variant else None
    return wanted if wanted <= able else None


def choose(machine: Platform, offered: Iterable[Platform]) -> int | None:
    """The place in `offered` of what `machine` runs best, the first of equals; None if it runs none."""
    fits = [
        (fit, place) for place, image in enumerate(offered) if (fit := fitness(machine, image)) is not None
    ]
    return min(fits, key=lambda pair: (-pair[0], pair[1]))[1] if fits else None


def _step(platform: Platform) -> int | None:
    if not platform.variant:
        return _USUAL_STEP.get(platform.architecture)
    step = _STEP.fullmatch(platform.variant)
    return int(step[1]) if step else None
