"""Address ranges that containers and functions cannot reach, by default or by their policy. Pure.

`METADATA` is closed to all of them: those services give out credentials of the machine. `PRIVATE` is the
machine's surroundings, not the internet. IPv4 only: containers have no IPv6 beyond their loopback, so the
IPv6 addresses of these services (such as fd00:ec2::254, fd20:ce::254 and all of fe80::/10) are closed too.
"""

from __future__ import annotations

from typing import Final

METADATA: Final = (
    # Link-local. 169.254.169.254 is the metadata service of AWS, Azure, Google (metadata.google.internal),
    # DigitalOcean, Hetzner, OpenStack, Oracle, Vultr and others; 169.254.170.2 and .23 hand out credentials
    # on AWS, 169.254.0.23 is Tencent's, 169.254.42.42 Scaleway's.
    "169.254.0.0/16",
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure: the wire server, with certificates and settings of extensions
    "192.0.0.192/32",  # Oracle, the older service
)

PRIVATE: Final = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
