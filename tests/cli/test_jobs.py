"""`skerry job` and `skerry schedule`, and both in files for `skerry apply`, on the real control plane."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skerry.cli.commands import jobs
from tests.support.sites import CloudServer
from tests.support.waiting import eventually_sync

IMAGE = "example.org/sums:1"
FILE = """
jobs:
  - name: sums
    image: example.org/sums:1
    environment: {MODE: fast}
    completions: 3
    resources: {cpu: 100}
schedules:
  - name: nightly
    cron: "30 3 * * *"
    timezone: Europe/Berlin
    job: {image: "example.org/backup:2", retries: 1, checks: ["tcp:80"]}
  - name: report
    cron: "0 8 * * MON-FRI"
    function: {name: there, parameters: {format: pdf}}
"""


def apply(cloud: CloudServer, text: str, *flags: str) -> list[str]:
    (cloud.data / "file.yaml").write_text(text)
    return cloud.say("apply", "-f", str(cloud.data / "file.yaml"), *flags).splitlines()


def refusal(cloud: CloudServer, text: str) -> str:
    (cloud.data / "file.yaml").write_text(text)
    result = cloud.cli("apply", "-f", str(cloud.data / "file.yaml"))
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


def tries(cloud: CloudServer, name: str) -> list[dict[str, Any]]:
    return list(json.loads(cloud.say("job", "describe", name, "-o", "json"))["tries"])


def test_a_job_is_run_listed_described_cancelled_and_deleted(cloud: CloudServer) -> None:
    options = ("--completions", "2", "--parallelism", "2", "--deadline", "5m", "--keep-for", "0")
    assert cloud.say("job", "run", "--name", "sums", *options, IMAGE, "--", "sum", "-a") == "sums\n"
    shown = json.loads(cloud.say("job", "describe", "sums", "-o", "json"))
    assert (shown["completions"], shown["deadline_s"], shown["keep_for_s"]) == (2, 300.0, 0.0)
    assert shown["arguments"] == ["sum", "-a"]
    eventually_sync(lambda: [each["status"] for each in tries(cloud, "sums")] == ["RUNNING"] * 2)
    table = cloud.say("job", "describe", "sums")
    assert "0 of 2" in table
    assert "machine-n1" in table
    line = cloud.say("job", "list").splitlines()[1]
    assert line.split()[:4] == ["sums", "RUNNING", "0/2", "2"]
    assert json.loads(cloud.say("job", "list", "-A", "-o", "json"))["count"] == 1
    assert cloud.say("job", "cancel", "sums") == "sums: CANCELLED\n"
    eventually_sync(lambda: json.loads(cloud.say("job", "list", "-o", "json"))["count"] == 0)


@pytest.mark.parametrize(
    ("status", "succeeded", "has_failed"),
    [
        ("RUNNING", 0, False),
        ("SUCCEEDED", 2, False),
        ("FAILED", 1, True),
        ("CANCELLED", 0, True),
        ("DELETING", 2, False),  # as soon as it is over, if it is kept for no time
        ("DELETING", 1, True),
    ],
)
def test_a_job_that_is_over_and_was_not_done_has_failed(
    status: str, succeeded: int, has_failed: bool
) -> None:
    seen = {"status": status, "succeeded": succeeded, "completions": 2}
    assert jobs.has_failed(seen) is has_failed


def test_a_name_is_made_of_the_image(cloud: CloudServer) -> None:
    assert cloud.say("job", "run", IMAGE).startswith("sums-")
    name = cloud.say("job", "run", "-n", "shop", IMAGE).strip()
    assert json.loads(cloud.say("job", "describe", "-n", "shop", name, "-o", "json"))["namespace"] == "shop"
    assert cloud.say("job", "delete", "-n", "shop", name) == f"deleted job {name}\n"


def test_what_is_not_there_or_cannot_be_is_told(cloud: CloudServer) -> None:
    for arguments, text in (
        (("job", "describe", "none"), "There is no job 'none'"),
        (("job", "run", "--parallelism", "0", IMAGE), "Parallelism is 1 to"),
        (("schedule", "add", "x", "0 0 30 2 *", IMAGE), "never due"),
        (("schedule", "add", "x", "* * * * *", "--fn", "missing"), "There is no function 'missing'"),
        (("schedule", "run", "none"), "There is no schedule 'none'"),
    ):
        result = cloud.cli(*arguments)
        assert (result.exit_code, text.lower() in result.stderr.lower()) == (1, True), result.stderr
    for arguments in (
        ("schedule", "add", "x", "* * * * *"),
        ("schedule", "add", "x", "* * * * *", "--fn", "f", IMAGE),
        ("schedule", "add", "x", "* * * * *", "-p", "a:b", IMAGE),
    ):
        assert cloud.cli(*arguments).exit_code == 2
    cloud.say("job", "run", "--name", "sums", IMAGE)
    eventually_sync(lambda: tries(cloud, "sums"))
    result = cloud.cli("job", "logs", "sums", "--try", "9")
    assert "has 1 tries" in result.stderr


def test_a_schedule_is_added_listed_described_paused_run_and_deleted(cloud: CloudServer) -> None:
    result = cloud.cli("schedule", "add", "nightly", "30 3 * * *", "--tz", "Europe/Berlin", IMAGE)
    assert result.stdout == "nightly\n"
    assert result.stderr.count("next: ") == 5
    assert " 03:30 C" in result.stderr
    assert "nightly" in cloud.say("schedule", "list")
    assert cloud.say("schedule", "pause", "nightly") == "paused schedule nightly\n"
    assert "paused" in cloud.say("schedule", "list")
    assert cloud.say("schedule", "resume", "nightly") == "resumed schedule nightly\n"
    cloud.say("schedule", "run", "nightly")

    def runs() -> list[dict[str, Any]]:
        return list(json.loads(cloud.say("schedule", "describe", "nightly", "-o", "json"))["runs"])

    eventually_sync(lambda: [run["status"] for run in runs()] == ["RUNNING"])
    table = cloud.say("schedule", "describe", "nightly")
    assert runs()[0]["target"] in table
    assert "(manual)" in table
    listed = json.loads(cloud.say("job", "list", "--schedule", "nightly", "-o", "json"))
    assert [job["name"] for job in listed["jobs"]] == [runs()[0]["target"]]
    assert cloud.say("schedule", "delete", "nightly") == "deleted schedule nightly\n"


def test_a_schedule_copies_a_job_or_calls_a_function(cloud: CloudServer) -> None:
    cloud.say("job", "run", "--name", "sums", "--retries", "7", IMAGE)
    cloud.say("schedule", "add", "copied", "*/10 * * * *", "--job", "sums", "--overlap", "queue")
    shown = json.loads(cloud.say("schedule", "describe", "copied", "-o", "json"))
    assert (shown["job"]["retries"], shown["overlap"]) == (7, "queue")
    options = ("--fn", "there", "-p", "format:pdf", "-p", "pages:=3", "--window", "0", "--paused")
    cloud.say("schedule", "add", "called", "0 8 * * MON-FRI", *options)
    shown = json.loads(cloud.say("schedule", "describe", "called", "-o", "json"))
    assert shown["function"] == {
        "name": "there",
        "parameters": {"format": "pdf", "pages": 3},
        "namespace": "default",
    }
    assert (shown["window_s"], shown["paused"]) == (0.0, True)
    assert "function there" in cloud.say("schedule", "list")


def test_files_have_jobs_and_schedules(cloud: CloudServer) -> None:
    created = ["created job sums", "created schedule nightly", "created schedule report"]
    assert apply(cloud, FILE, "--dry-run") == [line.replace("created", "would create") for line in created]
    assert apply(cloud, FILE) == created
    assert apply(cloud, FILE) == [line.replace("created", "unchanged:") for line in created]
    changed = (
        FILE.replace("30 3", "31 3").replace("format: pdf", "format: txt").replace("backup:2", "backup:3")
    )
    assert apply(cloud, changed)[1:] == [
        "changed schedule nightly (cron, job)",
        "changed schedule report (function)",
    ]
    shown = json.loads(cloud.say("schedule", "describe", "nightly", "-o", "json"))
    assert (shown["cron"], shown["job"]["image"]) == ("31 3 * * *", "example.org/backup:3")
    assert "jobs cannot be changed" in refusal(cloud, FILE.replace("completions: 3", "completions: 4"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jobs: [{name: a, image: x, restart: always}]", "has no `restart`"),
        ("jobs: [{name: a, image: x, completions: many}]", "completions"),
        ("jobs: [{name: a, image: x, parallelism: 0}]", "parallelism is 1 to"),
        ("jobs: [{name: a, image: x}, {name: a, image: y}]", "is there twice"),
        ("schedules: [{name: a, cron: '* * * * *'}]", "one of `job`, `from_job` and `function`"),
        ("schedules: [{name: a, job: {image: x}}]", "needs `cron`"),
        ("schedules: [{name: a, cron: '* * * * *', job: x}]", "must be an object"),
        ("schedules: [{name: a, cron: '* * * * *', job: {}}]", "`image` must be"),
        ("schedules: [{name: a, cron: '* * * * *', function: {}}]", "name"),
    ],
)
def test_files_that_are_wrong_are_refused_with_the_place(cloud: CloudServer, text: str, reason: str) -> None:
    said = refusal(cloud, text)
    assert reason in said
    assert said.count("\n") == 1
