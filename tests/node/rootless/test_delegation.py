"""Whether the cgroup of a process was delegated to its user."""

from __future__ import annotations

from pathlib import Path

from skerry.node.rootless import delegation


def cgroup(folder: Path, controllers: str) -> None:
    folder.mkdir(parents=True)
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (folder / name).touch()
    (folder / "cgroup.controllers").write_text(controllers)


def test_a_folder_that_we_may_write_to_is_delegated_with_its_controllers(tmp_path: Path) -> None:
    cgroup(tmp_path / "user" / "scope", "cpu memory pids\n")
    found = delegation.find(str(tmp_path), "9:name=systemd:/\n0::/user/scope\n")
    assert found is not None
    assert found.folder == tmp_path / "user" / "scope"
    assert found.controllers == {"cpu", "memory", "pids"}


def test_every_file_must_be_ours(tmp_path: Path) -> None:
    cgroup(tmp_path / "scope", "memory\n")

    def may_write(path: Path) -> bool:
        return path.name != "cgroup.subtree_control"

    assert delegation.find(str(tmp_path), "0::/scope\n", may_write) is None


def test_without_cgroup_v2_nothing_is_delegated(tmp_path: Path) -> None:
    assert delegation.find(None, "0::/scope\n") is None
    assert delegation.find(str(tmp_path), "4:memory:/scope\n") is None


def test_a_cgroup_outside_of_the_visible_part_is_not_delegated(tmp_path: Path) -> None:
    assert delegation.find(str(tmp_path), "0::/../other\n") is None
