"""Authenticates pulls to a registry: by password, or by tokens of its token server.

A token lasts for minutes and a pull may last for hours. An expired token is replaced before it is sent; one
that is rejected is replaced once, and if the new one is rejected as well the pull fails.

The login is sent to the registry's own host only. A token server on another host gets a request without it,
unless the settings list it for this registry: a registry's own word is no reason to send a password
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.node.images import registry_http
from skerry.node.images.challenges import AuthChallenge
from skerry.node.images.credentials import RegistryCredentials, RegistryLogin
from skerry.node.images.registry_http import RegistryHttpClient

if TYPE_CHECKING:
    from yarl import URL

_MAX_TOKEN_BYTES = 256 * 1024
_DEFAULT_LIFE_S = 60.0
_MAX_LIFE_S = 86_400.0
_USED_SHARE_OF_LIFETIME = 0.9  # a token is not used shortly before it expires
_CLIENT = "skerry"


class _TokenResponse(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class RegistryAuthorizer:
    """The `Authorization` header for one repository of one registry, kept valid for all requests of a
    pull."""

    def __init__(
        self,
        transport: RegistryHttpClient,
        clock: Clock,
        credentials: RegistryCredentials,
        base: URL,
        *,
        registry: str,
        repository: str,
        token_servers: Collection[str] = (),
    ) -> None:
        """`base` is the URL of the registry, which names its token server; `token_servers` has rows of
        REGISTRY=HOST[:PORT]."""
        self._transport = transport
        self._clock = clock
        self._credentials = credentials
        self._base = base
        self._registry = registry
        self._repository = repository
        self._token_servers = {
            host.strip().lower()
            for name, _, host in (row.partition("=") for row in token_servers)
            if name.strip().lower() == registry.lower()
        }
        self.sent_login = False  # to the registry or its token server
        self._withheld_from = ""  # a token server on another host, which did not get the login
        self._challenge: AuthChallenge | None = None
        self._authorization = ""
        self._ends_at = float("inf")
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """The value of `Authorization`; empty until the registry asks for authentication."""
        async with self._lock:
            if self._challenge is not None and self._clock.monotonic() >= self._ends_at:
                await self._obtain(self._challenge)
            return self._authorization

    async def handle_challenges(self, challenges: list[AuthChallenge], rejected: str) -> None:
        """Handle a 401 to a request with the header `rejected`: prepare a header for one of the
        challenges."""
        async with self._lock:
            if self._authorization != rejected:
                return  # another request was faster
            chosen = next((each for each in challenges if each.scheme == "bearer"), None)
            chosen = chosen or next((each for each in challenges if each.scheme == "basic"), None)
            if chosen is None:
                names = ", ".join(each.scheme for each in challenges) or "none"
                raise errors.FailedPrecondition(
                    f"{self._registry} requires an unsupported authentication scheme: {names[:99]}"
                )
            if chosen.scheme == "basic" and rejected:
                raise self.access_error(challenges)
            self._challenge = chosen
            await self._obtain(chosen)

    def access_error(self, challenges: list[AuthChallenge]) -> errors.FailedPrecondition:
        """The error when the authentication was not accepted."""
        error = next((each["error"] for each in challenges if each.scheme == "bearer"), "")
        if error == "invalid_token":
            return errors.FailedPrecondition(
                f"{self._registry} rejects the token that was just issued for it: it has expired "
                "or is not yet valid. Compare the clocks of this machine, the registry and its token server"
            )
        if self._withheld_from:
            return errors.FailedPrecondition(
                f"{self._registry} requires a login for {self._repository} at {self._withheld_from}; "
                "a login is sent to its registry's own host only. If that is the token server of "
                f"{self._registry}, add {self._registry}={self._withheld_from} to images.token_servers"
            )
        if self._credentials.login is None:
            return errors.FailedPrecondition(
                f"{self._registry} requires a login for {self._repository}, or it does not exist; "
                f"{self._credentials.hint}"
            )
        return errors.FailedPrecondition(
            f"{self._registry} does not allow {self._credentials.login.user or 'us'} to pull "
            f"{self._repository}, or it does not exist; {self._credentials.hint}"
        )

    async def _obtain(self, challenge: AuthChallenge) -> None:
        login = self._credentials.login
        if challenge.scheme == "basic":
            if login is None or not login.password:
                raise self.access_error([])
            self._authorization = login.basic()
            self.sent_login = True
            return
        if login is not None and login.registry_token:
            self._authorization = f"Bearer {login.registry_token}"
            self.sent_login = True
            return
        requested_at = self._clock.monotonic()
        response = await self._request_token(challenge)
        token = response.token or response.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise errors.Unavailable(f"the token server of {self._registry} returned no token")
        life_s = response.expires_in if response.expires_in is not None else _DEFAULT_LIFE_S
        self._ends_at = requested_at + _USED_SHARE_OF_LIFETIME * min(max(life_s, 0.0), _MAX_LIFE_S)
        self._authorization = f"Bearer {token}"

    async def _request_token(self, challenge: AuthChallenge) -> _TokenResponse:
        from yarl import URL

        try:
            realm = URL(challenge["realm"])
        except ValueError:
            realm = URL()
        if not realm.host or realm.scheme not in ("http", "https"):
            raise errors.Unavailable(f"{self._registry} names no valid token server")
        login = self._login_for(realm)
        self.sent_login |= login is not None
        form = {
            "service": challenge["service"],
            "scope": challenge["scope"] or f"repository:{self._repository}:pull",
        }
        if login is not None and login.identity_token:
            form |= {
                "grant_type": "refresh_token",
                "client_id": _CLIENT,
                "refresh_token": login.identity_token,
            }
            return await self._send("POST", realm, {}, form)
        headers = {"Authorization": login.basic()} if login is not None else {}
        query = {key: value for key, value in form.items() if value}
        return await self._send("GET", realm.update_query(query), headers, None)

    def _login_for(self, realm: URL) -> RegistryLogin | None:
        """The login, if the token server `realm` is on the registry's host or listed for it."""
        host = registry_http.host_of(realm).lower()
        is_trusted = realm.host == self._base.host or host in self._token_servers
        self._withheld_from = "" if is_trusted or self._credentials.login is None else host
        return None if self._withheld_from else self._credentials.login

    async def _send(
        self, method: str, url: URL, headers: dict[str, str], form: dict[str, str] | None
    ) -> _TokenResponse:
        async with self._transport.exchange(method, url, headers, data=form, sent_by=self._base) as response:
            if response.status in (400, 401, 403):
                if self._credentials.login is None or self._withheld_from:
                    raise self.access_error([])
                raise errors.FailedPrecondition(
                    f"the token server {registry_http.host_of(url)} of {self._registry} rejects the "
                    f"login; {self._credentials.hint}"
                )
            if response.status != 200:
                raise errors.Unavailable(
                    f"the token server {registry_http.host_of(url)} of {self._registry} returned "
                    f"{response.status}"
                )
            data = await registry_http.read(response, _MAX_TOKEN_BYTES, "its response")
        try:
            return json_codec.decode(data, _TokenResponse)
        except json_codec.InvalidJson as error:
            raise errors.Unavailable(
                f"the response of the token server {registry_http.host_of(url)} cannot be read: {error}"
            ) from None
