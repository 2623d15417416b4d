"""Proving to a registry that we may pull: by password, or by tokens that its token server gives out.

A token lasts for minutes and a pull may last for hours. One that is known to have ended is replaced before it
is shown; one that is refused is replaced once, and if the new one is refused as well the pull ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.node.images import registry_http
from skerry.node.images.challenges import AuthChallenge
from skerry.node.images.credentials import RegistryCredentials
from skerry.node.images.registry_http import RegistryHttpClient

if TYPE_CHECKING:
    from yarl import URL

_MAX_TOKEN_BYTES = 256 * 1024
_DEFAULT_LIFE_S = 60.0
_MAX_LIFE_S = 86_400.0
_SHARE_OF_LIFE = 0.9  # a token is not shown in the last moments before its end
_CLIENT = "skerry"


class _TokenAnswer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class RegistryAuthorizer:
    """The proof for one repository of one registry, kept up to date for all requests of a pull."""

    def __init__(
        self,
        transport: RegistryHttpClient,
        clock: Clock,
        credentials: RegistryCredentials,
        base: URL,
        *,
        registry: str,
        repository: str,
    ) -> None:
        """`base` is where the registry is, which names its token server."""
        self._transport = transport
        self._clock = clock
        self._credentials = credentials
        self._base = base
        self._registry = registry
        self._repository = repository
        self._challenge: AuthChallenge | None = None
        self._shown = ""
        self._ends_at = float("inf")
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """What to put into `Authorization`; empty as long as the registry has not asked for anything."""
        async with self._lock:
            if self._challenge is not None and self._clock.monotonic() >= self._ends_at:
                await self._obtain(self._challenge)
            return self._shown

    async def answer(self, challenges: list[AuthChallenge], refused: str) -> None:
        """The registry said 401 to the header `refused` and named these ways; make ready for one of them."""
        async with self._lock:
            if self._shown != refused:
                return  # another request was faster
            chosen = next((each for each in challenges if each.scheme == "bearer"), None)
            chosen = chosen or next((each for each in challenges if each.scheme == "basic"), None)
            if chosen is None:
                names = ", ".join(each.scheme for each in challenges) or "none at all"
                raise errors.FailedPrecondition(
                    f"{self._registry} wants proof of who calls in ways that are not known here: {names[:99]}"
                )
            if chosen.scheme == "basic" and refused:
                raise self.refusal(challenges)
            self._challenge = chosen
            await self._obtain(chosen)

    def refusal(self, challenges: list[AuthChallenge]) -> errors.FailedPrecondition:
        """What to say when the proof was not enough."""
        said = next((each["error"] for each in challenges if each.scheme == "bearer"), "")
        if said == "invalid_token":
            return errors.FailedPrecondition(
                f"{self._registry} does not accept the token that was just given out for it: it has expired "
                "or is not yet valid. Compare the clocks of this machine, the registry and its token server"
            )
        if self._credentials.login is None:
            return errors.FailedPrecondition(
                f"{self._registry} lets nobody pull {self._repository} without a login, or it is not there; "
                f"{self._credentials.hint}"
            )
        return errors.FailedPrecondition(
            f"{self._registry} does not let {self._credentials.login.user or 'us'} pull {self._repository}, "
            f"or it is not there; {self._credentials.hint}"
        )

    async def _obtain(self, challenge: AuthChallenge) -> None:
        login = self._credentials.login
        if challenge.scheme == "basic":
            if login is None or not login.password:
                raise self.refusal([])
            self._shown = login.basic()
            return
        if login is not None and login.registry_token:
            self._shown = f"Bearer {login.registry_token}"
            return
        asked_at = self._clock.monotonic()
        answer = await self._ask(challenge)
        token = answer.token or answer.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise errors.Unavailable(f"the token server of {self._registry} gave no token")
        life_s = answer.expires_in if answer.expires_in is not None else _DEFAULT_LIFE_S
        self._ends_at = asked_at + _SHARE_OF_LIFE * min(max(life_s, 0.0), _MAX_LIFE_S)
        self._shown = f"Bearer {token}"

    async def _ask(self, challenge: AuthChallenge) -> _TokenAnswer:
        from yarl import URL

        try:
            realm = URL(challenge["realm"])
        except ValueError:
            realm = URL()
        if not realm.host or realm.scheme not in ("http", "https"):
            raise errors.Unavailable(f"{self._registry} names no token server that can be called")
        login = self._credentials.login
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

    async def _send(
        self, method: str, url: URL, headers: dict[str, str], form: dict[str, str] | None
    ) -> _TokenAnswer:
        async with self._transport.exchange(method, url, headers, data=form, sent_by=self._base) as answer:
            if answer.status in (400, 401, 403):
                if self._credentials.login is None:
                    raise self.refusal([])
                raise errors.FailedPrecondition(
                    f"the token server {registry_http.host_of(url)} of {self._registry} does not accept the "
                    f"login; {self._credentials.hint}"
                )
            if answer.status != 200:
                raise errors.Unavailable(
                    f"the token server {registry_http.host_of(url)} of {self._registry} answers "
                    f"{answer.status}"
                )
            data = await registry_http.read(answer, _MAX_TOKEN_BYTES, "its answer")
        try:
            return json_codec.decode(data, _TokenAnswer)
        except json_codec.InvalidJson as error:
            raise errors.Unavailable(
                f"the answer of the token server {registry_http.host_of(url)} cannot be read: {error}"
            ) from None
