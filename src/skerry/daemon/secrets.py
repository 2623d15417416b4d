"""Secrets of this process: sealed in the store, delivered to nodes, followed by their users.

Called by `skerry.daemon.server_role` and `skerry.daemon.control_plane`. The key is in `pki/secrets.key`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from skerry.control.instance_index import InstanceTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.secrets.delivery import SecretDeliveries
from skerry.control.secrets.followers import SecretFollower, SecretFollowing
from skerry.control.secrets.key_file import NAME, SecretKeyFile
from skerry.control.secrets.registry import SecretRegistry
from skerry.control.secrets.rotation import KeyRotation
from skerry.control.secrets.users import SecretUser, SecretUsers
from skerry.control.secrets.vault import SecretVault
from skerry.daemon.server_base import ServerBase
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model import errors
from skerry.model.ids import Namespace, NodeId
from skerry.model.secrets import SecretKind, SecretRef
from skerry.node.images import references
from skerry.node.images.references import RegistryReference


@dataclass(slots=True)
class SecretParts:
    """Secrets as they are served."""

    registry: SecretRegistry
    rotation: KeyRotation
    vault: SecretVault
    warning: str  # what is wrong with the key of this server; empty: nothing
    _base: ServerBase
    _users: list[SecretUsers] = field(default_factory=list)  # once all that may use secrets is there

    async def ready(self) -> None:
        await self.registry.ready()

    def set_users(self, users: SecretUsers) -> None:
        self._users.append(users)

    def users_of(self, namespace: Namespace, kind: SecretKind, name: str) -> Sequence[SecretUser]:
        return [user for users in self._users for user in users.of(namespace, kind, name)]

    def lead(self, leader: LeaderElection, followers: Sequence[SecretFollower]) -> None:
        """Begin to roll out new versions, while this server leads."""
        following = SecretFollowing(self.registry, followers)
        self._base.loops.forever("secrets.following", lambda: following.run(leader))

    def deliveries(
        self,
        instances: InstanceTable,
        functions: FunctionRegistry,
        *,
        is_member: Callable[[NodeId], bool],
        serves: Callable[[NodeId, SecretRef], bool],
    ) -> SecretDeliveries:
        """Answers to nodes; `serves` says which may have the key of which certificate."""
        default = self._base.settings.images.default_registry

        def registry_of(image: str) -> str:
            try:
                parsed = references.parse(image, default)
            except errors.Invalid:
                return ""
            return parsed.registry if isinstance(parsed, RegistryReference) else ""

        return SecretDeliveries(
            self.registry,
            instances.index,
            functions=functions.all_known,
            runs_functions=is_member,
            registry_of=registry_of,
            serves=serves,
        )


async def open_secrets(base: ServerBase) -> SecretParts:
    """Begin to read what is in the store. A server without the key starts, and refuses what needs it."""
    vault = SecretVault(base.store, SecretKeyFile(base.folder / "pki" / NAME), base.clock)
    warning = await vault.open()
    rotation = KeyRotation(base.store, vault, base.events, base.clock)
    registry = SecretRegistry(
        base.store,
        base.events,
        base.clock,
        vault,
        users=lambda namespace, kind, name: parts.users_of(namespace, kind, name),
    )
    parts = SecretParts(registry, rotation, vault, warning, base)
    for kind, table in registry.tables.items():
        base.loops.forever(f"{kind}s", table.run, critical=True)
    base.loops.forever("secrets.rotation", rotation.run)
    return parts
