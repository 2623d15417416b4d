"""Logs are events with fields: JSON for machines, and the request id follows the request."""

from __future__ import annotations

import json
import subprocess
import sys

from skerry.kit import logs


def logged(script: str, level: str = "info", style: str = "json") -> list[str]:
    """The lines that `script` logs in a process of its own."""
    opening = "import structlog, logging, asyncio\nfrom skerry.kit import logs\n"
    code = f"{opening}logs.setup({level!r}, {style!r})\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_lines_are_json_with_time_level_event_and_fields() -> None:
    (line,) = logged("structlog.get_logger('x').info('plan.applied', started=2)")
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {"event": "plan.applied", "level": "info", "started": 2}


def test_the_request_id_follows_through_awaits_and_child_tasks() -> None:
    script = """
async def child():
    structlog.get_logger().info("inner")
async def main():
    with logs.request_context("r-1"):
        await asyncio.create_task(child())
    structlog.get_logger().info("outer")
asyncio.run(main())
"""
    inner, outer = (json.loads(line) for line in logged(script))
    assert inner["request_id"] == "r-1"
    assert "request_id" not in outer


def test_who_has_no_request_id_logs_none() -> None:
    (line,) = logged("with logs.request_context(''): structlog.get_logger().info('x')")
    assert "request_id" not in json.loads(line)


def test_the_request_id_can_be_asked_for() -> None:
    with logs.request_context("r-1"):
        assert logs.request_id() == "r-1"
    assert logs.request_id() == ""


def test_lines_below_the_level_are_not_written() -> None:
    assert logged("structlog.get_logger().info('quiet')", level="warning") == []


def test_libraries_come_out_in_the_same_shape() -> None:
    (line,) = logged("logging.getLogger('lib').warning('careful %s', 'now')")
    entry = json.loads(line)
    assert (entry["event"], entry["level"]) == ("careful now", "warning")


def test_people_get_text() -> None:
    (line,) = logged("structlog.get_logger().info('plan.applied', started=2)", style="text")
    assert "plan.applied" in line
    assert not line.startswith("{")


def test_tracebacks_show_no_local_variables() -> None:
    script = """
def fail(secret):
    raise ValueError("no")
try:
    fail("hunter" + "2")
except ValueError:
    structlog.get_logger().error("failed", exc_info=True)
"""
    for style in ("text", "json"):
        text = "\n".join(logged(script, style=style))
        assert "ValueError" in text
        assert "hunter2" not in text


def test_a_line_that_the_disk_refuses_is_counted_and_hurts_nobody() -> None:
    script = """
import sys
from skerry.kit import logs
logs.setup("info", "json")
import structlog
structlog.get_logger().info("one")
print(logs.LINES_LOST._value.get())
"""
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, text=True)
    # The interpreter itself complains at its end about what is left in the stream.
    assert float(done.stdout) >= 1


def test_lines_that_are_not_to_be_shown_are_still_kept_for_clients() -> None:
    script = """
log = structlog.get_logger()
logs.show_only(lambda level, event: level != "info" or event == "a.shown")
log.info("a.shown"); log.info("a.hidden"); log.warning("a.warning")
logs.show_only(None)
log.info("a.last")
log.info(f"a.kept_{logs.recent.last}")
"""
    lines = logged(script, style="text")
    shown = [name for line in lines for name in line.split() if name.startswith("a.")]
    assert shown == ["a.shown", "a.warning", "a.last", "a.kept_4"]
