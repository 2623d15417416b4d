"""Pulls images for guests: from registries only, without a login.

Images that are here because this machine has a login, or because somebody put them on its disk, are not
available to guests: the registry is asked each time, without a login, and must return manifest and
configuration. Layers that are here already are not fetched again, since the configuration has their digests.
An image pulled this way gets no name, so a guest cannot move anybody's `web:1`, and is removed with its last
user. `registry_policy` decides which hosts may be contacted.
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
    """Pulls without a login, separately from other pulls, and leaves only complete images."""

    keeps_layers = False

    def __init__(self, deps: PullDeps, policy: RegistryPolicy) -> None:
        super().__init__(deps)
        self._reach = policy
        # The image of each reference. A registry's "unchanged" counts for the same reference only: the
        # digests of other
        # images are no secret.
        self._resolved: dict[str, NameRecord] = {}

    async def _source(self, reference: ImageReference) -> ImageSource:
        assert isinstance(reference, RegistryReference)
        deps = self._deps
        return RegistrySource(reference, deps.settings, deps.clock, backoff=deps.backoff, policy=self._reach)

    def _find_unchanged(self, reference: ImageReference, version: str) -> ImageId | None:
        resolved = self._resolved.get(str(reference))
        is_same = resolved is not None and version != "" and resolved.version == version
        return resolved.image if resolved is not None and is_same and self._is_here(resolved) else None

    async def _save_name(self, name: NameRecord) -> None:
        self._resolved = {key: each for key, each in self._resolved.items() if self._is_here(each)}
        self._resolved[name.reference] = name

    def _is_here(self, name: NameRecord) -> bool:
        return self._deps.catalogue.get(name.image) is not None


def parse_for_guests(text: str) -> RegistryReference:
    """A reference without a registry is in Docker Hub: this machine's own default does not apply to
    guests."""
    parsed = references.parse(text)
    if not isinstance(parsed, RegistryReference) or references.is_id(text):
        raise errors.Invalid(
            f"image {text[:120]!r} is not an image in a registry, the only source for images of buyers; "
            "push it to one, and write it as `example.org/web:1.2`",
            field="image",
        )
    return parsed
