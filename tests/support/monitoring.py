"""The files in docs/monitoring: the expressions of the rules and of the board, and the metrics in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
_OF_TARGETS = frozenset({"instance", "job", "skerry_role", "le"})
_TEXTS = re.compile(r'"[^"]*"')
_METRIC = re.compile(r"\b(?:skerry|process)_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b((?:skerry|process)_[a-z0-9_]+){([^}]*)}")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


class Expression(NamedTuple):
    """A query, and where it is."""

    place: str
    text: str

    @property
    def metrics(self) -> set[str]:
        """What it selects; names of recording rules, which have colons, are none."""
        return set(_METRIC.findall(_TEXTS.sub('""', self.text)))

    @property
    def labels(self) -> set[str]:
        """All labels that it names, of whatever metric."""
        bare = _TEXTS.sub('""', self.text)
        named = {part.strip() for group in _GROUPING.findall(bare) for part in group.split(",")}
        for _, selector in _SELECTOR.findall(bare):
            named |= {re.split(r"[=!]", part.strip())[0] for part in selector.split(",")}
        return named - _OF_TARGETS


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / "rules.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def rule_expressions() -> list[Expression]:
    return [Expression(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    return found


def board_expressions() -> list[Expression]:
    found = [
        Expression(panel["title"], target["expr"])
        for panel in board()["panels"]
        for target in panel.get("targets", [])
    ]
    return [*found, Expression("variable namespace", "skerry_instances")]


def documented() -> dict[str, tuple[str, set[str]]]:
    """The type and labels of every metric in docs/metrics.md."""
    found = {}
    for line in (FOLDER.parent / "metrics.md").read_text().splitlines():
        if line.startswith("| `skerry_"):
            name, kind, labels, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            found[name.strip("`")] = kind, set(re.findall(r"`(\w+)`", labels))
    return found


def family_of(name: str, known: set[str]) -> str:
    """The family of a series: a histogram has three kinds of them."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name not in known and name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
