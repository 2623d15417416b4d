"""Namespaces over HTTP, on the real control plane: by the query, by the path and by the body."""

from __future__ import annotations

import pytest
import structlog

from skerry.kit import pki
from skerry.model.callers import MARKET, Role
from skerry.model.ids import MARKET_NAMESPACE
from skerry.model.workloads import InstanceSpec, WorkloadKind
from skerry.wire import namespaces
from skerry.wire.kudo import routes as kudo_routes
from tests.support.far_nodes import FarNode
from tests.transport.http.conftest import serving
from tests.wire.kudo.rest_client import WEB, Rest
from tests.wire.kudo.test_rest_tunnels import writes_some

ROOTS = ["/workload", "/instance"]


async def ids(rest: Rest, path: str) -> tuple[int, list[str]]:
    answer = await rest.ask("GET", path)
    assert answer.status == 200, answer
    [items] = [value for value in answer.body.values() if isinstance(value, list)]
    assert answer.headers["X-Total-Count"] == str(answer.body["count"])
    return answer.body["count"], [one["id"] for one in items]


def test_every_route_of_instances_and_workloads_is_there_once_more_with_the_same_shapes() -> None:
    routes = {endpoint.name: endpoint for endpoint in kudo_routes.ENDPOINTS}
    plain = [name for name in routes if name.split()[1].startswith(("/instance/", "/workload/"))]
    assert len(plain) == 16
    for name in plain:
        here, there = routes[name], routes[name.replace(" ", f" {namespaces.PREFIX}")]
        assert (there.reply, there.status, there.other_media) == (here.reply, here.status, here.other_media)
        assert there.inputs["query"] is here.inputs["query"]
        assert there.inputs.get("body") is here.inputs.get("body")
    assert len(routes) == len(kudo_routes.ENDPOINTS)


@pytest.mark.parametrize("root", ROOTS)
async def test_things_are_made_in_a_namespace_and_listed_there_alone(rest: Rest, root: str) -> None:
    here = await rest.make(f"{root}/", WEB)
    assert here["namespace"] == "default"
    made = []
    for method in ("PUT", "POST"):
        for path in (f"/namespace/shop{root}", f"/namespace/shop{root}/", f"{root}/?namespace=shop"):
            answer = await rest.ask(method, path, {**WEB, "name": f"web{len(made)}"})
            assert (answer.status, answer.body["namespace"]) == (201, "shop")
            assert answer.headers["Location"] == f"{root}/{answer.body['id']}"
            assert (await rest.get(answer.headers["Location"]))["namespace"] == "shop"
            made.append(answer.body["id"])
            assert await ids(rest, path) == (len(made), made)
    for path in (root, f"{root}/?namespace=default", f"/namespace/default{root}/"):
        assert await ids(rest, path) == (1, [here["id"]])
    assert await ids(rest, f"{root}?namespace=*") == (7, [here["id"], *made])


@pytest.mark.parametrize("root", ROOTS)
async def test_a_namespace_that_nobody_uses_is_empty_and_needs_no_making(rest: Rest, root: str) -> None:
    before = await rest.stored()
    assert await ids(rest, f"/namespace/lab{root}/") == (0, [])
    assert await ids(rest, f"{root}?namespace=lab") == (0, [])
    assert await rest.stored() == before


async def test_pages_and_counts_are_of_the_namespace(rest: Rest) -> None:
    made = []
    for number in range(5):
        await rest.make("/instance/", {**WEB, "name": f"w{number}"})
        made.append((await rest.make("/namespace/shop/instance/", {**WEB, "name": f"w{number}"}))["id"])
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = await rest.get("/namespace/shop/instance/", params={"limit": "2", "cursor": cursor})
        assert page["count"] == 5
        seen += [one["id"] for one in page["instances"]]
        cursor = page["cursor"]
    assert seen == made
    assert await ids(rest, "/namespace/shop/instance?limit=2&offset=3") == (5, made[3:])
    assert await ids(rest, "/namespace/shop/instance?name=w2&state=scheduling") == (1, [made[2]])


async def test_a_workload_is_found_by_its_name_in_its_namespace_and_by_its_id_anywhere(rest: Rest) -> None:
    here = await rest.make("/workload/", WEB)
    there = await rest.make("/namespace/shop/workload/", {**WEB, "uri": "example.org/web:2"})
    assert await rest.get("/workload/web") == await rest.get("/workload/web?namespace=default") == here
    for path in (
        "/namespace/shop/workload/web",
        "/namespace/shop/workload/web/",
        "/workload/web?namespace=shop",
        "/workload/web?namespace=",
        f"/workload/{there['id']}",
    ):
        assert await rest.get(path) == (here if path.endswith("=") else there)
    missing = await rest.ask("GET", "/namespace/lab/workload/web")
    assert missing.error[:2] == (404, "not-found")
    assert "no workload 'web' in the namespace 'lab'" in missing.body["error"]
    taken = await rest.ask("PUT", "/namespace/shop/workload/", WEB)
    assert taken.error[:2] == (409, "already-exists")


async def test_a_workload_is_changed_and_deleted_in_its_namespace_alone(rest: Rest) -> None:
    here = await rest.make("/workload/", WEB)
    there = await rest.ask("PUT", "/namespace/shop/workload/", WEB)
    tag = {"If-Match": there.headers["ETag"]}
    path = "/namespace/shop/workload/web"
    changed = await rest.ask("PATCH", f"{path}?rollout=rolling", {"uri": "example.org/web:2"}, headers=tag)
    assert (changed.status, changed.body["version"], changed.body["id"]) == (200, 2, there.body["id"])
    assert (await rest.ask("PATCH", path, {"uri": "example.org/web:3"}, headers=tag)).status == 412
    assert await rest.get("/workload/web") == here
    for wrong in (f"/namespace/lab/workload/{there.body['id']}", "/namespace/lab/workload/web"):
        assert (await rest.ask("PATCH", wrong, {"uri": "example.org/x"})).status == 404
        assert (await rest.ask("DELETE", wrong)).status == 404
    gone = await rest.ask("DELETE", f"{path}/?cascade=false")
    assert (gone.status, gone.body["id"]) == (200, there.body["id"])
    assert (await rest.ask("GET", path)).status == 404
    assert await rest.get("/workload/web") == here


async def test_an_instance_is_404_in_every_other_namespace(rest: Rest) -> None:
    made = await rest.make("/namespace/shop/instance/", WEB)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    for end in ("", "/", "/logs", "/exec", "/events", "/explain"):
        params = {"command": "true"} if end == "/exec" else {}
        headers = upgrade if end == "/exec" else {}
        for path, more in (
            (f"/namespace/lab/instance/{made['id']}{end}", {}),
            (f"/instance/{made['id']}{end}", {"namespace": "lab"}),
        ):
            answer = await rest.ask("GET", path, params={**params, **more}, headers=headers)
            assert answer.error[:2] == (404, "not-found")
            assert f"no instance {made['id']!r} in the namespace 'lab'" in answer.body["error"]


async def test_an_instance_is_changed_and_deleted_in_its_namespace_alone(rest: Rest) -> None:
    made = await rest.make("/namespace/shop/instance/", WEB)
    before = await rest.stored()
    for wrong in (f"/namespace/lab/instance/{made['id']}", f"/instance/{made['id']}?namespace=default"):
        assert (await rest.ask("PATCH", wrong, {"status": "STOPPED"})).status == 404
        assert (await rest.ask("DELETE", wrong)).status == 404
    assert await rest.stored() == before
    path = f"/namespace/shop/instance/{made['id']}"
    assert (await rest.ask("PATCH", f"{path}/", {"status": "STOPPED"})).body["status"] == "STOPPED"
    assert (await rest.get(f"{path}/events"))["count"] > 1
    assert (await rest.get(f"{path}/explain/"))["id"] == made["id"]
    assert (await rest.ask("DELETE", path)).status == 200


async def test_output_and_programs_are_reached_in_the_namespace(cloud: pki.CertificateAuthority) -> None:
    far = FarNode(writes_some)
    with structlog.testing.capture_logs():
        async with serving(cloud, tunnels=far) as site:
            rest = Rest(site, await site.session())
            id = await rest.running({**WEB, "namespace": "shop"})
            answer = await rest.ask("GET", f"/namespace/shop/instance/{id}/logs")
            assert (answer.status, answer.body[:4]) == (200, b"one\n")
            url = f"/namespace/shop/instance/{id}/exec/?command=true"
            async with rest.session.ws_connect(url) as socket:
                assert (await socket.receive_bytes())[1:] == b"one\n"
            await far.close()


async def test_an_instance_is_made_of_a_workload_in_the_same_namespace_only(rest: Rest) -> None:
    made = await rest.make("/namespace/shop/workload/", WEB)
    for path, body in (
        ("/namespace/shop/instance/", {"workload_name": "web"}),
        ("/namespace/shop/instance/", {"workload_id": made["id"]}),
        (f"/namespace/shop/instance/?workloadId={made['id']}", None),
        ("/instance/", {"workload_name": "web", "namespace": "shop"}),
    ):
        one = await rest.make(path, body)
        assert (one["namespace"], one["workload_id"]) == ("shop", made["id"])
    before = await rest.stored()
    for path in ("/instance/", "/namespace/lab/instance/"):
        refused = await rest.ask("PUT", path, {"workload_id": made["id"]})
        assert refused.error[:2] == (422, "unprocessable")
        assert "is in the namespace 'shop', and its instances must be, too" in refused.body["error"]
        assert (await rest.ask("PUT", path, {"workload_name": "web"})).error[:2] == (404, "not-found")
    assert await rest.stored() == before


async def test_an_instance_goes_over_only_to_a_workload_of_its_namespace(rest: Rest) -> None:
    here = await rest.make("/workload/", WEB)
    there = await rest.make("/namespace/shop/workload/", WEB)
    one = await rest.make("/instance/", {**WEB, "namespace": "shop"})
    path = f"/instance/{one['id']}"
    refused = await rest.ask("PATCH", path, {"workload_id": here["id"]})
    assert refused.error[:2] == (422, "unprocessable")
    changed = await rest.ask("PATCH", path, {"workload_name": "web"})
    assert (changed.status, changed.body["workload_id"]) == (200, there["id"])


@pytest.mark.parametrize("root", ROOTS)
async def test_a_namespace_cannot_change(rest: Rest, root: str) -> None:
    made = await rest.make(f"{root}/", {**WEB, "namespace": "shop"})
    path = f"{root}/{made['id']}"
    before = await rest.stored()
    refused = await rest.ask("PATCH", path, {"namespace": "lab"})
    assert refused.error[:2] == (400, "invalid")
    assert "cannot change" in refused.body["error"]
    contradicts = await rest.ask("PATCH", f"/namespace/shop{path}", {"namespace": "lab"})
    assert contradicts.error[:2] == (422, "unprocessable")
    assert await rest.stored() == before
    same = await rest.ask("PATCH", path, {"namespace": "shop", "env": ["A=1"]})
    assert (same.status, same.body["namespace"], same.body["environment"]) == (200, "shop", ["A=1"])


@pytest.mark.parametrize("root", ROOTS)
async def test_a_namespace_that_is_said_twice_must_be_the_same(rest: Rest, root: str) -> None:
    before = await rest.stored()
    for path, body in (
        (f"/namespace/shop{root}/", {**WEB, "namespace": "lab"}),
        (f"/namespace/shop{root}/", {**WEB, "namespace": "default"}),
        (f"{root}/?namespace=shop", {**WEB, "namespace": "lab"}),
        (f"/namespace/shop{root}/?namespace=lab", WEB),
    ):
        refused = await rest.ask("PUT", path, body)
        assert refused.error[:2] == (422, "unprocessable")
        assert "say the same, or say it once" in refused.body["error"]
    assert await rest.stored() == before
    agreed = await rest.make(f"/namespace/shop{root}/?namespace=shop", {**WEB, "namespace": "shop"})
    assert agreed["namespace"] == "shop"


@pytest.mark.parametrize("bad", ["Shop", "2nd", "*", "x" * 64])
async def test_what_is_no_namespace_is_400_wherever_it_is_said(rest: Rest, bad: str) -> None:
    for root in ROOTS:
        for method, path, body in (
            ("PUT", f"/namespace/{bad}{root}/", WEB),
            ("PUT", f"{root}/?namespace={bad}", WEB),
            ("PUT", f"{root}/", {**WEB, "namespace": bad}),
            ("GET", f"/namespace/{bad}{root}/", None),
            ("GET", f"{root}/some?namespace={bad}", None),
        ):
            answer = await rest.ask(method, path, body)
            assert answer.error[:2] == (400, "invalid")
            assert "must be 1 to 63 lower-case letters" in answer.body["error"]


@pytest.mark.parametrize("root", ROOTS)
async def test_a_key_makes_one_thing_in_each_namespace_and_an_id_one_in_all(rest: Rest, root: str) -> None:
    headers = {"Idempotency-Key": "k"}
    here = await rest.ask("PUT", f"{root}/", WEB, headers=headers)
    there = await rest.ask("PUT", f"/namespace/shop{root}/", WEB, headers=headers)
    again = await rest.ask("PUT", f"{root}/?namespace=shop", WEB, headers=headers)
    assert [answer.status for answer in (here, there, again)] == [201, 201, 200]
    assert here.body["id"] != there.body["id"] == again.body["id"]
    mine = {**WEB, "name": "mine", "id": "mine"}
    await rest.make(f"/namespace/shop{root}/", mine)
    assert (await rest.ask("PUT", f"/namespace/shop{root}/", mine)).status == 200
    taken = await rest.ask("PUT", f"{root}/", mine)
    assert taken.error[:2] == (409, "already-exists")
    assert "exists in another namespace" in taken.body["error"]


async def test_a_path_of_one_word_is_an_id_and_never_a_namespace(rest: Rest) -> None:
    await rest.make("/namespace/shop/instance/", WEB)
    assert (await rest.ask("GET", "/instance/shop")).error[:2] == (404, "not-found")
    await rest.make("/instance/", {**WEB, "id": "shop"})
    assert (await rest.get("/instance/shop"))["namespace"] == "default"


async def test_nodes_have_no_namespace(rest: Rest) -> None:
    assert (await rest.ask("GET", "/namespace/shop/node/")).status == 404
    assert (await rest.ask("GET", "/node/?namespace=shop")).status == 400


async def test_deployers_and_admins_only_look_at_the_namespace_of_the_market(rest: Rest) -> None:
    cell = InstanceSpec(name="contract-01hx", uri="contract:01hx", kind=WorkloadKind.CELL)
    instances = rest.site.control.instances
    made, _ = await instances.create(cell, actor=MARKET, namespace=MARKET_NAMESPACE, id="contract-01hx")
    for role in (Role.DEPLOYER, Role.ADMIN):
        headers = await rest.site.bearer(role)
        for method, path, body in (
            ("PUT", "/namespace/market/instance/", WEB),
            ("PUT", "/instance/?namespace=market", WEB),
            ("POST", "/namespace/market/workload/", WEB),
            ("PATCH", f"/instance/{made.id}", {"status": "STOPPED"}),
            ("PATCH", f"/namespace/market/instance/{made.id}", {"uri": "example.org/mine:1"}),
            ("DELETE", f"/namespace/market/instance/{made.id}", None),
            ("DELETE", f"/instance/{made.id}", None),
        ):
            refused = await rest.ask(method, path, body, headers=headers)
            assert refused.error[:2] == (403, "forbidden"), (path, refused)
        listed = await rest.get("/namespace/market/instance/", headers=headers)
        assert [one["id"] for one in listed["instances"]] == [made.id]
    assert instances.get(made.id) == made
