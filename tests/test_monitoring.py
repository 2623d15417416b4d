"""The rules and the board in docs/monitoring fit the metrics that Skerry has, and each other."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from scripts.generate import import_everything

from skerry.kit import metrics
from tests.support import monitoring
from tests.support.monitoring import FOLDER, Expression, family_of

EXPRESSIONS = [*monitoring.rule_expressions(), *monitoring.board_expressions()]
OLD_NAMES = {"skerry_function_memory_used_megabytes", "skerry_function_cpus_used"}  # kept as they were


@pytest.fixture(scope="module", autouse=True)
def declared() -> dict[str, metrics.MetricFamily]:
    import_everything()
    return metrics.DECLARED


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: one.place)
def test_expressions_name_metrics_and_labels_that_there_are(expression: Expression) -> None:
    known = set(metrics.DECLARED)
    families = {family_of(name, known) for name in expression.metrics if name.startswith("skerry_")}
    assert families <= known
    labels = {label for name in families & known for label in metrics.DECLARED[name].labels}
    if families:
        assert expression.labels <= labels
    else:
        assert "skerry:" in expression.text or "process_" in expression.text or "up{" in expression.text


def test_an_expression_is_read_with_its_metrics_and_labels() -> None:
    text = 'sum by (a, le) (rate(skerry_x_bucket{b=~"skerry_no.*", c!="1"}[5m])) > skerry:record:max'
    expression = Expression("", text)
    assert (expression.metrics, expression.labels) == ({"skerry_x_bucket"}, {"a", "b", "c"})


def test_recording_rules_that_are_used_are_defined() -> None:
    recorded = {rule["record"] for rule in monitoring.rules() if "record" in rule}
    used = {name for one in EXPRESSIONS for name in re.findall(r"skerry:[a-z0-9_:]+", one.text)}
    assert used <= recorded


def test_every_alert_says_how_severe_it_is_and_what_is_wrong() -> None:
    for rule in monitoring.rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert rule["annotations"]["summary"], rule["alert"]


def test_panels_of_the_board_have_an_id_of_their_own_and_do_not_overlap() -> None:
    panels = monitoring.board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, family in metrics.DECLARED.items():
        assert re.fullmatch(r"skerry_[a-z0-9_]+", name)
        assert name.endswith("_total") is (family.kind == "counter"), name
        assert name in OLD_NAMES or not re.search(r"_(ms|millis|minutes|hours|days|megabytes|kb|mb)\b", name)
        # Labels of targets, which Prometheus puts over those of metrics.
        assert not {"instance", "job", "skerry_role"} & set(family.labels), name
        assert family.help_text


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs prometheus, a package of system-packages.txt")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules.test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
    ids=lambda one: " ".join(one),
)
def test_prometheus_takes_the_files(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
