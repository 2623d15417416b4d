"""When the demo refuses to run, and what its sites are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.cli.commands import demo as command
from skerry.demo import delay_relay, scenario
from skerry.demo.delay_relay import DelayedLink
from skerry.demo.machines import MachineFailed, find_machine, groups_prefix
from skerry.demo.record import DemoRecord
from skerry.demo.scenario import DemoOptions, DemoRefused
from skerry.demo.sites import CLOUD, EDGES, NEIGHBOUR, settings_of
from skerry.kit.files import FolderLock
from skerry.model.settings import Settings


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that could run the demo; nothing here starts one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(scenario, "_PROGRAMS", ("sh",))


def test_without_root_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DemoRefused, match=r"needs root.*sudo skerry demo"):
        scenario.run(DemoOptions(tmp_path / "demo", ()))
    assert not (tmp_path / "demo").exists()


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "_PROGRAMS", ("sh", "no-such-program"))
    with pytest.raises(DemoRefused, match="needs no-such-program: install"):
        scenario.run(DemoOptions(tmp_path, ()))


def test_a_folder_with_files_of_others_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    with pytest.raises(DemoRefused, match="has other files, such as letter"):
        scenario.run(DemoOptions(tmp_path, ()))
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_demo_that_was_left_must_be_removed_first(tmp_path: Path) -> None:
    DemoRecord(tmp_path).create()
    with pytest.raises(DemoRefused, match=f"skerry demo clean --folder {tmp_path}"):
        scenario.run(DemoOptions(tmp_path, ()))
    assert scenario.clean(tmp_path) is not None
    assert scenario.clean(tmp_path) is None


def test_a_demo_that_runs_is_neither_started_twice_nor_removed(tmp_path: Path) -> None:
    DemoRecord(tmp_path).create()
    lock = FolderLock(tmp_path)
    lock.acquire()
    try:
        for act in (lambda: scenario.run(DemoOptions(tmp_path, ())), lambda: scenario.clean(tmp_path)):
            with pytest.raises(DemoRefused, match=f"process {os.getpid()}"):
                act()
    finally:
        lock.release()
    assert DemoRecord(tmp_path).exists()


def test_the_command_offers_every_step() -> None:
    assert tuple(scenario.STEPS) == command._STEPS


def test_a_machine_that_is_not_on_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(MachineFailed, match=r"No machine 'oslo'.*skerry demo --keep"):
        find_machine(tmp_path, "oslo")


def test_every_setting_of_a_site_exists() -> None:
    for site in (CLOUD, *EDGES, NEIGHBOUR):
        for key in settings_of(site, Path("/demo")):
            section, _, leaf = key.partition(".")
            assert hasattr(getattr(Settings(), section), leaf), key


def test_sites_have_cgroups_and_addresses_of_their_own() -> None:
    sites = (CLOUD, *EDGES, NEIGHBOUR)
    roots = {settings_of(site, Path("/demo"))["node.cgroup_root"] for site in sites}
    assert len(roots) == len(sites) == len({site.address for site in sites})
    assert all(root.startswith(groups_prefix(Path("/demo"))) for root in roots)
    assert groups_prefix(Path("/demo")) != groups_prefix(Path("/other"))


def test_links_are_passed_to_the_relay_as_words() -> None:
    links = [DelayedLink("near-oslo", "far-oslo", 0.006), DelayedLink("a", "b", 1.0)]
    assert delay_relay.parse([delay_relay.as_word(link) for link in links]) == links
