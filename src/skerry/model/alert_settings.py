"""Settings of alerts: how often rules are evaluated, and how notifications are sent."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alerts, and the mail server that they are sent by."""

    interval_s: Annotated[
        float, Meta(gt=0, le=3600, description="The leader evaluates every rule this often")
    ] = 10.0
    timeout_s: Annotated[float, Meta(gt=0, le=300, description="One attempt to send a notification")] = 10.0
    allow_local: Annotated[
        bool,
        Meta(
            description="Webhooks may be at addresses of the server's own machine (loopback). Link-local "
            "addresses and those of metadata services are refused whatever this says"
        ),
    ] = False
    smtp_host: Annotated[
        str, Meta(description="Mail server for alerts `--to mail`. Empty: there is no mail")
    ] = ""
    smtp_port: Annotated[int, Meta(ge=1, le=65535, description="Its port")] = 587
    smtp_security: Annotated[
        str,
        Meta(
            pattern="^(starttls|tls|none)$",
            description="`starttls`, `tls` from the first byte, or `none`: without encryption, and without a "
            "password",
        ),
    ] = "starttls"
    smtp_ca_file: Annotated[
        str, Meta(description="PEM file with the CA of a private mail server; empty: the well-known CAs")
    ] = ""
    smtp_user: Annotated[str, Meta(description="User at the mail server; empty: without a login")] = ""
    smtp_password_secret: Annotated[
        str, Meta(description="Name of the secret in the namespace `default` that holds the password")
    ] = ""
    smtp_from: Annotated[
        str, Meta(description="Address of the sender; empty: `skerry@` and the name of the server")
    ] = ""
