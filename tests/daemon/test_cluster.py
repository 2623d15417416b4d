"""A cluster of a server and three nodes on machines of their own, with real containers, and what befalls it.

Whatever happens: no instance is lost, doubled or orphaned. Each test makes what it needs and takes it away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support import imagery
from tests.support.clusters import Cluster, cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")

SMALL = {"cpu": 50, "memory": 32}
FOREVER = ["sleep", "100000"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """busybox that shows which instance it is, as a file that every node can read."""
    script = "hostname > /www/index.html; echo serving; exec httpd -f -p 80 -h /www"
    made = imagery.busybox(command=("sh", "-c", script))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), "north", "south", "west") as made:
        yield made


def test_an_instance_is_reached_at_its_published_port_from_another_machine(
    cloud: Cluster, archive: str
) -> None:
    id = cloud.create(name="web", uri=archive, ports=["8080:80"], resources=SMALL)
    instance = cloud.until(id, "RUNNING")
    here = cloud.node_of(instance)
    for other in cloud.nodes.keys() - {here}:
        assert cloud.page(other, here, 8080) == "web\n"
    assert cloud.copies() == {(here, id): 1}
    cloud.delete(id)
    assert cloud.copies() == {}
