"""What a node of an ordinary user can enforce, from what its machine allows."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.model.enforcement import (
    AS_ROOT,
    ContainerNetwork,
    Isolation,
    LimitMeans,
    Limits,
    RootFilesystem,
)
from skerry.node.rootless import decisions
from skerry.node.rootless.decisions import Observations

ALL = Observations(
    user_ids=65537,
    pasta=True,
    slirp4netns=True,
    cgroup="/sys/fs/cgroup/user.slice",
    controllers=frozenset({"cpu", "memory", "pids"}),
)


def test_a_machine_that_allows_everything_names_only_what_needs_root() -> None:
    found = decisions.decide(ALL)
    assert found.isolation is Isolation.USER_NAMESPACE
    assert found.limits == Limits(
        LimitMeans.CGROUP, LimitMeans.CGROUP, LimitMeans.CGROUP, disk=LimitMeans.NONE
    )
    assert (found.network, found.filesystem) == (ContainerNetwork.PASTA, RootFilesystem.OVERLAY)
    assert (found.first_port, found.has_mesh_links) == (1024, True)
    (reason,) = found.reasons
    for part in ("limits of disk", "volumes", "devices", "guests", "below 1024", "as root"):
        assert part in reason
    assert found.is_weaker
    assert not found.accepts_guests


def test_root_of_the_machine_is_not_weaker() -> None:
    assert not AS_ROOT.is_weaker
    assert AS_ROOT.accepts_guests


def test_without_a_delegated_cgroup_limits_are_watched_and_the_reason_says_how_to_get_one() -> None:
    found = decisions.decide(replace(ALL, cgroup="", controllers=frozenset()))
    assert found.limits == Limits(LimitMeans.PRIORITY, LimitMeans.WATCHED, LimitMeans.WATCHED)
    reason, _ = found.reasons
    assert "is not delegated" in reason
    assert "Delegate=yes" in reason
    assert not found.accepts_guests


def test_a_cgroup_with_some_controllers_makes_those_limits_bind() -> None:
    found = decisions.decide(replace(ALL, controllers=frozenset({"memory", "pids"})))
    assert (found.limits.cpu, found.limits.memory) == (LimitMeans.NONE, LimitMeans.CGROUP)
    assert "has no cpu" in found.reasons[0]


def test_without_the_controllers_of_memory_and_processes_nothing_is_held_by_a_cgroup() -> None:
    for controllers in ({"cpu", "memory"}, {"cpu", "pids"}):
        found = decisions.decide(replace(ALL, controllers=frozenset(controllers)))
        assert found.limits == Limits(LimitMeans.PRIORITY, LimitMeans.WATCHED, LimitMeans.WATCHED)


def test_a_node_without_isolation_says_so_and_takes_no_guests() -> None:
    found = decisions.without_isolation()
    assert found.isolation is Isolation.NONE
    assert "isolation none" in found.reasons[0]
    assert not found.accepts_guests


def test_file_systems_are_tried_in_order() -> None:
    without = replace(ALL, overlay="Operation not permitted")
    assert decisions.decide(without).filesystem is RootFilesystem.FUSE_OVERLAYFS
    assert decisions.decide(replace(without, fuse="it is not installed")).filesystem is RootFilesystem.COPY


def test_the_network_needs_a_tun_device_and_a_program() -> None:
    assert decisions.decide(replace(ALL, pasta=False)).network is ContainerNetwork.SLIRP4NETNS
    alone = decisions.decide(replace(ALL, pasta=False, slirp4netns=False))
    assert alone.network is ContainerNetwork.LOOPBACK
    assert "install pasta" in alone.reasons[0]
    closed = decisions.decide(replace(ALL, tun="Permission denied"))
    assert closed.network is ContainerNetwork.LOOPBACK
    assert "/dev/net/tun" in closed.reasons[0]
    assert "no links of the mesh" in closed.reasons[0]
    assert not closed.has_mesh_links
    assert not decisions.decide(ALL).with_network(ContainerNetwork.LOOPBACK).has_mesh_links


def test_without_a_proc_of_their_own_there_are_no_cells() -> None:
    found = decisions.decide(replace(ALL, proc="Operation not permitted"))
    assert found.isolation is Isolation.UNAVAILABLE
    assert found.summary() == "nothing can run here"


def test_one_user_id_separates_no_users() -> None:
    found = decisions.decide(replace(ALL, user_ids=1, id_reasons=("cells have one user: no uidmap",)))
    assert not found.separates_users
    assert not found.accepts_guests
    assert found.reasons[0] == "cells have one user: no uidmap"


def test_the_summary_names_what_makes_each_limit_bind() -> None:
    assert decisions.decide(ALL).summary() == (
        "isolation user-namespace; limits: cpu cgroup, memory cgroup, processes cgroup, disk none; "
        "network pasta"
    )
