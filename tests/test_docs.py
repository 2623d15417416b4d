"""The docs: links resolve, and the files, commands and tests that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_repo import ROOT, tracked

PAGES = [path for path in tracked("*.md") if path.suffix == ".md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings give."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_of_the_docs_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {str(p.relative_to(ROOT / "docs")) for p in PAGES if p.is_relative_to(ROOT / "docs")} - {
        "README.md"
    }
    linked = {target.partition("#")[0] for target in LINK.findall(index)}
    assert pages - linked == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_and_benchmark_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:tests|bench|src)/[\w/.]+?)(?:::(\w+))?`", text)
    assert named or page.name not in ("specification.md", "SECURITY.md"), f"{page} names no test"
    missing = []
    for path, test in named:
        file = ROOT / path
        if not file.exists() or (test and f"def {test}(" not in file.read_text()):
            missing.append(f"{path}::{test}" if test else path)
    alone = re.findall(r"`(test_\w+\.py)`", text)
    missing += [name for name in alone if not any((ROOT / "tests").rglob(name))]
    assert missing == []


def test_every_guarantee_of_security_has_a_mechanism_and_tests() -> None:
    section, unproven, promised = "", [], set()
    for line in (ROOT / "SECURITY.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| guarantee |"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            promised.add(section)
            files = re.findall(r"`(tests/[\w/]+\.py)`", cells[-1])
            has_tests = files and all("def test_" in (ROOT / file).read_text() for file in files)
            if len(cells) != 3 or not all(cells) or not has_tests:
                unproven.append(cells[0])
    assert unproven == []
    against = {
        "Another local user",
        "A viewer or an invoker",
        "A deployer",
        "A function author",
        "A guest of the market",
        "A neighbour cloud",
        "A stolen node key",
        "A web page, a flood, a hostile client",
    }
    assert against - promised == set()
