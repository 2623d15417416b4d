"""Sends notifications: webhooks by HTTP, mail by SMTP.

An admin names the host of a webhook, and the server connects to it from inside its network: addresses of the
server's own machine are refused unless a setting allows them, those of metadata services always. Names are
judged by the addresses that are used. Redirects are not followed. Errors name hosts, never URLs, which hold
tokens.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from email.message import EmailMessage
from ipaddress import ip_network
from typing import Final
from urllib.parse import urlsplit

from skerry import __version__
from skerry.control.alerts import notifications
from skerry.control.alerts.notifications import Notification
from skerry.kit import json_codec, networks
from skerry.kit.address_zones import AddressZone, is_misspelt_address, zones_of
from skerry.model import errors
from skerry.model.address_ranges import METADATA, METADATA6
from skerry.model.alert_settings import AlertSettings
from skerry.model.alerts import ReceiverKind, mail_addresses

_METADATA: Final = tuple(map(ip_network, (*METADATA, *METADATA6)))
_MAX_REASON: Final = 200


class AlertSender:
    """Sends with the settings of this server."""

    def __init__(
        self, settings: AlertSettings, *, server: str, password: Callable[[str], Awaitable[str]]
    ) -> None:
        """`server` is its name, for the sender of mail; `password` reads the secret of a name."""
        self._settings = settings
        self._server = server
        self._password = password

    def check(self, kind: ReceiverKind, destination: str) -> None:
        """Raise unless notifications can be sent there, as far as that can be known without trying."""
        if kind is ReceiverKind.MAIL:
            self._check_mail()
            return
        host = urlsplit(destination).hostname or ""
        if is_misspelt_address(host):
            raise errors.Invalid(f"{host} is no address; write it with four numbers", field="destination")
        if host.rstrip(".").lower() == "localhost":
            self._check_addresses(host, 0, ["127.0.0.1"])
        if _is_address(host):
            self._check_addresses(host, 0, [host])

    async def send(self, destination: str, notification: Notification) -> None:
        """Returns once the receiver took it; raises `Unavailable` or `FailedPrecondition` with the reason."""
        self.check(notification.rule.receiver, destination)
        if notification.rule.receiver is ReceiverKind.WEBHOOK:
            await self._post(destination, notification)
        else:
            await self._mail(destination, notification)

    # Webhooks

    async def _post(self, url: str, notification: Notification) -> None:
        import aiohttp  # takes a while, and is needed for the first notification

        from skerry.kit.guarded_resolver import GuardedResolver

        host = urlsplit(url).hostname
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(resolver=GuardedResolver(self._check_addresses)),
                    timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                    cookie_jar=aiohttp.DummyCookieJar(),
                ) as session,
                session.post(
                    url,
                    data=json_codec.encode(notifications.payload(notification)),
                    headers={
                        "Content-Type": "application/json",
                        "User-Agent": f"skerry/{__version__}",
                        "Idempotency-Key": notification.id,
                    },
                    allow_redirects=False,
                ) as reply,
            ):
                if not 200 <= reply.status < 300:
                    raise errors.Unavailable(f"{host} answered with HTTP status {reply.status}")
        except TimeoutError:
            raise errors.Unavailable(f"{host} did not answer within {self._settings.timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError:
            raise errors.Unavailable(f"{host} has no certificate that is trusted here") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise errors.Unavailable(f"{host} cannot be reached: {_reason(error)}") from None

    def _check_addresses(self, host: str, port: int, addresses: Sequence[str]) -> None:
        for address, zone in zip(addresses, zones_of(addresses), strict=True):
            if zone is AddressZone.LINK or networks.is_within(address, _METADATA):
                raise errors.FailedPrecondition(
                    f"{host} is at a link-local address, or at that of a metadata service, to which nothing "
                    "is sent"
                )
            if zone is AddressZone.MACHINE and not self._settings.allow_local:
                raise errors.FailedPrecondition(
                    f"{host} is at an address of this server's own machine; an admin of the machine allows "
                    "that with the setting alerts.allow_local"
                )

    # Mail

    def _check_mail(self) -> None:
        settings = self._settings
        if not settings.smtp_host:
            raise errors.FailedPrecondition("mail needs a mail server; set alerts.smtp_host on every server")
        if settings.smtp_user and settings.smtp_security == "none":
            raise errors.FailedPrecondition(
                "a password is not sent without encryption; set alerts.smtp_security to starttls or tls"
            )

    async def _mail(self, destination: str, notification: Notification) -> None:
        settings = self._settings
        to = mail_addresses(destination)
        message = notifications.mail(
            notification, sender=settings.smtp_from or f"skerry@{self._server}", to=to
        )
        password = await self._password(settings.smtp_password_secret) if settings.smtp_user else ""
        try:
            await asyncio.to_thread(_send_mail, settings, password, message, to)
        except (smtplib.SMTPException, ssl.SSLError, OSError) as error:
            raise errors.Unavailable(
                f"{settings.smtp_host} did not take the mail: {_reason(error)}"
            ) from None


def _send_mail(settings: AlertSettings, password: str, message: EmailMessage, to: Sequence[str]) -> None:
    tls = ssl.create_default_context(cafile=settings.smtp_ca_file or None)
    host, port, within_s = settings.smtp_host, settings.smtp_port, settings.timeout_s
    client = (
        smtplib.SMTP_SSL(host, port, timeout=within_s, context=tls)
        if settings.smtp_security == "tls"
        else smtplib.SMTP(host, port, timeout=within_s)
    )
    with client:
        if settings.smtp_security == "starttls":
            client.starttls(context=tls)
        if settings.smtp_user:
            client.login(settings.smtp_user, password)
        refused = client.send_message(message, to_addrs=list(to))
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)


def _is_address(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


def _reason(error: BaseException) -> str:
    """Why, for people; without URLs, which aiohttp puts into some of its errors."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, smtplib.SMTPResponseException):
        said = inner.smtp_error
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        return f"{inner.smtp_code} {_printable(text)}".strip()
    if isinstance(inner, OSError) and inner.strerror:
        return _printable(inner.strerror)
    return type(inner).__name__


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:_MAX_REASON]
