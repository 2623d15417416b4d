"""Values for nodes, on request: only for what runs on the node that asks.

A node may have the exact versions that an instance which is placed on it uses, those of functions if it runs
functions, the login for a registry if it has an instance of that namespace with an image from there, and
chains and keys of certificates if it is an edge node (`skerry.control.tls.edge_certificates`). The answer for
anything else does not tell whether it exists. `skerry.control.sessions.node_session` transports requests and
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from skerry.control.instance_index import InstanceIndex
from skerry.model import errors, images
from skerry.model.function_names import namespace_of
from skerry.model.functions import Function
from skerry.model.ids import Namespace, NodeId
from skerry.model.node_messages import SecretRequest, SecretValue
from skerry.model.secrets import REGISTERED_KINDS, Secret, SecretKind, SecretRef
from skerry.model.statuses import DesiredStatus

log = structlog.get_logger(__name__)

_NOT_USED = "nothing that runs on this node uses it"


class SecretReader(Protocol):
    """The part of `skerry.control.secrets.registry.SecretRegistry` that is needed here."""

    async def find(self, kind: SecretKind, name: str, namespace: Namespace | None = None) -> Secret: ...

    async def value(self, ref: SecretRef) -> bytes: ...


class SecretDeliveries:
    """Answers requests of nodes."""

    def __init__(
        self,
        secrets: SecretReader,
        instances: InstanceIndex,
        *,
        functions: Callable[[], Sequence[Function]],
        runs_functions: Callable[[NodeId], bool],
        registry_of: Callable[[str], str],
        serves: Callable[[NodeId, SecretRef], bool] = lambda node, ref: False,
    ) -> None:
        """`registry_of` is the registry of an image reference; empty: none. `serves` is for certificates."""
        self._secrets = secrets
        self._instances = instances
        self._functions = functions
        self._runs_functions = runs_functions
        self._registry_of = registry_of
        self._serves = serves

    async def values(self, node: NodeId, request: SecretRequest) -> list[SecretValue]:
        """An answer for each that is requested."""
        return [await self._value(node, ref) for ref in request.refs]

    async def _value(self, node: NodeId, ref: SecretRef) -> SecretValue:
        if not self._may_have(node, ref):
            log.warning("secret.refused", node=node, kind=ref.kind, name=ref.name, namespace=ref.namespace)
            return SecretValue(ref, error=_NOT_USED)
        try:
            stored = ref
            if ref.kind is SecretKind.REGISTRY:
                stored = (await self._secrets.find(ref.kind, ref.name, ref.namespace)).ref()
            data = await self._secrets.value(stored)
        except errors.NotFound:
            return SecretValue(ref, error=f"there is no {ref.kind} {ref.name} of that version any more")
        except errors.SkerryError as error:
            log.error("secret.not_delivered", node=node, kind=ref.kind, name=ref.name, error=error.message)
            return SecretValue(ref, error=error.message)
        log.info(
            "secret.delivered",
            node=node,
            kind=ref.kind,
            name=ref.name,
            namespace=ref.namespace,
            version=stored.version,
        )
        return SecretValue(ref, data)

    def _may_have(self, node: NodeId, ref: SecretRef) -> bool:
        if ref.kind not in REGISTERED_KINDS:
            return self._serves(node, ref)
        for record in self._instances.on_node(node):
            instance = record.value
            if instance.namespace != ref.namespace or instance.desired is DesiredStatus.DESTROYED:
                continue
            spec = instance.spec
            if ref.kind is SecretKind.REGISTRY:
                if not images.is_path(spec.uri) and self._registry_of(spec.uri) == ref.name:
                    return True
            elif any(use.ref(instance.namespace) == ref for use in spec.secrets):
                return True
        if not self._runs_functions(node):
            return False
        for function in self._functions():
            if namespace_of(function.name) != ref.namespace:
                continue
            if ref.kind is SecretKind.REGISTRY:
                if function.image and self._registry_of(function.image) == ref.name:
                    return True
            elif any(use.ref(ref.namespace) == ref for use in function.secrets):
                return True
        return False
