"""`skerry alert`, and alerts in files for `skerry apply`."""

from __future__ import annotations

import json

import pytest

from skerry.cli.commands.alerts import CONDITIONS
from skerry.model.alerts import AlertCondition
from tests.support.sites import CloudServer

FILE = """
namespace: shop
alerts:
  - {name: nodes, on: node-lost, for_s: 60, webhook: "https://hooks.example.org/TOKEN"}
  - {name: tls, on: certificate-expires, threshold: 21, webhook: "https://hooks.example.org/TOKEN"}
"""
ADD = ("alert", "add", "nodes", "--on", "node-lost", "--to", "webhook")


def apply(cloud: CloudServer, text: str) -> list[str]:
    (cloud.data / "file.yaml").write_text(text)
    return cloud.say("apply", "-f", str(cloud.data / "file.yaml")).splitlines()


def count(cloud: CloudServer) -> int:
    return int(json.loads(cloud.say("alert", "list", "-o", "json"))["count"])


def test_the_conditions_of_the_command_are_those_of_the_server() -> None:
    assert list(CONDITIONS) == [condition.value for condition in AlertCondition]


def test_an_alert_is_added_changed_shown_and_removed(cloud: CloudServer) -> None:
    assert cloud.say(*ADD, "https://hooks.example.org/TOKEN", "--for", "5m", "--repeat", "1d") == "nodes\n"
    again = cloud.cli(*ADD, "-", "--for", "90s", typed="https://other.example.org/TOKEN\n")
    assert again.exit_code == 0, again.stderr
    listed = cloud.say("alert", "list")
    assert "https://other.example.org/..." in listed
    described = cloud.say("alert", "describe", "nodes")
    assert "TOKEN" not in listed + described + cloud.say("alert", "list", "-o", "json")
    assert "node-lost" in described
    assert "for             1m" in described
    assert "repeated after  4h" in described  # what is not given gets its default
    cloud.say("alert", "remove", "nodes")
    assert count(cloud) == 0
    assert cloud.cli("alert", "describe", "nodes").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alert", "add", "x", "--on", "spending", "--to", "webhook", "https://h/x"), "needs a threshold"),
        (("alert", "add", "x", "--on", "node-lost", "--to", "mail", "a@example.org"), "alerts.smtp_host"),
        ((*ADD, "http://169.254.169.254/"), "metadata service"),
        ((*ADD, "gopher://h/x"), "a webhook is a URL"),
        ((*ADD, "https://h/x", "-n", "shop"), "whole cloud"),
        (("alert", "add", "x", "--on", "backup-old", "--to", "webhook", "https://h/x"), "no backups"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(
    cloud: CloudServer, arguments: tuple[str, ...], message: str
) -> None:
    result = cloud.cli(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert count(cloud) == 0


def test_a_file_is_applied_once_and_again(cloud: CloudServer) -> None:
    assert apply(cloud, FILE) == ["created alert nodes", "created alert tls"]
    assert apply(cloud, FILE) == ["unchanged: alert nodes", "unchanged: alert tls"]
    changed = FILE.replace("for_s: 60", "for_s: 90").replace(
        '21, webhook: "https://hooks', '21, webhook: "https://other'
    )
    assert apply(cloud, changed) == ["changed alert nodes (for_s)", "changed alert tls (destination)"]
    cloud.say("alert", "remove", "nodes", "tls")


def test_a_file_with_an_alert_that_is_wrong_changes_nothing(cloud: CloudServer) -> None:
    (cloud.data / "file.yaml").write_text(FILE.replace("node-lost", "node-gone"))
    result = cloud.cli("apply", "-f", str(cloud.data / "file.yaml"))
    assert (result.exit_code, count(cloud)) == (1, 0)
    assert "alerts[0] (nodes)" in result.stderr
