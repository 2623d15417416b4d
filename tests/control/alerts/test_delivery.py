"""Notifications on their way: to a real HTTP server, and to a mail server that speaks STARTTLS."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from skerry.control.alerts import notifications
from skerry.control.alerts.notifications import Notification
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.kit.pki import CertificateAuthority, SigningRequest
from skerry.model import errors
from skerry.model.alert_settings import AlertSettings
from skerry.model.alerts import ActiveAlert, AlertState, ReceiverKind
from tests.control.alerts.test_decisions import RULE
from tests.support.alerts import LOCAL, sender, webhook

LOST = ActiveAlert({"node": "edge-1"}, "node edge-1 is lost", AlertState.FIRING, 90.0, fired_at=100.0)
BACK = replace(LOST, state=AlertState.RESOLVED, resolved_at=160.0)
FIRES = Notification(RULE, (LOST,), "https://hub:1323")


class TestWebhooks:
    async def test_a_receiver_of_alertmanager_reads_it(self) -> None:
        async with webhook() as hook:
            await sender().send(hook.url, FIRES)
            await sender().send(hook.url, Notification(RULE, (BACK,), "https://hub:1323"))
        first, second = hook.bodies
        assert first["version"] == "4"
        assert first["status"] == "firing"
        assert first["groupKey"] == '{}:{alertname="nodes"}'
        assert first["groupLabels"] == {"alertname": "nodes"}
        [alert] = first["alerts"]
        assert alert["labels"] == {"alertname": "nodes", "condition": "node-lost", "node": "edge-1"}
        assert alert["annotations"]["summary"] == "node edge-1 is lost"
        assert (alert["startsAt"], alert["endsAt"]) == ("1970-01-01T00:01:40.000Z", "0001-01-01T00:00:00Z")
        assert (second["status"], second["alerts"][0]["endsAt"]) == ("resolved", "1970-01-01T00:02:40.000Z")
        assert second["alerts"][0]["fingerprint"] == alert["fingerprint"]

    async def test_a_repeated_delivery_has_the_same_key_and_another_message_another(self) -> None:
        async with webhook() as hook:
            for notification in (FIRES, FIRES, Notification(RULE, (BACK,), "https://hub:1323")):
                await sender().send(hook.url, notification)
        first, again, other = hook.keys
        assert first == again != other

    @pytest.mark.parametrize("status", [500, 404, 302])
    async def test_one_that_refuses_it_is_an_error_without_the_url(self, status: int) -> None:
        async with webhook() as hook:
            hook.status = status
            with pytest.raises(errors.Unavailable, match=f"HTTP status {status}") as caught:
                await sender().send(hook.url, FIRES)
        assert "TOKEN" not in f"{caught.value} {caught.value.detail}"

    async def test_one_that_is_not_there_is_an_error_without_the_url(self) -> None:
        async with webhook() as hook:
            url = hook.url
        with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1 cannot be reached") as caught:
            await sender().send(url, FIRES)
        assert "TOKEN" not in str(caught.value)

    async def test_one_that_never_answers_is_given_up(self) -> None:
        async with webhook() as hook:
            hook.hold = asyncio.Event()
            with pytest.raises(errors.Unavailable, match="did not answer within"):
                await sender(replace(LOCAL, timeout_s=0.2)).send(hook.url, FIRES)
            hook.hold.set()

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"])
    async def test_the_machine_of_the_server_is_reached_only_if_a_setting_says_so(self, host: str) -> None:
        with pytest.raises(errors.FailedPrecondition, match=r"alerts\.allow_local"):
            await sender(AlertSettings()).send(f"http://{host}:1/hook", FIRES)

    @pytest.mark.parametrize(
        "host", ["169.254.169.254", "[fe80::1]", "168.63.129.16", "100.100.100.200", "[fd00:ec2::254]"]
    )
    async def test_metadata_services_are_never_reached(self, host: str) -> None:
        with pytest.raises(errors.FailedPrecondition, match="metadata service"):
            await sender().send(f"http://{host}/latest", FIRES)

    async def test_a_name_is_judged_by_its_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from aiohttp.resolver import ThreadedResolver

        async def resolve(self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
            return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": 2}]

        monkeypatch.setattr(ThreadedResolver, "resolve", resolve)
        with pytest.raises(errors.FailedPrecondition, match="metadata service"):
            await sender().send("http://hooks.example.org/", FIRES)

    @pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0x7f000001"])
    def test_an_address_in_another_spelling_is_refused(self, host: str) -> None:
        with pytest.raises(errors.Invalid, match="no address"):
            sender().check(ReceiverKind.WEBHOOK, f"http://{host}/")


@dataclass
class MailServer:
    """A mail server on loopback that takes mail after STARTTLS and a login, and keeps what it was sent."""

    tls: ssl.SSLContext
    port: int = 0
    mails: list[bytes] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)  # instead of the usual ones, by verb

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())

        is_safe = False
        say("220 mail.example.org")
        while line := (await reader.readline()).decode().strip():
            verb = line.split()[0].upper()
            if verb in self.answers:
                say(self.answers[verb])
                continue
            match verb:
                case "EHLO":
                    say("250-mail.example.org")
                    say("250 AUTH PLAIN" if is_safe else "250 STARTTLS")
                case "STARTTLS":
                    say("220 go")
                    await writer.start_tls(self.tls)
                    is_safe = True
                case "AUTH":
                    assert is_safe, "a password came in the clear"
                    self.logins.append(base64.b64decode(line.split()[2]).decode().replace("\0", " ").strip())
                    say("235 welcome")
                case "RCPT":
                    self.recipients.append(line.partition(":")[2].strip("<>"))
                    say("250 ok")
                case "DATA":
                    say("354 go on")
                    self.mails.append(await reader.readuntil(b"\r\n.\r\n"))
                    say("250 taken")
                case "QUIT":
                    say("221 bye")
                    return
                case _:
                    say("250 ok")
            await writer.drain()


@asynccontextmanager
async def mail_server(folder: Path) -> AsyncIterator[tuple[MailServer, AlertSettings]]:
    authority = CertificateAuthority.load_or_create(folder / "ca", SystemClock())
    key = pki.new_key()
    issued = authority.issue(
        SigningRequest.parse(pki.make_request(key)),
        name="mail",
        role="server",
        lifetime_s=3600,
        server=True,
        hosts=["127.0.0.1"],
    )
    (folder / "mail.crt").write_bytes(issued.pem)
    (folder / "mail.key").write_bytes(key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "mail.crt", folder / "mail.key")
    mails = MailServer(tls)
    server = await asyncio.start_server(mails.serve, "127.0.0.1", 0)
    mails.port = server.sockets[0].getsockname()[1]
    settings = AlertSettings(
        smtp_host="127.0.0.1",
        smtp_port=mails.port,
        smtp_user="skerry",
        smtp_password_secret="smtp",
        smtp_ca_file=str(folder / "ca" / "ca.crt"),
        timeout_s=10.0,
    )
    try:
        yield mails, settings
    finally:
        server.close()
        await server.wait_closed()


MAIL_RULE = replace(RULE, receiver=ReceiverKind.MAIL)
MAIL = Notification(MAIL_RULE, (LOST,), "https://hub:1323")


class TestMail:
    async def test_it_is_sent_after_starttls_and_a_login(self, tmp_path: Path) -> None:
        async with mail_server(tmp_path) as (mails, settings):
            await sender(settings).send("ops@example.org, me@example.org", MAIL)
        assert mails.logins == ["skerry password of smtp"]
        assert mails.recipients == ["ops@example.org", "me@example.org"]
        message = cast(EmailMessage, message_from_bytes(mails.mails[0], policy=policy.default))
        assert message["Subject"] == "[FIRING:1] nodes (node-lost)"
        assert message["From"] == "skerry@hub.example.org"
        assert "FIRING  node edge-1 is lost" in message.get_content()

    async def test_one_that_is_refused_is_an_error_with_the_reason(self, tmp_path: Path) -> None:
        async with mail_server(tmp_path) as (mails, settings):
            mails.answers["MAIL"] = "550 not from you"
            with pytest.raises(errors.Unavailable, match="550 not from you"):
                await sender(settings).send("ops@example.org", MAIL)

    async def test_a_server_of_an_unknown_ca_gets_no_password(self, tmp_path: Path) -> None:
        async with mail_server(tmp_path) as (mails, settings):
            with pytest.raises(errors.Unavailable, match="did not take the mail"):
                await sender(replace(settings, smtp_ca_file="")).send("ops@example.org", MAIL)
        assert mails.logins == []

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (AlertSettings(), r"alerts\.smtp_host"),
            (AlertSettings(smtp_host="m", smtp_user="u", smtp_security="none"), "without encryption"),
        ],
    )
    def test_without_a_mail_server_or_encryption_it_is_refused(
        self, settings: AlertSettings, message: str
    ) -> None:
        with pytest.raises(errors.FailedPrecondition, match=message):
            sender(settings).check(ReceiverKind.MAIL, "ops@example.org")

    def test_a_summary_cannot_add_headers(self) -> None:
        evil = replace(LOST, summary="lost\r\nBcc: all@example.org\r\n.\r\n")
        message = notifications.mail(
            Notification(MAIL_RULE, (evil,), "https://hub"), sender="skerry@hub", to=["ops@example.org"]
        )
        assert message["Bcc"] is None
