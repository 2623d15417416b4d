"""The text of units, from roles and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath as Path

import pytest

from skerry.cli.install import units
from skerry.cli.install.units import ListeningSocket, ServiceSpec

SPEC = ServiceSpec(
    role="up",
    program=Path("/opt/skerry/bin/skerry"),
    settings=Path("/etc/skerry/skerry.toml"),
    data=Path("/var/lib/skerry"),
    sockets=(ListeningSocket("http", "127.0.0.1:1323"), ListeningSocket("grpc", "10.0.0.7:50052")),
    stop_timeout_s=10.0,
    invitation=Path("/etc/skerry/invitation"),
    systemd=252,
)
# A mount namespace hides the mounts of one process from the next; containers inherit filters of system calls.
NOT_WITH_CONTAINERS = (
    "Protect",
    "Private",
    "ReadWrite",
    "SystemCall",
    "NoNewPrivileges",
    "Restrict",
    "UMask",
)


def directives(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("role", ["up", "node"])
def test_a_service_with_containers_leaves_them_running_and_their_mounts_visible(role: str) -> None:
    found = directives(units.render(replace(SPEC, role=role))[units.SERVICE])
    assert found["KillMode"] == "process"
    assert found["Delegate"] == "yes"
    confining = {name for name in found if name.startswith(NOT_WITH_CONTAINERS)}
    assert confining == set()


@pytest.mark.parametrize("role", ["up", "server", "node"])
def test_every_service_is_watched_restarted_for_ever_and_protected(role: str) -> None:
    found = directives(units.render(replace(SPEC, role=role))[units.SERVICE])
    assert found["Type"] == "notify"
    assert found["Restart"] == "always"
    assert found["StartLimitIntervalSec"] == "0"
    assert int(found["WatchdogSec"]) > 0
    assert int(found["OOMScoreAdjust"]) < 0
    assert found["Slice"] == units.SLICE  # protection of a group counts only as far as that of its parents
    assert found["MemoryMin"] == directives(units.render(replace(SPEC, role=role))[units.SLICE])["MemoryMin"]
    assert found["ExecStart"] == f"/opt/skerry/bin/skerry {role} --config /etc/skerry/skerry.toml"
    assert ("ExecStartPost" in found) == (role == "node")


def test_sockets_have_names_and_the_service_takes_them() -> None:
    made = units.render(SPEC)
    http, grpc = directives(made["skerry-http.socket"]), directives(made["skerry-grpc.socket"])
    assert (http["ListenStream"], http["FileDescriptorName"]) == ("127.0.0.1:1323", "http")
    assert http["Service"] == grpc["Service"] == units.SERVICE
    assert ("FreeBind" in http, grpc["FreeBind"]) == (False, "yes")  # an address that may come up later
    assert directives(made[units.SERVICE])["Sockets"] == "skerry-http.socket skerry-grpc.socket"


def test_a_server_alone_may_write_to_its_data_and_nothing_else() -> None:
    found = directives(units.render(replace(SPEC, role="server"))[units.SERVICE])
    assert found["ProtectSystem"] == "strict"
    assert found["ReadWritePaths"] == "/var/lib/skerry"
    assert found["ProtectHome"] == "yes"
    assert found["PrivateTmp"] == "yes"


def test_a_server_may_write_to_the_targets_of_its_settings_which_may_be_missing() -> None:
    at_home = Path("/home", "ada", "logs")
    targets = (Path("/srv/my backups"), at_home)
    found = directives(units.render(replace(SPEC, role="server", targets=targets))[units.SERVICE])
    assert found["ReadWritePaths"] == f'/var/lib/skerry "-/srv/my backups" -{at_home}'
    assert found["ProtectHome"] == "read-only"


def test_a_server_whose_program_is_in_a_home_folder_can_still_read_it() -> None:
    at_home = replace(
        SPEC, role="server", program=Path("/home", "ada", "venv", "bin", "skerry"), data=Path("/tmp/data")
    )
    found = directives(units.render(at_home)[units.SERVICE])
    assert found["ProtectHome"] == "read-only"
    assert "PrivateTmp" not in found


def test_increasing_delays_are_asked_for_only_of_a_systemd_that_knows_them() -> None:
    assert "RestartSteps" not in units.render(SPEC)[units.SERVICE]
    assert "RestartSteps" in units.render(replace(SPEC, systemd=255))[units.SERVICE]


def test_paths_with_special_characters_are_quoted() -> None:
    odd = replace(SPEC, program=Path('/opt/my "100%" $kerry/bin/skerry'))
    line = directives(units.render(odd)[units.SERVICE])["ExecStart"]
    assert line.startswith('"/opt/my \\"100%%\\" $$kerry/bin/skerry" up')
