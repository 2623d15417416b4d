"""What is said of functions at a server that runs none itself."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import FunctionName
from skerry.node.workers.node_workers import NodeWorkers


def test_a_function_runs_on_nodes() -> None:
    hosts = NodeWorkers(None, None)
    assert hosts.describe("python") == hosts.describe("custom") == "on nodes of this cloud"


def test_who_asks_for_logs_is_told_where_they_are() -> None:
    with pytest.raises(errors.Unavailable, match="'skerry fn logs' on a node with"):
        NodeWorkers(None, None).logs(FunctionName("hello"))
