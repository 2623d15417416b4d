"""Images for strangers whose containers run here: from registries only, as anybody could have them.

What is here because this machine has a login, or because somebody put it on its disk, is not for them: the
registry is asked each time, without a login, and must hand out the manifest and the configuration. Layers
that are here already need not come again, since the configuration names them by what is in them. An image
that came this way gets no name, so nobody's `web:1` moves because of a stranger, and goes with the last who
needs it. Which hosts may be asked is `registry_policy`'s to say.
"""

from __future__ import annotations

from skerry.model import errors
from skerry.model.images import ImageId
from skerry.node.images import references
from skerry.node.images.image_catalog import NameRecord
from skerry.node.images.puller import PullDeps, Puller
from skerry.node.images.references import ImageReference, RegistryReference
from skerry.node.images.registry_policy import RegistryPolicy
from skerry.node.images.registry_source import RegistrySource
from skerry.node.images.sources import ImageSource


class GuestPuller(Puller):
    """Pulls without a login, apart from the pulls of others, and leaves nothing but whole images."""

    keeps_parts = False

    def __init__(self, deps: PullDeps, reach: RegistryPolicy) -> None:
        super().__init__(deps)
        self._reach = reach
        # What each reference led to. A registry is believed that nothing changed since it said so of the same
        # reference, and no more: the digests of other images are no secret.
        self._given: dict[str, NameRecord] = {}

    async def _source(self, reference: ImageReference) -> ImageSource:
        assert isinstance(reference, RegistryReference)
        deps = self._deps
        return RegistrySource(reference, deps.settings, deps.clock, backoff=deps.backoff, reach=self._reach)

    def _known(self, reference: ImageReference, version: str) -> ImageId | None:
        given = self._given.get(str(reference))
        is_same = given is not None and version != "" and given.version == version
        return given.image if given is not None and is_same and self._is_here(given) else None

    async def _call(self, name: NameRecord) -> None:
        self._given = {key: each for key, each in self._given.items() if self._is_here(each)}
        self._given[name.reference] = name

    def _is_here(self, name: NameRecord) -> bool:
        return self._deps.catalogue.get(name.image) is not None


def parse_for_guests(text: str) -> RegistryReference:
    """A reference without a registry is in Docker Hub: this machine's own default is nobody else's."""
    parsed = references.parse(text)
    if not isinstance(parsed, RegistryReference) or references.is_id(text):
        raise errors.Invalid(
            f"image {text[:120]!r} is no image in a registry, and images of buyers come from nowhere else; "
            "push it to one, and write it as `example.org/web:1.2`",
            field="image",
        )
    return parsed
