"""What a node logs of an instance carries the id of the request that its order follows from."""

from __future__ import annotations

import json

import structlog
from msgspec.structs import replace

from skerry.model.statuses import DesiredStatus
from tests.node.agent.instances.ground import Ground
from tests.node.agent.instances.worlds import ID, order


async def test_orders_are_logged_under_the_id_of_the_request(ground: Ground) -> None:
    merge = structlog.contextvars.merge_contextvars
    with structlog.testing.capture_logs(processors=[merge]) as lines:
        await ground.apply(replace(order(), request_id="put-1"))
        await ground.until("RUNNING")
        await ground.apply(replace(order(DesiredStatus.STOPPED), request_id="patch-2"))
        await ground.until("STOPPED")
        await ground.apply(replace(order(DesiredStatus.DESTROYED, generation=0), request_id="old-3"))
    assert [(line["request_id"], line.get("status", line["event"])) for line in lines] == [
        ("put-1", "STARTING"),
        ("put-1", "container.created"),
        ("put-1", "container.started"),
        ("put-1", "RUNNING"),
        ("patch-2", "STOPPING"),
        ("patch-2", "container.ended"),
        ("patch-2", "STOPPED"),
        ("old-3", "order.refused"),
    ]
    assert (
        json.loads((ground.folder / "copies" / f"{ID}.json").read_text())["order"]["request_id"] == "patch-2"
    )
