"""Links of the continuum that refuse nobody, for whoever tests or measures something else."""

from __future__ import annotations

from collections.abc import Callable

from skerry.model.ids import NodeId


class OpenAccess:
    """Everybody may have a link: `skerry.transport.links.members.link_identity.LinkAccess`."""

    def is_revoked(self, serial: str) -> bool:
        return False

    def is_member(self, node: NodeId) -> bool:
        return True

    def listen(self, changed: Callable[[], None]) -> None:
        """That never changes."""
