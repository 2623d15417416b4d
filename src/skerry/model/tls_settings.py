"""Settings of the TLS certificates of routes: ACME, the DNS hook, and the cloud's own CA."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS certificates of routes."""

    acme_directory: Annotated[
        str, Meta(description="Directory of the ACME server that issues certificates; `https://` only")
    ] = "https://acme-v02.api.letsencrypt.org/directory"
    acme_terms_agreed: Annotated[
        bool,
        Meta(description="You agree to the terms of service of the ACME server; without it none is ordered"),
    ] = False
    acme_email: Annotated[
        str, Meta(description="Address to which the ACME server may write; empty: none is given")
    ] = ""
    acme_ca_file: Annotated[
        str,
        Meta(description="PEM file with the CA of a private ACME server; empty: the well-known CAs"),
    ] = ""
    challenge: Annotated[
        str,
        Meta(
            pattern="^(http-01|dns-01)$",
            description="How to prove control of a domain: `http-01` by edge nodes on port 80, `dns-01` by "
            "`dns_hook`. Wildcards are always proven by `dns-01`",
        ),
    ] = "http-01"
    challenge_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="From publishing a challenge until the ACME server is told that it can be checked",
        ),
    ] = 2.0
    dns_hook: Annotated[
        str,
        Meta(
            description="Absolute path of a program on every server that sets TXT records: it is called with "
            "`present DOMAIN NAME VALUE` and `cleanup DOMAIN NAME VALUE`. Empty: there is none"
        ),
    ] = ""
    dns_hook_timeout_s: Annotated[float, Meta(gt=0, le=3600, description="One call of the DNS hook")] = 120.0
    internal_domains: Annotated[
        tuple[str, ...],
        Meta(
            description="Domains, beside `network.domain`, below which names get certificates of the cloud's "
            "own CA"
        ),
    ] = ()
    internal_certificate_s: Annotated[
        int, Meta(ge=60, description="Life of a certificate of the cloud's own CA for a route, seconds")
    ] = 30 * 86400
