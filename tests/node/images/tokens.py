"""A token server for the real registry: checks a login, or none, and signs what the registry believes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tests.support.certificates import TestAuthority
from tests.support.registry import ISSUER, SERVICE


class TokenServer:
    """Gives out tokens; `ends_in_s` is how long the next ones last, and may be less than nothing.

    `login` is what must be shown as `Authorization`, or as a refresh token by POST; empty: nothing.
    """

    def __init__(self, authority: TestAuthority) -> None:
        pair = authority.issue("tokens")
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        self._certificate = certificate.public_bytes(serialization.Encoding.DER)
        self.login = ""
        self.ends_in_s = [300.0]  # of each token in turn; the last one counts for all that follow
        self.says_when = True
        self.scopes: list[str] = []
        self.realm = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[TokenServer]:
        app = web.Application()
        app.router.add_get("/token", self._answer)
        app.router.add_post("/token", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.realm = f"http://{host}:{port}/token"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        form = request.query if request.method == "GET" else await request.post()
        visible = request.headers.get("Authorization", "") or str(form.get("refresh_token", ""))
        if visible != self.login:
            return web.json_response({"details": "no"}, status=401)
        assert form["service"] == SERVICE
        scope = str(form["scope"])
        self.scopes.append(scope)
        ends_in_s = self.ends_in_s.pop(0) if len(self.ends_in_s) > 1 else self.ends_in_s[0]
        name = "token" if request.method == "GET" else "access_token"
        answer: dict[str, Any] = {name: self._sign(scope, ends_in_s)}
        if self.says_when:
            answer["expires_in"] = max(ends_in_s, 0)
        return web.json_response(answer)

    def _sign(self, scope: str, ends_in_s: float) -> str:
        kind, name, actions = scope.split(":")
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": "test",
            "aud": SERVICE,
            "exp": now + int(ends_in_s),
            "nbf": now - 1000,
            "iat": now - 1000,
            "jti": "1",
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self._certificate).decode()]}
        signed = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        signature = self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = utils.decode_dss_signature(signature)
        return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
