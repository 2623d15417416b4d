"""Confinement of every container besides its limits: capabilities, masked paths, devices, rlimits.

Docker's defaults, or stricter. Data for `skerry.node.containers.oci_config`; the seccomp filter is in
`skerry.node.containers.seccomp`.
"""

from __future__ import annotations

import functools
import glob
import resource
from collections.abc import Sequence
from typing import Any, Final

from skerry.model.container_options import Ulimit
from skerry.node.kernel.host_paths import MASKED_PATHS, READ_ONLY_PATHS

# Docker's fourteen without three. NET_RAW allows spoofing other containers on the bridge (ping works without
# it
# here), MKNOD creates device nodes that could not be opened anyway, and AUDIT_WRITE writes to the node's
# audit
# log. Only root in a container has them: no_new_privs keeps other users from gaining any.
CAPABILITIES: Final = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)

# Besides what is masked for cells: these reveal the load of others through processors, power or interrupts.
_MASKED: Final = (*MASKED_PATHS, "/proc/asound", "/proc/interrupts", "/sys/devices/virtual/powercap")
_MASKED_PER_CPU: Final = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"

# Root in a container owns these files, and could write to some of them without capabilities. The last
# contains
# folders on machines with cgroup v1, and runtimes leave it writable.
READ_ONLY: Final = (*READ_ONLY_PATHS, "/sys/fs/cgroup")

# No devices but those that every runtime allows: null, zero, full, random, urandom, tty and terminals.
DEVICES: Final[list[dict[str, Any]]] = [{"allow": False, "access": "rwm"}]

# The hard limit is high for programs that need many files; the soft one is low, since old programs close
# every
# possible descriptor.
_OPEN_FILES: Final = (1024, 524_288)


def sysctls(ids: int) -> dict[str, str]:
    """Of its own network: any user may listen on port 80, and ping, without a capability. `ids` is the number
    of groups."""
    return {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": f"0 {ids - 1}"}


@functools.cache
def masked_paths() -> tuple[str, ...]:
    """Paths that are empty in a container, including temperature sensors."""
    return (*_MASKED, *sorted(glob.glob(_MASKED_PER_CPU)))


def rlimits(requested: Sequence[Ulimit] = ()) -> list[dict[str, Any]]:
    """Limits of each process: the defaults, and `requested` instead of those of the same name."""
    limits = {limit["type"]: limit for limit in _default_rlimits()}
    for ulimit in requested:
        kind = f"RLIMIT_{ulimit.name.upper()}"
        limits[kind] = {"type": kind, "soft": ulimit.soft, "hard": ulimit.hard}
    return list(limits.values())


@functools.cache
def _default_rlimits() -> list[dict[str, Any]]:
    usual, most = _OPEN_FILES
    # Without CAP_SYS_RESOURCE, as in a user namespace, the agent's own hard limits cannot be exceeded.
    most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return [
        {"type": "RLIMIT_NOFILE", "soft": min(usual, most), "hard": most},
        # A core file would be written where the node's settings say, outside the container.
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
    ]


@functools.cache
def oom_score() -> int:
    """`oom_score_adj` of a container: not below the default, although the agent may be protected, and not
    below the agent's, which would need privileges."""
    with open("/proc/self/oom_score_adj") as file:
        return max(0, int(file.read()))
