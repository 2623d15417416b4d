"""The devices of a machine, from its CDI files: good ones, bad ones, and changes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.nodes import NodeFacts
from skerry.node.devices.cdi_files import InvalidCdiFile, parse_file
from skerry.node.devices.device_catalog import DeviceCatalog, read_folders
from tests.support.waiting import eventually


def device(name: str, *nodes: str, **edits: Any) -> dict[str, Any]:
    found = [{"path": node} for node in nodes]
    return {"name": name, "containerEdits": {"deviceNodes": found, **edits}}


def content(*devices: dict[str, Any], kind: str = "example.com/gpu", **more: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": list(devices), **more}


def write(folder: Path, name: str, value: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    path.chmod(0o644)
    return path


def test_devices_of_all_files_are_known_in_order(tmp_path: Path) -> None:
    write(tmp_path, "a.json", content(device("10", "/dev/g10"), device("2", "/dev/g2")))
    write(
        tmp_path,
        "b.yaml",
        """
cdiVersion: "1.0.0"
kind: vendor.org/net-card
annotations: {made.by: hand}
containerEdits:
  env: [CARD=yes]
devices:
  - name: eth
    containerEdits:
      deviceNodes:
        - {path: /dev/card, hostPath: /dev/card0, fileMode: 0660, gid: 44, permissions: rw}
      hooks:
        - {hookName: createContainer, path: /usr/bin/hook, args: [hook, run], timeout: 5}
""",
    )
    write(tmp_path, "notes.txt", "no CDI file")
    catalog = DeviceCatalog([tmp_path, tmp_path / "absent"]).open()
    assert catalog.names == ("example.com/gpu=2", "example.com/gpu=10", "vendor.org/net-card=eth")
    assert catalog.warnings == ()
    of_file, own = catalog.edits(["vendor.org/net-card=eth"])
    assert of_file.env == ("CARD=yes",)
    [node] = own.device_nodes
    assert (node.source, node.file_mode, node.gid, node.permissions) == ("/dev/card0", 0o660, 44, "rw")
    with pytest.raises(errors.FailedPrecondition, match=r"no device example\.com/gpu=3 any more"):
        catalog.edits(["example.com/gpu=3"])


def test_second_names_and_all_devices_together_are_not_reported(tmp_path: Path) -> None:
    """As NVIDIA's tool writes it: by index, by UUID, and `all`; parts of one GPU share its node."""
    write(
        tmp_path,
        "gpu.json",
        content(
            device("0", "/dev/g0"),
            device("1", "/dev/g1"),
            device("GPU-aaaa", "/dev/g0"),
            device("all", "/dev/g0", "/dev/g1"),
            device("2:0", "/dev/g2", "/dev/caps/1"),
            device("2:1", "/dev/g2", "/dev/caps/2"),
            device("virtual", env=["X=1"]),
            containerEdits={"deviceNodes": [{"path": "/dev/control"}]},
        ),
    )
    names = DeviceCatalog([tmp_path]).open().names
    assert names == tuple(f"example.com/gpu={name}" for name in ("0", "1", "2:0", "2:1", "virtual"))


def test_a_later_folder_wins_and_two_of_one_folder_cancel_each_other(tmp_path: Path) -> None:
    static, dynamic = tmp_path / "etc", tmp_path / "run"
    write(static, "a.json", content(device("0", "/dev/old")))
    write(dynamic, "a.json", content(device("0", "/dev/new")))
    write(dynamic, "b.json", content(device("1", "/dev/x")))
    write(dynamic, "c.json", content(device("1", "/dev/y")))
    found = read_folders([static, dynamic])
    assert found.reported == ("example.com/gpu=0",)
    assert found.edits["example.com/gpu=0"].own.device_nodes[0].path == "/dev/new"
    assert found.warnings == (f"the device example.com/gpu=1 is in two CDI files of {dynamic}, and not used",)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        (content(device("0"), kind="gpu"), "no kind"),
        (content(device("0"), cdiVersion="2.0.0"), "version '2.0.0' is not known"),
        (content(), "no devices"),
        (content(device("a b")), "no name"),
        (content(device("0"), device("0")), "the same name"),
        (content(device("0", "dev/x")), "absolute path"),
        (content(device("0", "/dev/../x")), "without `..`"),
        (content(device("0", env=["X"])), "KEY=VALUE"),
        (content(device("0", hooks=[{"hookName": "never", "path": "/x"}])), "no hook"),
        (content(device("0", additionalGids=[0])), "additionalGids"),
        (content(device("0", intelRdt={})), "intelRdt"),
        (content(device("0", netDevices=[{}])), "network devices"),
        (content(device("0", unknown=1)), "unknown field `unknown`"),
        (content(device("0", deviceNodes=[{"path": "/dev/x", "type": "x"}])), "unknown type"),
        (content(device("0", deviceNodes=[{"path": "/dev/x", "major": "1"}])), "Expected `int`"),
    ],
)
def test_a_malformed_file_is_a_warning_and_takes_nothing_from_others(
    tmp_path: Path, value: object, why: str
) -> None:
    bad = write(tmp_path, "bad.json", value)
    write(tmp_path, "good.json", content(device("9", "/dev/g9"), kind="good.com/gpu"))
    found = read_folders([tmp_path])
    assert found.reported == ("good.com/gpu=9",)
    [warning] = found.warnings
    assert warning.startswith(f"the CDI file {bad} is not used: ")
    assert why in warning
    NodeFacts(devices=found.reported, warnings=found.warnings)  # can be reported


def test_files_that_others_can_write_are_not_used(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", content(device("0")))
    path.chmod(0o666)
    assert "chmod go-w" in read_folders([tmp_path]).warnings[0]
    path.chmod(0o644)
    assert read_folders([tmp_path]).reported
    (tmp_path / "link.json").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.json")  # nobody waits for a writer
    warnings = read_folders([tmp_path]).warnings
    assert [warning.rpartition(": ")[2] for warning in warnings] == [
        "Too many levels of symbolic links",
        "it is no regular file",
    ]
    tmp_path.chmod(0o777)
    assert read_folders([tmp_path]).reported == ()


@pytest.mark.root(tries=1)
def test_files_of_other_users_are_not_used(tmp_path: Path) -> None:
    os.chown(write(tmp_path, "a.json", content(device("0"))), 65534, 65534)
    found = read_folders([tmp_path])
    assert (found.reported, "make root its owner" in found.warnings[0]) == ((), True)


def test_many_bad_files_are_few_warnings(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path, f"{number:02}.json", "x" * 50_000)
    warnings = read_folders([tmp_path]).warnings
    assert len(warnings) == 8
    assert warnings[-1] == "and 33 more CDI files or devices"
    NodeFacts(warnings=warnings)


def test_an_alias_that_grows_is_refused() -> None:
    bomb = b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    with pytest.raises(InvalidCdiFile, match="aliases"):
        parse_file(bomb, is_yaml=True)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_no_content_does_more_than_be_refused(data: bytes, is_yaml: bool) -> None:
    with pytest.raises(InvalidCdiFile):
        parse_file(data, is_yaml=is_yaml)


async def test_changes_are_noticed_and_a_folder_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.devices.device_catalog._LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr("skerry.node.devices.device_catalog._SETTLE_S", 0.0)
    folder = tmp_path / "cdi"
    catalog = DeviceCatalog([folder]).open()
    following = asyncio.ensure_future(catalog.run())
    try:
        assert catalog.names == ()
        path = write(folder, "a.json", content(device("0")))
        await eventually(lambda: catalog.names == ("example.com/gpu=0",))
        monkeypatch.setattr("skerry.node.devices.device_catalog._LOOK_AGAIN_S", 3600.0)
        write(folder, "b.json", content(device("1"), kind="other.com/gpu"))
        await eventually(lambda: len(catalog.names) == 2)
        path.unlink()
        await eventually(lambda: catalog.names == ("other.com/gpu=1",))
        write(folder, "b.json", "{")
        await eventually(lambda: catalog.warnings and not catalog.names)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
