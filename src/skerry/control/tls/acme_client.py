"""The connection to an ACME server (RFC 8555), by the library `acme`.

The library is synchronous and slow to import (about a second), so it is imported in a thread when the first
order is made, and each request runs in a thread. Requests of one connection go one after the other: a server
is never asked twice at once. The server's certificate is verified, `http://` is refused, redirects are not
followed, proxies and credentials of the environment are not used, and answers have a limit.
"""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from skerry import __version__
from skerry.control.tls.acme_api import (
    VALID,
    AcmeFailure,
    AuthorizationView,
    OfferedChallenge,
    OrderView,
)
from skerry.kit.clock import Clock
from skerry.model.tls_certificates import MAX_CHAIN, ChallengeKind
from skerry.model.tls_settings import TlsSettings

if TYPE_CHECKING:
    import requests
    from acme import client, messages

log = structlog.get_logger(__name__)

T = TypeVar("T")

_TIMEOUT_S: Final = 15  # of one request, for connecting and for each part of the answer
_MAX_ANSWER: Final = 1 << 20
_MAX_TEXT: Final = 500
_MAX_AUTHORIZATIONS: Final = 10
_NONCE_TRIES: Final = 5
_TEMPORARY: Final = frozenset({"badNonce", "rateLimited", "serverInternal"})
_SERVER_ERROR: Final = 500


class AcmeClients:
    """Connections to the server of the settings."""

    def __init__(self, settings: TlsSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def connect(self, key_pem: bytes, account_url: str) -> AcmeClient:
        return AcmeClient(self._settings, self._clock, key_pem, account_url)


class AcmeClient:
    """Implements `skerry.control.tls.acme_api.AcmeApi`."""

    def __init__(self, settings: TlsSettings, clock: Clock, key_pem: bytes, account_url: str) -> None:
        self._settings = settings
        self._clock = clock
        self._key_pem = key_pem
        self._account_url = account_url
        self._lock = asyncio.Lock()
        self._session: _Session | None = None

    async def register(self, email: str) -> str:
        return await self._call(lambda session: session.register(email))

    async def place(self, domain: str) -> OrderView:
        return await self._call(lambda session: session.place(domain))

    async def order(self, url: str) -> OrderView:
        return await self._call(lambda session: session.order(url))

    async def authorization(self, url: str) -> AuthorizationView:
        return await self._call(lambda session: session.authorization(url))

    async def answer(self, challenge: OfferedChallenge) -> None:
        await self._call(lambda session: session.answer(challenge))

    async def finalize(self, url: str, request: bytes) -> None:
        await self._call(lambda session: session.finalize(url, request))

    async def certificate(self, url: str) -> bytes:
        return await self._call(lambda session: session.certificate(url))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    async def _call(self, request: Callable[[_Session], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._request, request)

    def _request(self, request: Callable[[_Session], T]) -> T:
        """In a thread."""
        import josepy
        import requests
        from acme import errors as acme_errors
        from acme import messages

        session: _Session | None = None
        try:
            session = self._session
            if session is None:
                session = self._session = _Session(
                    self._settings, self._clock, self._key_pem, self._account_url
                )
            return request(session)
        except messages.Error as error:
            raise _failure_of(error, 0.0 if session is None else session.retry_after_s) from None
        except requests.exceptions.SSLError as error:
            raise AcmeFailure(
                f"the certificate of the ACME server cannot be verified: {_shorten(str(error))}; "
                "tls.acme_ca_file names the CA of a private one",
                is_temporary=True,
            ) from None
        except requests.exceptions.InvalidSchema:
            raise AcmeFailure("the ACME server names an address that is not https://") from None
        except requests.exceptions.TooManyRedirects:
            raise AcmeFailure(
                "the ACME server answers with a redirect; set tls.acme_directory anew"
            ) from None
        except requests.exceptions.JSONDecodeError as error:  # before those of which it is one
            raise _unreadable(error) from None
        except (requests.exceptions.RequestException, OSError) as error:
            raise AcmeFailure(
                f"the ACME server {self._settings.acme_directory} cannot be reached: {_shorten(str(error))}",
                is_temporary=True,
            ) from None
        except acme_errors.ClientError as error:
            raise _failure_of_client(error, 0.0 if session is None else session.retry_after_s) from None
        except (
            acme_errors.Error,
            josepy.errors.Error,
            ValueError,
            KeyError,
            AttributeError,
            TypeError,
        ) as error:
            raise _unreadable(error) from None


class _Session:
    """The library's client and its connections; used in one thread at a time."""

    def __init__(self, settings: TlsSettings, clock: Clock, key_pem: bytes, account_url: str) -> None:
        from acme import client, messages
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from josepy.jwa import ES256
        from josepy.jwk import JWKEC

        self._clock = clock
        private = serialization.load_pem_private_key(key_pem, password=None)
        assert isinstance(private, ec.EllipticCurvePrivateKey), "made by `skerry.kit.pki`"
        self._key = JWKEC(key=private)
        self.retry_after_s = 0.0  # of the last answer
        self._response: requests.Response | None = None  # the last one
        self._net = client.ClientNetwork(
            self._key, alg=ES256, user_agent=f"skerry/{__version__}", timeout=_TIMEOUT_S
        )
        if settings.acme_ca_file:
            self._net.verify_ssl = settings.acme_ca_file  # type: ignore[assignment] # as `requests` takes it
        session = self._net.session
        session.trust_env = False
        session.max_redirects = 0
        del session.adapters["http://"]
        session.hooks["response"].append(self._received)
        if account_url:
            self._net.account = messages.RegistrationResource(uri=account_url, body=messages.Registration())
        try:
            directory = client.ClientV2.get_directory(settings.acme_directory, self._net)
        except BaseException:
            self.close()
            raise
        self._client: client.ClientV2 = client.ClientV2(directory, self._net)

    def close(self) -> None:
        if self._response is not None:  # one that was not read to its end has its connection
            self._response.close()
        self._net.session.close()

    def _received(self, response: requests.Response, **_: Any) -> None:
        self._response = response
        response.raw = _LimitedBody(response.raw)
        self.retry_after_s = _seconds(response.headers.get("Retry-After", ""), self._clock.now())

    def _post(self, url: str, message: Any) -> requests.Response:
        """The library tries once more after `badNonce`, which a server may send more often."""
        from acme import messages

        for _ in range(_NONCE_TRIES - 1):
            try:
                return self._net.post(url, message, new_nonce_url=self._client.directory["newNonce"])
            except messages.Error as error:
                if error.code != "badNonce":
                    raise
        return self._net.post(url, message, new_nonce_url=self._client.directory["newNonce"])

    def register(self, email: str) -> str:
        from acme import messages

        self._net.account = None
        if self._client.external_account_required():
            raise AcmeFailure(
                "this ACME server takes only accounts that were made with it before (external account "
                "binding), which is not supported; choose another in tls.acme_directory"
            )
        body = messages.NewRegistration.from_data(email=email or None, terms_of_service_agreed=True)
        response = self._post(self._client.directory["newAccount"], body)  # the same for an existing one
        url = response.headers["Location"]
        self._net.account = messages.RegistrationResource(uri=url, body=messages.Registration())
        return url

    def place(self, domain: str) -> OrderView:
        from acme import messages

        identifier = messages.Identifier(typ=messages.IDENTIFIER_FQDN, value=domain)
        response = self._post(self._client.directory["newOrder"], messages.NewOrder(identifiers=[identifier]))
        return self._order_view(response.headers["Location"], response)

    def order(self, url: str) -> OrderView:
        return self._order_view(url, self._post(url, None))

    def authorization(self, url: str) -> AuthorizationView:
        from acme import messages

        body = messages.Authorization.from_json(self._post(url, None).json())
        offered = tuple(view for each in body.challenges if (view := self._challenge_view(each)) is not None)
        errors = [_text_of(each.error) for each in body.challenges if each.error is not None]
        return AuthorizationView(body.status.name, offered, "; ".join(errors), self.retry_after_s)

    def answer(self, challenge: OfferedChallenge) -> None:
        self._post(challenge.url, _EmptyObject())

    def finalize(self, url: str, request: bytes) -> None:
        from acme import messages
        from cryptography import x509

        self._post(url, messages.CertificateRequest(csr=x509.load_der_x509_csr(request)))

    def certificate(self, url: str) -> bytes:
        pem = self._post(url, None).content
        if len(pem) > MAX_CHAIN:
            raise AcmeFailure(f"the ACME server sent a chain of {len(pem)} bytes")
        return pem

    def _order_view(self, url: str, response: requests.Response) -> OrderView:
        from acme import messages

        body = messages.Order.from_json(response.json())
        if not url or not body.authorizations or len(body.authorizations) > _MAX_AUTHORIZATIONS:
            raise ValueError("an order without its parts")
        return OrderView(
            url=url,
            status=body.status.name,
            authorizations=tuple(body.authorizations),
            finalize=body.finalize,
            certificate=(body.certificate or "") if body.status.name == VALID else "",
            error="" if body.error is None else _text_of(body.error),
            pause_s=self.retry_after_s,
        )

    def _challenge_view(self, body: messages.ChallengeBody) -> OfferedChallenge | None:
        from acme import challenges

        if not isinstance(body.chall, challenges.HTTP01 | challenges.DNS01):
            return None
        return OfferedChallenge(
            kind=ChallengeKind(body.chall.typ),
            url=body.uri,
            token=body.chall.encode("token"),
            authorization=body.chall.validation(self._key),
            status=body.status.name,
        )


class _EmptyObject:
    """The answer to a challenge: `{}`."""

    def json_dumps(self, **_: Any) -> str:
        return "{}"


class _LimitedBody:
    """The body of an answer, which ends with an error if it is too long; read by `requests`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._left = _MAX_ANSWER

    def read(self, size: int) -> bytes:
        data: bytes = self._raw.read(size, decode_content=True)
        self._left -= len(data)
        if self._left < 0:
            self._raw.close()  # with its connection, which is of no use any more
            raise OSError(f"an answer has more than {_MAX_ANSWER} bytes")
        return data

    def close(self) -> None:
        self._raw.close()

    def release_conn(self) -> None:
        self._raw.release_conn()


def _failure_of(error: messages.Error, retry_after_s: float) -> AcmeFailure:
    return AcmeFailure(
        f"the ACME server refuses: {_text_of(error)}",
        is_temporary=error.code in _TEMPORARY,
        is_rate_limit=error.code == "rateLimited",
        is_unknown_account=error.code == "accountDoesNotExist",
        retry_after_s=retry_after_s,
    )


def _failure_of_client(error: Exception, retry_after_s: float) -> AcmeFailure:
    response = error.args[0] if error.args else None
    status = getattr(response, "status_code", 0)
    return AcmeFailure(
        f"the ACME server answers with status {status}" if status else "the ACME server cannot be understood",
        is_temporary=not status or status >= _SERVER_ERROR or status == 429,
        is_rate_limit=status == 429,
        retry_after_s=retry_after_s,
    )


def _unreadable(error: Exception) -> AcmeFailure:
    log.warning("acme.unreadable", error=repr(error))
    return AcmeFailure("the answer of the ACME server is not that of RFC 8555", is_temporary=True)


def _text_of(error: messages.Error) -> str:
    """What went wrong, with the parts of a compound problem."""
    parts = [error, *(error.subproblems or ())]
    texts = [each.detail or each.title or each.code or "" for each in parts]
    return _shorten("; ".join(dict.fromkeys(text for text in texts if text)) or str(error.typ))


def _shorten(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:_MAX_TEXT])


def _seconds(header: str, now: float) -> float:
    """`Retry-After`: seconds, or a date; 0 without it."""
    if header.isascii() and header.isdecimal():
        return float(header[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, TypeError):
        return 0.0
