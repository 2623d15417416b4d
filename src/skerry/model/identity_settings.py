"""Settings of identity: certificates, tokens and local users. Part of `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class IdentitySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificates, tokens and local users."""

    local_trust: Annotated[
        bool,
        Meta(
            description="Local processes of root and of the server's own user are admins without a token; "
            "turn it off behind a proxy that runs as one of them and sends no forwarding headers"
        ),
    ] = True
    node_certificate_s: Annotated[int, Meta(ge=1, description="Life of a node's certificate, seconds")] = (
        24 * 3600
    )
    server_certificate_s: Annotated[
        int, Meta(ge=1, description="Life of a server's certificate, seconds")
    ] = 30 * 86400
    join_token_s: Annotated[
        int, Meta(ge=1, description="Life of a join token if `--ttl` is not given, seconds")
    ] = 3600
    offline_token_max_s: Annotated[
        int,
        Meta(
            ge=60,
            le=366 * 86400,
            description="Longest life of an offline token, seconds; without `--ttl` it is 30 days, or this",
        ),
    ] = 90 * 86400
    edge_names: Annotated[
        tuple[str, ...],
        Meta(
            description="NODE=HOST: names and addresses that the certificate of a node's HTTPS listener may "
            "have besides its own; NODE is its id or name"
        ),
    ] = ()
