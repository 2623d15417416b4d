"""Who may name which image: one from a path on the node takes an admin.

Whoever names the path can read what is there, on whichever node the instance comes to be. Where images come
from otherwise is `skerry.node.images`' matter.
"""

from __future__ import annotations

from skerry.model import errors
from skerry.model.identity import Caller, Role
from skerry.node.images import references


def check_image(uri: str, caller: Caller) -> None:
    """Raise unless `uri` names an image and `caller` may have it."""
    is_path = not isinstance(references.parse(uri), references.RegistryReference)
    if is_path and caller.role is not Role.ADMIN:
        raise errors.Forbidden(
            "only an admin may use an image from a path on the node; push it to a registry"
        )
