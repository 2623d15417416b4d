"""Metrics and alerts of a whole cloud: a server, a machine that joined, and a receiver of alerts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from tests.support import monitoring
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

JSON = {"Content-Type": "application/json"}
QUICK = (
    *("--set", "fleet.suspect_after_s=4"),
    *("--set", "fleet.lost_after_s=6"),
    *("--set", "alerts.interval_s=0.3"),
    *("--set", "alerts.allow_local=true"),
)


class Cloud(NamedTuple):
    server: Skerry
    node: Skerry


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    machine = tmp_path_factory.mktemp("machine")
    with running(tmp_path_factory.mktemp("server"), *QUICK, role="server") as server:
        token = server.call("POST", "/token/", {"role": "node"}, JSON)[1]["token"]
        flags = ["--join", server.ready["http"], "--token", token, "--name", "edge-1"]
        node = Skerry(machine, *flags, role="node")
        try:
            node.wait_ready()
            eventually_sync(
                lambda: server.call("GET", "/node/edge-1/metrics")[0] == 200, what="the session of the node"
            )
            yield Cloud(server, node)
        finally:
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.stop()


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def scrape(skerry: Skerry, path: str = "/metrics", **headers: str) -> str:
    status, text = skerry.call("GET", path, headers=headers)
    assert status == 200, text
    return str(text)


def test_what_is_exported_is_documented_and_is_all_that_rules_and_board_use(cloud: Cloud) -> None:
    server, node = scrape(cloud.server), scrape(cloud.server, "/node/edge-1/metrics")
    exported = {**families(server), **families(node)}
    documented, named = monitoring.documented(), set()
    for name, family in exported.items():
        if not name.startswith("skerry_") or name.endswith("_created"):  # of the library
            continue
        full = f"{name}_total" if family.type == "counter" else name
        kind, labels = documented[full]
        assert family.type == kind, full
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample
        named.add(full)
    known = named | {name for name in exported if name.startswith("process_")}
    for expression in (*monitoring.rule_expressions(), *monitoring.board_expressions()):
        used = {monitoring.family_of(name, known) for name in expression.metrics}
        used = {name if name in known else name.removesuffix("_total") for name in used}
        assert used <= known, expression


def test_openmetrics_is_given_to_who_accepts_it(cloud: Cloud) -> None:
    for path in ("/metrics", "/node/edge-1/metrics"):
        text = scrape(cloud.server, path, Accept="application/openmetrics-text;version=1.0.0")
        parsed = list(openmetrics_parser.text_string_to_metric_families(text))
        assert any(family.name == "skerry_build_info" for family in parsed), path


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs prometheus, a package of system-packages.txt")
def test_prometheus_finds_nothing_wrong_but_a_name_of_earlier_versions(cloud: Cloud) -> None:
    for path in ("/metrics", "/node/edge-1/metrics"):
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=scrape(cloud.server, path),
            capture_output=True,
            text=True,
            check=False,
        )
        problems = [line for line in done.stderr.splitlines() if "memory_used_megabytes" not in line]
        assert problems == []


def test_nodes_are_found_and_scraped_through_the_server(cloud: Cloud) -> None:
    _, groups = cloud.server.call("GET", "/metrics/targets")
    of_server, of_node = groups
    assert (of_server["labels"]["skerry_role"], of_server["labels"]["__metrics_path__"]) == (
        "server",
        "/metrics",
    )
    assert (of_node["labels"]["skerry_role"], of_node["labels"]["instance"]) == ("node", "edge-1")
    text = scrape(cloud.server, of_node["labels"]["__metrics_path__"])
    builds = [dict(sample.labels) for sample in families(text)["skerry_build_info"].samples]
    assert [build["role"] for build in builds] == ["node"]
    status, error = cloud.server.call("GET", "/node/nobody/metrics")
    assert (status, error["code"]) == (404, "not-found")


def test_cloud_wide_numbers_are_those_of_the_cloud(cloud: Cloud) -> None:
    body = {"name": "none", "uri": "example.org/none:1", "constraints": ["zone=nowhere"]}
    status, made = cloud.server.call("PUT", "/instance/?namespace=shop", body, JSON)
    assert status == 201, made

    def counted() -> bool:
        found = families(scrape(cloud.server))
        values = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for name in ("skerry_nodes", "skerry_instances", "skerry_leader", "skerry_node_up")
            for sample in found[name].samples
        }
        return (
            values.get(("skerry_instances", "SCHEDULING", "shop")) == 1
            and values.get(("skerry_nodes", "ready")) == 1
            and values.get(("skerry_node_up", "edge-1")) == 1
            and values.get(("skerry_leader",)) == 1
        )

    eventually_sync(counted, what="all of it is in /metrics")
    ends = families(scrape(cloud.server))["skerry_certificate_not_after_timestamp_seconds"].samples
    assert {"ca", "server", "node"} <= {sample.labels["kind"] for sample in ends}
    cloud.server.call("DELETE", f"/instance/{made['id']}")


def test_a_viewer_may_scrape_and_see_alerts_but_not_set_them(cloud: Cloud) -> None:
    made = cloud.server.call("POST", "/token/", {"role": "viewer"}, JSON)[1]["token"]
    headers = {"Authorization": f"Bearer {made}", **JSON}
    assert cloud.server.call("GET", "/metrics", headers=headers)[0] == 200
    assert cloud.server.call("GET", "/alert/", headers=headers)[0] == 200
    rule = {"on": "node-lost", "webhook": "https://hooks.example.org/x"}
    assert cloud.server.call("PUT", "/alert/mine", rule, headers)[0] == 403


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []
    handler = type("Handler", (Receiver,), {"bodies": bodies})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook/TOKEN", bodies
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_gets_that_a_node_is_lost_and_that_it_is_back(
    cloud: Cloud, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    url, bodies = receiver
    server = cloud.server
    done = server.cli(
        *("alert", "add", "nodes", "--on", "node-lost", "--resolve-after", "0s", "--to", "webhook", url)
    )
    assert done.returncode == 0, done.stderr
    assert server.cli("alert", "test", "nodes").returncode == 0
    assert bodies.pop()["alerts"][0]["labels"]["test"] == "true"
    cloud.node.process.send_signal(signal.SIGSTOP)
    eventually_sync(lambda: bodies, what="the webhook was told of the lost node")
    assert (bodies[0]["status"], bodies[0]["alerts"][0]["labels"]["node"]) == ("firing", "edge-1")
    listed = server.cli("alert", "list").stdout
    assert "firing" in listed
    cloud.node.process.send_signal(signal.SIGCONT)
    eventually_sync(lambda: bodies[-1]["status"] == "resolved", what="and that it is back")
    assert [body["status"] for body in bodies] == ["firing", "resolved"]
    assert bodies[0]["alerts"][0]["startsAt"] == bodies[1]["alerts"][0]["startsAt"]
    events = server.cli("events", "--kind", "alert").stdout
    assert "alert.resolved" in events
    for text in (listed, server.cli("alert", "describe", "nodes").stdout, events, server.said()):
        assert "TOKEN" not in text
    assert server.cli("alert", "remove", "nodes").returncode == 0
    assert server.call("GET", "/alert/")[1]["count"] == 0
