"""What every container is held to besides its limits: capabilities, hidden paths, devices, open files.

Docker's defaults, or tighter. Data for `skerry.node.containers.oci_config`; the filter on system calls is in
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

# Docker's fourteen without three. NET_RAW lets one container pretend to be another on the bridge (ping does
# without it here), MKNOD makes device nodes that could not be opened anyway, and AUDIT_WRITE writes to the
# log of the node. Only root in a container has them: no_new_privs keeps every other user from getting any.
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

# Beside what is masked for cells: these tell of others by the load on processors, power or
# interrupts.
_MASKED: Final = (*MASKED_PATHS, "/proc/asound", "/proc/interrupts", "/sys/devices/virtual/powercap")
_MASKED_PER_CPU: Final = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"

# Root in a container owns these files, and without capabilities may still write to some of them.
# The last is a folder of folders on machines with version 1 of cgroups, and runtimes leave it writable.
READ_ONLY: Final = (*READ_ONLY_PATHS, "/sys/fs/cgroup")

# No device but those that every runtime allows: null, zero, full, random, urandom, tty and terminals.
DEVICES: Final[list[dict[str, Any]]] = [{"allow": False, "access": "rwm"}]

# A program that needs many files may ask for more; old ones that go through all they might have are not
# slowed down.
_OPEN_FILES: Final = (1024, 524_288)


def sysctls(ids: int) -> dict[str, str]:
    """Of its own network: any user may listen on port 80, and ping, without a capability. `ids` is how many
    groups there are."""
    return {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": f"0 {ids - 1}"}


@functools.cache
def masked_paths() -> tuple[str, ...]:
    """What a container finds empty; on machines that tell their temperature, that too."""
    return (*_MASKED, *sorted(glob.glob(_MASKED_PER_CPU)))


def rlimits(asked: Sequence[Ulimit] = ()) -> list[dict[str, Any]]:
    """What each process is held to: the usual limits, and `asked` instead of those of the same name."""
    limits = {limit["type"]: limit for limit in _usual_rlimits()}
    for ulimit in asked:
        kind = f"RLIMIT_{ulimit.name.upper()}"
        limits[kind] = {"type": kind, "soft": ulimit.soft, "hard": ulimit.hard}
    return list(limits.values())


@functools.cache
def _usual_rlimits() -> list[dict[str, Any]]:
    usual, most = _OPEN_FILES
    # Without CAP_SYS_RESOURCE, as in a container of somebody else's, nobody can give more than it has.
    most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return [
        {"type": "RLIMIT_NOFILE", "soft": min(usual, most), "hard": most},
        # A core would go where the node's settings say, which is not in the container.
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
    ]


@functools.cache
def oom_score() -> int:
    """How willingly the kernel kills a container for memory: no less than usual, although a node's agent may
    be protected, and no less than the agent, since only the privileged could give that."""
    with open("/proc/self/oom_score_adj") as file:
        return max(0, int(file.read()))
