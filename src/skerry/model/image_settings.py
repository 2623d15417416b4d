"""Settings of images: registries, their logins, and bounds of what is pulled."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ImageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Images of this node, and where they are pulled from."""

    insecure: Annotated[
        tuple[str, ...],
        Meta(
            description="Registries (HOST[:PORT]) that are used over plain HTTP; those on loopback always are"
        ),
    ] = ()
    internal_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Token servers and storage (HOST[:PORT], `*` for anything) on this machine or in a "
            "private network that registries further outside may send pulls to"
        ),
    ] = ()
    ca: Annotated[str, Meta(description="PEM file or folder: more CAs that registries may be signed by")] = ""
    credentials: Annotated[
        str,
        Meta(description="Docker's config.json with credentials; empty: ~/.docker/config.json, if it exists"),
    ] = ""
    token_servers: Annotated[
        tuple[str, ...],
        Meta(
            description="REGISTRY=HOST[:PORT]: token servers on other hosts than their registry that get its "
            "login; all others get none"
        ),
    ] = ("docker.io=auth.docker.io", "registry.gitlab.com=gitlab.com")
    default_registry: Annotated[str, Meta(description="Registry of references that name none")] = "docker.io"
    parallel: Annotated[int, Meta(ge=1, le=32, description="Layers pulled at once")] = 3
    max_layer_bytes: Annotated[int, Meta(ge=1024, description="One layer, unpacked")] = 16 * 1024**3
    max_layer_files: Annotated[int, Meta(ge=1, description="Entries of one layer")] = 1_000_000
    max_layers: Annotated[int, Meta(ge=1, le=500, description="Layers of one image")] = 127
    timeout_s: Annotated[
        float, Meta(gt=0, description="A registry that is silent for this long is given up, and tried again")
    ] = 30.0
