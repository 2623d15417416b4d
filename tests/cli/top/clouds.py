"""Clouds for tests of `skerry top`, as documents of a server."""

from __future__ import annotations

from typing import Any

from skerry.cli.top.snapshots import CloudSnapshot, FunctionUsage

AT = 1000.0


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"id-{name}",
        "name": name,
        "status": "ready",
        "liveness": "live",
        "is_cordoned": False,
        "is_foreign": False,
        "facts": {"disk_pressure": ""},
        "resources": {"cpu": 4000, "memory": 8192},
        "registered_at": AT - 7200,
        **more,
    }


def instance(name: str, cpu: int = 0, memory: int = 0, **more: Any) -> dict[str, Any]:
    usage = {"cpu": cpu, "memory": memory, "disk": 0}
    return {
        "id": f"id-{name}",
        "name": name,
        "namespace": "default",
        "status": "RUNNING",
        "ready": True,
        "node_id": "id-edge-1",
        "owner": "",
        "resources": {"cpu": 1000, "memory": 256, "disk": 0, "usage": usage},
        "restarts": 0,
        "retry_at": None,
        "created_at": AT - 90,
        **more,
    }


def service(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "default",
        "status": "HEALTHY",
        "ready": 2,
        "replicas": 2,
        "revision": 1,
        "created_at": AT - 90,
        **more,
    }


def cloud(**more: Any) -> CloudSnapshot:
    """Two nodes, four instances, one service and two functions."""
    snapshot = CloudSnapshot(
        AT,
        {"version": "1.2.3"},
        [node("edge-1"), node("hub")],
        [
            instance("web-0", 500, 100, owner="service/web"),
            instance("web-1", 250, 50, owner="service/web", node_id="id-hub"),
            instance("db", 900, 200, namespace="shop"),
            instance("job", status="SCHEDULING", ready=False, node_id=None),
        ],
        [service("web")],
        [
            FunctionUsage("hello", 10, 2.5, 0.0, 0.0, 3.0),
            FunctionUsage("shop:resize", 99, 9.0, 1.0, 0.5, 8.0),
        ],
        None,
    )
    return snapshot._replace(**more)
