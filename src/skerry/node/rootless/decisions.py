"""What a node of an ordinary user can enforce, from what its machine has allowed. Pure.

`skerry.node.rootless.trials` makes the observations. Every reason says what a person may do about it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.model.enforcement import (
    ContainerNetwork,
    Isolation,
    LimitMeans,
    Limits,
    NodeEnforcement,
    RootFilesystem,
)

_CONTROLLERS: Final = ("cpu", "memory", "pids")
_NEEDED: Final = ("memory", "pids")
_FIRST_PORT: Final = 1024


class Observations(msgspec.Struct, frozen=True):
    """What was tried on this machine, inside the user namespace; a text is why it failed, empty if it did
    not."""

    user_ids: int
    id_reasons: tuple[str, ...] = ()
    proc: str = ""  # mount /proc in a new pid namespace
    overlay: str = ""  # mount an overlay in the data folder
    fuse: str = ""  # use fuse-overlayfs
    tun: str = ""  # open /dev/net/tun
    pasta: bool = False  # installed
    slirp4netns: bool = False  # installed
    cgroup: str = ""  # path of the delegated cgroup; empty: none
    controllers: frozenset[str] = frozenset()  # that it has
    first_port: int = _FIRST_PORT  # that an ordinary user may listen on


def decide(seen: Observations) -> NodeEnforcement:
    """What such a node enforces."""
    reasons = [*seen.id_reasons]
    if seen.proc:
        reasons.append(
            f"cells cannot have a /proc of their own ({seen.proc}): this machine is a container that hides "
            "parts of its own; start it with an unmasked /proc"
        )
        return NodeEnforcement(Isolation.UNAVAILABLE, user_ids=seen.user_ids, reasons=tuple(reasons))
    filesystem = _filesystem(seen, reasons)
    network = _network(seen, reasons)
    limits = _limits(seen, reasons)
    reasons.append(_without_root(seen.first_port))
    found = NodeEnforcement(
        Isolation.USER_NAMESPACE,
        limits,
        filesystem=filesystem,
        user_ids=seen.user_ids,
        first_port=seen.first_port,
        reasons=tuple(reasons),
    )
    return found.with_network(network)


def without_isolation() -> NodeEnforcement:
    """Of a node that was told to run what it has as its own child processes."""
    return NodeEnforcement(
        Isolation.NONE,
        Limits(LimitMeans.PRIORITY, LimitMeans.WATCHED, LimitMeans.WATCHED),
        user_ids=1,
        reasons=(
            "isolation none: functions and cells are processes of this user, and can read and change all "
            "that it can, Skerry included; this is for trying out only (--isolation none)",
        ),
    )


def unavailable(reason: str) -> NodeEnforcement:
    """Of a machine on which there can be no user namespace."""
    return NodeEnforcement(Isolation.UNAVAILABLE, reasons=(reason,))


def usable_controllers(delegated: frozenset[str]) -> frozenset[str]:
    """Those by which cells are held to their limits; without memory and pids there are no groups at all."""
    return delegated if delegated.issuperset(_NEEDED) else frozenset()


def _without_root(first_port: int) -> str:
    """What no machine allows an ordinary user."""
    ports = f", and no published ports below {first_port} (sysctl net.ipv4.ip_unprivileged_port_start)"
    return (
        "there are no limits of disk, volumes, devices, user namespaces of single containers and guests of "
        f"the market{ports if first_port > 1 else ''}; start the node as root to have them"
    )


def _limits(seen: Observations, reasons: list[str]) -> Limits:
    def means(controller: str, otherwise: LimitMeans) -> LimitMeans:
        return LimitMeans.CGROUP if controller in usable_controllers(seen.controllers) else otherwise

    missing = [each for each in _CONTROLLERS if each not in seen.controllers]
    if missing:
        found = "is not delegated" if not seen.cgroup else f"has no {', '.join(missing)}"
        reasons.append(
            f"limits are weaker: the cgroup of this process {found}; start it with 'systemd-run --user "
            "--scope -p Delegate=yes', and let root delegate cpu too (Delegate= of user@.service)"
        )
    # A cell that has a group is given its share by that alone.
    otherwise = LimitMeans.NONE if usable_controllers(seen.controllers) else LimitMeans.PRIORITY
    return Limits(
        cpu=means("cpu", otherwise),
        memory=means("memory", LimitMeans.WATCHED),
        processes=means("pids", LimitMeans.WATCHED),
    )


def _filesystem(seen: Observations, reasons: list[str]) -> RootFilesystem:
    if not seen.overlay:
        return RootFilesystem.OVERLAY
    if not seen.fuse:
        reasons.append(f"containers use fuse-overlayfs, which is slower: overlayfs failed ({seen.overlay})")
        return RootFilesystem.FUSE_OVERLAYFS
    reasons.append(
        f"each container has a copy of its image: overlayfs failed ({seen.overlay}), and fuse-overlayfs too "
        f"({seen.fuse})"
    )
    return RootFilesystem.COPY


def _network(seen: Observations, reasons: list[str]) -> ContainerNetwork:
    if seen.tun:
        reasons.append(
            "containers reach nothing outside this machine, and the node has no links of the mesh: "
            f"/dev/net/tun cannot be opened ({seen.tun}); root allows it with 'chmod 0666 /dev/net/tun'"
        )
        return ContainerNetwork.LOOPBACK
    if seen.pasta:
        return ContainerNetwork.PASTA
    if seen.slirp4netns:
        return ContainerNetwork.SLIRP4NETNS
    reasons.append(
        "containers reach nothing outside this machine, and the node has no links of the mesh: install pasta "
        "(package passt) or slirp4netns"
    )
    return ContainerNetwork.LOOPBACK
