"""Logs of a whole Skerry: of the run before, and forwarded to a file, to syslog and to Loki."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import imagery
from tests.support.clusters import sweep
from tests.support.log_receivers import LokiReceiver, SyslogReceiver, loki_receiver, syslog_receiver
from tests.support.remains import left_of
from tests.support.shares import free_port
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

CRASH = "n=$(($(cat /n 2>&-) + 1)); echo $n > /n; echo run $n; [ $n -gt 2 ] && sleep 1000; exit 7"


class Site(NamedTuple):
    """A Skerry that forwards, and who receives."""

    folder: Path
    flags: tuple[str, ...]
    syslog: SyslogReceiver
    loki_port: int
    archive: str

    def start(self) -> Skerry:
        skerry = Skerry(self.folder, *self.flags)
        skerry.wait_ready()
        eventually_sync(lambda: [node["liveness"] for node in shown(skerry, "nodes")["nodes"]] == ["live"])
        return skerry

    @property
    def file(self) -> Path:
        return self.folder / "logs" / "all.log"

    def in_file(self, **labels: str) -> list[str]:
        if not self.file.exists():
            return []
        found = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [each["text"] for each in found if labels.items() <= each.items()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path
    made = imagery.busybox(command=("sh", "-c", "echo hello; sleep 1000"))
    archive = f"oci-archive:{imagery.write_oci_archive(made, folder / 'image.tar')}"
    with syslog_receiver("tcp") as syslog:
        port = free_port()
        targets = [
            f"file:{folder}/logs/all.log",
            f"syslog+tcp://127.0.0.1:{syslog.port}",
            f"loki+http://127.0.0.1:{port}/loki/api/v1/push?tenant=test",
        ]
        flags = (
            "--set",
            f"log.forward={','.join(targets)}",
            "--set",
            "log.cloud=home",
            "--set",
            "node.name=shed",
        )
        yield Site(folder, flags, syslog, port, archive)


def say(skerry: Skerry, *arguments: str) -> str:
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(skerry: Skerry, *what: str) -> Any:
    return json.loads(say(skerry, "get", *what, "-o", "json"))


def test_logs_of_the_run_before_are_shown_and_all_logs_arrive_though_targets_and_skerry_die(
    site: Site,
) -> None:
    skerry = site.start()
    try:
        # A crash loop: the run before the last one is readable, with its exit code.
        say(
            skerry,
            "run",
            "-d",
            "--name",
            "crash",
            "--restart",
            "always",
            site.archive,
            "--",
            "sh",
            "-c",
            CRASH,
        )
        eventually_sync(lambda: skerry.cli("logs", "crash").stdout == "run 3\n")
        assert say(skerry, "logs", "--previous", "crash") == "run 2\n"
        described = eventually_sync(lambda: _fields(say(skerry, "describe", "instance", "crash")))
        assert (described["status"].split()[0], described["previous exit code"]) == ("RUNNING", "7")

        # All three runs arrive, and Skerry's own log. Loki is not there yet.
        everything = ["run 1", "run 2", "run 3"]
        eventually_sync(lambda: site.in_file(kind="instance", name="crash") == everything)
        eventually_sync(lambda: site.syslog.texts(name="crash") == everything)
        eventually_sync(lambda: any("process.ready" in text for text in site.syslog.texts(kind="process")))

        # What ends and is deleted at once is forwarded, too.
        say(skerry, "run", "--name", "short", "--restart", "never", site.archive, "--", "echo", "gone")
        say(skerry, "delete", "instance", "short")
        eventually_sync(lambda: site.in_file(name="short") == ["gone"])
        skerry.kill()

        # Loki comes, and Skerry is back: the first has missed nothing, and the others get nothing twice.
        with loki_receiver(site.loki_port) as loki:
            skerry = site.start()
            assert say(skerry, "logs", "--previous", "crash") == "run 2\n"
            eventually_sync(lambda: loki.texts(kind="instance", name="crash") == everything)
            eventually_sync(lambda: loki.texts(name="short") == ["gone"])
            labels = next(labels for labels, _, text in loki.lines if text == "run 3")
            assert labels == {
                "cloud": "home",
                "node": "shed",
                "kind": "instance",
                "namespace": "default",
                "instance": labels["instance"],
                "name": "crash",
                "stream": "stdout",
            }
            assert {headers["X-Scope-OrgID"] for headers in loki.headers} == {"test"}
            _check_slow_target(site, skerry, loki)
            assert loki.problems == []
        assert site.in_file(kind="instance", name="crash") == everything
        assert site.syslog.texts(name="crash") == everything
        assert site.syslog.problems == []
        assert "skerry_log_forward_lines_total" in skerry.call("GET", "/metrics")[1]
        say(skerry, "delete", "instance", "crash")
        eventually_sync(lambda: not list((skerry.data / "log-forwarding" / "removed").iterdir()))
        assert skerry.stop() == 0
    finally:
        sweep(skerry)
    assert left_of(skerry) == []


def _check_slow_target(site: Site, skerry: Skerry, loki: LokiReceiver) -> None:
    """A target that reads nothing slows neither a program nor the other targets."""
    site.syslog.is_reading.clear()
    write = "yes 0123456789 | head -n 20000; echo done"
    say(skerry, "run", "--name", "loud", "--restart", "never", site.archive, "--", "sh", "-c", write)
    eventually_sync(lambda: shown(skerry, "instance", "loud")["status"] == "TERMINATED")
    eventually_sync(lambda: loki.texts(name="loud")[-1:] == ["done"])
    assert "done" not in site.syslog.texts(name="loud")
    say(skerry, "delete", "instance", "loud")
    site.syslog.is_reading.set()
    eventually_sync(lambda: site.syslog.texts(name="loud")[-1:] == ["done"])


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition("  ") for line in text.splitlines())
    return {name.strip().rstrip(":"): value.strip() for name, _, value in pairs if value.strip()}


def test_a_target_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    skerry = Skerry(tmp_path, "--set", "log.forward=gopher://h")
    assert skerry.process.wait(60) != 0
    assert "gopher" in skerry.said()
