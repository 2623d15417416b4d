"""Network policies of a whole Skerry: isolated namespaces and egress, for containers that run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_egress import emptied, page
from tests.support import imagery
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

# Answers on 8080, and says again and again whether each of the targets answers.
PROGRAM = (
    "(while true; do echo hello | nc -l -p 8080 >/dev/null 2>&1; done) & "
    "while true; do for target in $TARGETS; do "
    "nc -w 1 ${target%:*} ${target#*:} </dev/null >/dev/null 2>&1 "
    "&& echo $target open || echo $target closed; done; sleep 0.1; done"
)


def start(skerry: Skerry, namespace: str, name: str, image: str, **more: Any) -> dict[str, Any]:
    status, made = skerry.call(
        "PUT", f"/namespace/{namespace}/instance/", {"name": name, "uri": image, **more}
    )
    assert status == 201, made

    def is_running() -> bool:
        return bool(skerry.call("GET", f"/instance/{made['id']}")[1]["ip"])

    eventually_sync(is_running, what=f"{name} to run")
    found: dict[str, Any] = skerry.call("GET", f"/instance/{made['id']}")[1]
    return found


def says(skerry: Skerry, id: str, *lines: str) -> None:
    """Wait until it says all of these now, each as the last it said of its target, and twice."""

    def are_said() -> bool:
        _, logs = skerry.call("GET", f"/instance/{id}/logs")
        if not isinstance(logs, str):
            return False
        for line in lines:
            target = line.split()[0]
            said = [each for each in logs.splitlines() if each.startswith(f"{target} ")]
            if said[-2:] != [line, line]:
                return False
        return True

    eventually_sync(are_said, what=f"{lines} from {id}")


@contextlib.contextmanager
def killed_at_the_end(folder: Path) -> Iterator[Skerry]:
    skerry = Skerry(folder)
    try:
        skerry.wait_ready()
        yield skerry
    finally:
        skerry.kill()


def set_policy(skerry: Skerry, namespace: str, **policy: Any) -> None:
    status, said = skerry.call("PATCH", f"/namespace/{namespace}", {"policy": policy})
    assert status == 200, said


def test_namespaces_are_isolated_and_opened_while_their_containers_run(tmp_path: Path) -> None:
    made = imagery.busybox(command=("sh", "-c", PROGRAM))
    image = f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'talk.tar')}"
    with page() as port, emptied(tmp_path):
        with killed_at_the_end(tmp_path) as skerry:
            web = start(skerry, "shop", "web", image, ports=["18080:8080"])
            target = f"{web['ip']}:8080"
            lab = start(skerry, "lab", "lab", image, env=[f"TARGETS={target}"])
            friend = start(skerry, "front", "friend", image, env=[f"TARGETS={target}"])
            own = start(skerry, "shop", "own", image, env=[f"TARGETS={target}"])
            says(skerry, lab["id"], f"{target} open")

            set_policy(skerry, "shop", isolated=True, allow_from=["front"])
            says(skerry, lab["id"], f"{target} closed")
            says(skerry, friend["id"], f"{target} open")
            says(skerry, own["id"], f"{target} open")
            assert skerry.call("GET", f"/instance/{web['id']}")[1]["restarts"] == 0
            late = start(skerry, "lab", "late", image, env=[f"TARGETS={target}"])
            says(skerry, late["id"], f"{target} closed")

            set_policy(skerry, "shop", allow_from=["lab"])
            says(skerry, lab["id"], f"{target} open")
            says(skerry, friend["id"], f"{target} closed")
        with running(tmp_path) as skerry:
            says(skerry, friend["id"], f"{target} closed")
            says(skerry, lab["id"], f"{target} open")
            gateway = skerry.subnet.replace(".0/24", ".1")
            targets = [target, f"{gateway}:{port}"]
            quiet = start(skerry, "lab", "quiet", image, env=[f"TARGETS={' '.join(targets)}"], egress="none")
            says(skerry, quiet["id"], *(f"{each} closed" for each in targets))
            inner = start(skerry, "lab", "inner", image, env=[f"TARGETS={' '.join(targets)}"], egress="mesh")
            says(skerry, inner["id"], f"{targets[0]} open", f"{targets[1]} closed")
            set_policy(skerry, "front", egress="none")
            set_policy(skerry, "shop", isolated=False)
            says(skerry, lab["id"], f"{target} open")
            says(skerry, friend["id"], f"{target} closed")
            set_policy(skerry, "front", egress=None)
            says(skerry, friend["id"], f"{target} open")
