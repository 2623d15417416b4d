"""Step: a version that does not work is rolled out, and rolled back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.demo.narration import Assertion
from skerry.demo.stage import BAD, COPIES, GOOD, SHOP, Stage, image, nothing_lost

TITLE: Final = "A bad version is rolled out"
REASON: Final = (
    "Version 2 answers its health check with an error. An update replaces one copy after the other, each "
    "only when its successor is ready: none ever is, and after the deadline the update is rolled back."
)


def show(stage: Stage) -> Iterator[Assertion]:
    before = stage.service(SHOP)
    with stage.load() as load:
        load.observe(stage.pace.report_s)
        code = stage.exit_code(
            *("service", "update", SHOP, "--image", image(BAD), "--deadline", f"{stage.pace.deadline_s:g}s"),
            codes=(0, 1),
        )
        load.observe(stage.pace.report_s)
        service = stage.wait_for_service(
            SHOP,
            lambda found: found["status"] == "HEALTHY" and found["rollout"] is None,
            f"{SHOP} is HEALTHY again",
        )
        calls, pages = load.stop()
    stage.run("service", "history", SHOP)
    yield Assertion("the update failed, and its exit code is 1", code == 1)
    yield Assertion(
        f"{SHOP} runs version {GOOD} in {service['ready']} copies, as before",
        service["image"] == before["image"] and service["ready"] == COPIES,
    )
    why = f": {dict(pages.problems)}" if pages.problems else ""
    yield Assertion(f"{pages.retried} of {pages.total} pages failed meanwhile{why}", pages.retried == 0)
    yield nothing_lost(calls, pages)
