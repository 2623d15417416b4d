"""Pulls images for one namespace: with its own login, as private images that nobody else may use.

An image that a registry returned only because of a namespace's login is private to that namespace, as are its
layers: whoever else names it, by reference, id or digest, must get it from a registry itself. So a node
that has an image gives nobody access to it, unlike Kubernetes without AlwaysPullImages. A registry is
believed about its own repositories alone: another may claim to have any digest. The server is asked for the
login at each pull; it is not kept. Images that were pulled without one are for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from skerry.kit import json_codec
from skerry.kit.tasks import in_thread
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.secrets import RegistryLoginValue, SecretKind, SecretRef
from skerry.node.images import credentials
from skerry.node.images.credentials import RegistryCredentials, RegistryLogin
from skerry.node.images.puller import PullDeps, Puller
from skerry.node.images.references import ImageReference, RegistryReference
from skerry.node.images.registry_source import RegistrySource
from skerry.node.images.sources import ImageSource

log = structlog.get_logger(__name__)

# The value of a login of a namespace; None: there is none. Raises Unavailable.
FetchLogin = Callable[[SecretRef], Awaitable[bytes | None]]


class NamespacePuller(Puller):
    """Pulls with the login of a namespace, if it has one for the registry; else as the node does."""

    def __init__(self, deps: PullDeps, namespace: Namespace, fetch_login: FetchLogin) -> None:
        super().__init__(deps)
        self.namespace = namespace
        self._fetch_login = fetch_login

    async def _source(self, reference: ImageReference) -> ImageSource:
        if not isinstance(reference, RegistryReference):
            return await super()._source(reference)
        deps = self._deps
        return RegistrySource(
            reference,
            deps.settings,
            deps.clock,
            backoff=deps.backoff,
            credentials=await self._credentials(reference),
        )

    async def _credentials(self, reference: RegistryReference) -> RegistryCredentials:
        ref = SecretRef(Namespace(self.namespace), SecretKind.REGISTRY, reference.registry, 0)
        value = await self._fetch_login(ref)
        log_in = f"`skerry registry login {reference.registry} -n {self.namespace}`"
        if value is None:
            of_node = await in_thread(credentials.load, self._deps.settings.credentials, reference)
            hint = f"log in with {log_in}" if of_node.login is None else f"{of_node.hint}; {log_in}"
            return msgspec.structs.replace(of_node, hint=hint)
        try:
            login = json_codec.decode(value, RegistryLoginValue)
        except json_codec.InvalidJson:  # its message could quote the value
            raise errors.FailedPrecondition(
                f"the login for {reference.registry} in the namespace {self.namespace!r} cannot be read; set "
                "it anew"
            ) from None
        return RegistryCredentials(
            RegistryLogin(login.user, login.password, login.identity_token),
            f"the login of the namespace {self.namespace!r} for it is not sufficient; set it with {log_in}",
            self.namespace,
        )
