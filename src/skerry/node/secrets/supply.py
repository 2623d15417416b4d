"""Values and files of secrets, together, for what starts containers and workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from skerry.model.containers import ContainerSpec
from skerry.model.function_names import namespace_of
from skerry.model.functions import Function
from skerry.model.secrets import SecretRef
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.secrets.secret_files import NO_FILES, FileOwner, SecretFiles, SecretFileWriter

_READABLE: Final = 0o444


class SecretSupply(NamedTuple):
    """The values of this node, and the files made of them."""

    values: NodeSecrets
    files: SecretFileWriter

    async def of_container(self, spec: ContainerSpec) -> Mapping[SecretRef, bytes]:
        """The values of a container that is about to start. Raises Unavailable, FailedPrecondition."""
        return await self.values.values(spec.secret_refs)

    def write(self, spec: ContainerSpec, values: Mapping[SecretRef, bytes], owner: FileOwner) -> SecretFiles:
        """The files of a container."""
        if not spec.secrets:
            return NO_FILES
        return self.files.write(spec.name, spec.secrets, spec.namespace, values, owner)

    async def of_function(self, worker: str, function: Function) -> SecretFiles:
        """The files of a worker. It alone sees them, and its user reads them."""
        namespace = namespace_of(function.name)
        uses = [replace(use, mode=use.mode or _READABLE) for use in function.secrets if not use.variable]
        uses += [use for use in function.secrets if use.variable]
        values = await self.values.values(refs_of(function))
        return self.files.write(worker, uses, namespace, values, FileOwner())


def refs_of(function: Function) -> tuple[SecretRef, ...]:
    """The values that a function needs."""
    namespace = namespace_of(function.name)
    return tuple(dict.fromkeys(use.ref(namespace) for use in function.secrets))
