"""Endpoints of Skerry's own API, without those of its subpackages."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.own import about, certificates, console_links, events, health, join, tokens

ENDPOINTS: tuple[Endpoint, ...] = (
    health.healthz,
    health.readyz,
    about.about,
    about.show_metrics,
    about.openapi,
    events.follow,
    tokens.list_tokens,
    tokens.create,
    tokens.revoke,
    tokens.rotate_key,
    certificates.list_certificates,
    certificates.issue,
    certificates.revoke,
    certificates.show_authority,
    certificates.authority_status,
    certificates.rotate_authority,
    certificates.finish_rotation,
    join.find_address,
    join.join,
    console_links.create,
)
