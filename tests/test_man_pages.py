"""The man pages: one for each command, well formed, and in the place where `man` looks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import man_pages

from skerry.cli import main
from tests.test_repo import ROOT

PAGES = man_pages.pages()


def test_every_command_has_a_page_and_the_first_one_names_them_all() -> None:
    assert PAGES.keys() == {"skerry.1", *(f"skerry-{name}.1" for name in main.VERBS)}
    named = re.findall(r"\\fBskerry\\-([a-z]+)\\fR\(1\)", PAGES["skerry.1"])
    assert set(named) >= set(main.VERBS)


def test_a_page_has_commands_options_and_examples_of_its_command() -> None:
    page = PAGES["skerry-service.1"]
    assert '.SS "skerry service rollback"' in page
    assert r"\fB\-\-replicas" in page
    assert ".nf\n" in page


def test_no_line_of_text_is_taken_for_a_request() -> None:
    known = {"TH", "SH", "SS", "PP", "TP", "B", "br", "nf", "fi"}
    for name, page in PAGES.items():
        for line in page.splitlines():
            assert not line.startswith("'"), (name, line)
            if line.startswith("."):
                assert line[1:].split()[0] in known, (name, line)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_finds_nothing_wrong(tmp_path: Path) -> None:
    assert man_pages.main([str(tmp_path)]) == 0
    files = sorted(map(str, tmp_path.glob("*.1")))
    assert len(files) == len(PAGES)
    ended = subprocess.run(["mandoc", "-Tlint", "-W", "warning", *files], capture_output=True, text=True)
    assert ended.stdout == ""
    assert ended.returncode == 0


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_a_page_reads_as_its_help_does(tmp_path: Path) -> None:
    man_pages.main([str(tmp_path)])
    ended = subprocess.run(
        ["mandoc", "-Tascii", str(tmp_path / "skerry-context.1")], capture_output=True, text=True, check=True
    )
    text = re.sub(".\b", "", ended.stdout)
    assert "skerry-context - name servers, and choose the one that is used" in text
    assert "skerry context add prod --url https://hub.example:1323 --ca ca.crt --token -" in text
    assert "--replace" in text


def test_pages_of_commands_that_are_no_more_are_removed_and_others_stay(tmp_path: Path) -> None:
    for name in ("skerry-gone.1", "skerrygraph.1"):
        (tmp_path / name).write_text("")
    man_pages.main([str(tmp_path)])
    assert not (tmp_path / "skerry-gone.1").exists()
    assert (tmp_path / "skerrygraph.1").exists()


def test_make_install_writes_them_below_its_prefix() -> None:
    rule = (ROOT / "Makefile").read_text().partition("\ninstall:")[2].partition("\n\n")[0]
    assert "scripts/man_pages.py $(PREFIX)/share/man/man1" in rule
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "man_pages.py")], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "usage" in ended.stderr
