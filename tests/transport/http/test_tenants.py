"""A token that is bound to one namespace gets the same answers for what is in another as for what is nowhere.

The first test walks every route of the access table, so a new route without a scope, or without an example
here, fails it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import pytest

from skerry.control.named_table import key_of
from skerry.kit.clock import SystemClock
from skerry.model.callers import Role
from skerry.model.ids import Namespace, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.settings import EventSettings
from skerry.model.snapshots import Snapshot
from skerry.model.volume_operations import OperationKind, VolumeOperation
from skerry.transport.access import revalidation, rules
from skerry.transport.access.rules import AccessScope
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import Serve, Site, StrangerGate
from tests.wire.serverledge.fakes import Fakes

CANARY = "canary-of-the-lab"
SPEC = {"uri": "example.org/web:1", "environment": [f"SECRET={CANARY}"]}
FUNCTION = {
    "Name": "NAME",
    "Runtime": "python310",
    "MemoryMB": 128,
    "Handler": "m.f",
    "TarFunctionCode": "dGFy",
    "Environment": [f"SECRET={CANARY}"],
}
# What a client sends to each route that reads a body; `NAME` is the name or id in question.
BODIES: dict[str, dict[str, Any]] = {
    "PUT /instance/": {"name": "NAME", **SPEC},
    "POST /instance/": {"name": "NAME", **SPEC},
    "PATCH /instance/{id}": {"status": "STOPPED"},
    "PUT /workload/": {"name": "NAME", **SPEC},
    "POST /workload/": {"name": "NAME", **SPEC},
    "PATCH /workload/{id}": {"uri": "example.org/other:2"},
    "PUT /service/": {"name": "NAME", "uri": "example.org/web:1"},
    "PATCH /service/{name}": {"replicas": 7},
    "POST /service/{name}/plan": {"uri": "example.org/web:2"},
    "POST /service/{name}/scale": {"replicas": 7},
    "POST /service/{name}/rollback": {},
    "PUT /job/": {"name": "NAME", "uri": "example.org/web:1"},
    "PUT /schedule/": {"name": "NAME", "cron": "0 3 * * *", "job": {"uri": "example.org/web:1"}},
    "PATCH /schedule/{name}": {"cron": "0 4 * * *"},
    "PUT /volume/": {"name": "NAME", "size": 1},
    "PUT /route/": {"name": "NAME", "host": "lab.example.org", "to": "service/web"},
    "PATCH /route/{name}": {"rate": "1/s"},
    "PUT /tls/{name}": {"certificate": "-", "key": "-"},
    "POST /tls/": {"domain": "lab.example.org"},
    "POST /volume/{name}/snapshot": {"name": "one"},
    "POST /volume/{name}/restore": {"snapshot": "lab-snapshot"},
    "POST /volume/{name}/move": {"node": "nowhere"},
    "PATCH ": {"quota": None},  # of the namespace itself
    "PUT /secret/{name}": {"text": CANARY},
    "PUT /config/{name}": {"text": CANARY},
    "PUT /registry/{name}": {"user": "u", "password": CANARY},
    "POST /create": FUNCTION,
    "POST /update": FUNCTION,
    "POST /delete": {"Name": "NAME"},
    "POST /prewarm": {"Function": "NAME", "Instances": 1},
    "POST /invoke/{function}": {"Params": {}},
    "POST /web/{function}": {},
    "PUT /web/{function}": {},
    "PATCH /web/{function}": {},
}
# Routes that change something without a body.
BARE = {"cancel", "promote", "pause", "resume", "run"}
QUERIES: dict[str, dict[str, Any]] = {
    "GET /events": {"follow": "false", "after": "0"},
    "GET /instance/{id}/exec": {"command": "sh"},
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
ABSENT = "absent-thing"
NAMED_BY_PATH = ("secret", "config", "registry")  # created with their name in the path
IN_NAMESPACE = "/namespace/{namespace}"


class Answer(NamedTuple):
    """What a client sees of an answer."""

    status: int
    headers: tuple[str, ...]  # names
    text: str


class Lab(NamedTuple):
    """Objects of the namespace `lab`, by noun: names and ids of each."""

    names: Mapping[str, tuple[str, ...]]


@pytest.fixture
async def site(serve: Serve) -> Site:
    return await serve(gate=StrangerGate, serverledge=Fakes(SystemClock()).bundle)


@pytest.fixture
async def admin(site: Site) -> aiohttp.ClientSession:
    return await site.session(headers=await site.bearer(Role.ADMIN))


@pytest.fixture
async def lab(site: Site, admin: aiohttp.ClientSession) -> AsyncIterator[Lab]:
    """At the end, everything in it must be as it was."""
    names: dict[str, tuple[str, ...]] = {}
    for noun in ("workload", "instance", "service", "job", "schedule", "volume", "route"):
        body = {
            key: f"lab-{noun}" if value == "NAME" else value for key, value in BODIES[f"PUT /{noun}/"].items()
        }
        async with admin.put(f"/namespace/lab/{noun}/", json=body) as reply:
            assert reply.status == 201, await reply.text()
            made = await reply.json()
        names[noun] = (made["id"], made["name"])
    for noun in NAMED_BY_PATH:
        name = "lab.example.org" if noun == "registry" else f"lab-{noun}"
        async with admin.put(f"/namespace/lab/{noun}/{name}", json=BODIES[f"PUT /{noun}/{{name}}"]) as reply:
            assert reply.status == 201, await reply.text()
        names[noun] = (name,)
    names["snapshot"], names["volume-operation"] = await add_snapshot(site)
    body = {**FUNCTION, "Name": "lab-thing"}
    async with admin.post("/create?namespace=lab", json=body) as reply:
        assert (await reply.json())["Created"] == "lab-thing"
    async with admin.post("/invoke/lab-thing?namespace=lab", json={"Async": True}) as reply:
        names["poll"] = ((await reply.json())["ReqId"], "lab:lab-thing-1", "lab/lab-thing-1")
    # Also as the program itself names it, and in other spellings.
    for noun in ("invoke", "web", "prewarm", "delete", "update", "function"):
        names[noun] = ("lab-thing", "lab:lab-thing", ":lab-thing", "lab/lab-thing", "lab%3Alab-thing")
    before = await whole_lab(admin)
    yield Lab(names)
    assert await whole_lab(admin) == before


async def add_snapshot(site: Site) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A snapshot of the lab and the operation that takes it, which nobody leads; names and ids of both."""
    registry, lab = site.control.snapshots, Namespace("lab")
    snapshot = Snapshot(
        "01hx0000000000000000000001", "lab-snapshot", "db", "01hx", Gigabytes(1), 1.0, namespace=lab
    )
    operation = VolumeOperation(
        "01hx0000000000000000000002", OperationKind.SNAPSHOT, VolumeId("01hx"), "db", 1.0, namespace=lab
    )
    tables = (registry.snapshots, registry.operations)
    for table, value in zip(tables, (snapshot, operation), strict=True):
        await table.commit([table.put(key_of(value), value)])  # type: ignore[attr-defined]
    return (snapshot.id, snapshot.name), (operation.id,)


async def whole_lab(admin: aiohttp.ClientSession) -> dict[str, Any]:
    found = {}
    nouns: tuple[str, ...] = ("workload", "instance", "service", "job", "schedule", "volume", "route")
    nouns += ("snapshot", "volume-operation")
    for noun in (*nouns, *NAMED_BY_PATH):
        async with admin.get(f"/namespace/lab/{noun}/") as reply:
            found[noun] = await reply.json()
    async with admin.get("/function/lab-thing?namespace=lab") as reply:
        found["function"] = await reply.json()
    return found


async def asked(
    session: aiohttp.ClientSession, rule: str, name: str, *, namespace: str = "", in_query: bool = False
) -> Answer:
    """The answer of the route of `rule` about `name`."""
    method, template = rule.split(" ")
    plain = f"{method} {template.removeprefix(IN_NAMESPACE)}"
    path = re.sub(r"{(?!namespace)\w+}", name, template).replace("{namespace}", namespace)
    params = dict(QUERIES.get(plain, {}))
    if in_query:
        params["namespace"] = namespace
    body = BODIES.get(plain)
    if body is None and method in ("PUT", "POST", "PATCH"):
        assert template.rpartition("/")[2] in BARE, f"{rule} needs an example of its body in BODIES"
    elif body is not None:
        body = {key: name if value == "NAME" else value for key, value in body.items()}
    headers = UPGRADE if template.endswith("/exec") else {}
    async with session.request(method, path, params=params, json=body, headers=headers) as reply:
        text = (await reply.text()).replace(name, "NAME")
        if namespace:
            text = text.replace(repr(namespace), "'NAMESPACE'").replace(f"-n {namespace}", "-n NAMESPACE")
        return Answer(reply.status, tuple(sorted(reply.headers.keys())), without_times(text))


def without_times(text: str) -> str:
    """Without what differs between any two objects: ids, times and digests."""
    text = re.sub(r"\b[0-9][0-9a-hj-np-tv-z]{25}\b", "ID", text, flags=re.IGNORECASE)
    return re.sub(r"\b[0-9]{10}\.[0-9]+\b", "TIME", re.sub(r"\b[0-9a-f]{16}\b", "REQUEST", text))


def noun_of(rule: str) -> str:
    return f"{rule.split(' ')[1].removeprefix(IN_NAMESPACE)}/".split("/")[1]


def namespaced_rules() -> list[str]:
    return [name for name, row in rules.HTTP_RULES.items() if row.scope is AccessScope.NAMESPACED]


def test_everything_that_is_served_has_a_scope_and_objects_of_namespaces_are_served_there() -> None:
    scopes = {name: row.scope for name, row in rules.HTTP_RULES.items()}
    assert all(scopes[name] is AccessScope.NAMESPACED for name in scopes if IN_NAMESPACE in name)
    # Whatever anybody may have is nobody's in particular.
    for name, row in [*rules.HTTP_RULES.items(), *rules.GRPC_RULES.items()]:
        assert row.scope is not AccessScope.NAMESPACED or not row.anybody, name


@pytest.mark.parametrize("role", [Role.DEPLOYER, Role.VIEWER, Role.INVOKER])
async def test_a_token_of_another_namespace_gets_the_answer_of_what_does_not_exist(
    site: Site, lab: Lab, role: Role
) -> None:
    compared = 0
    for rule in namespaced_rules():
        for there in lab.names.get(noun_of(rule), ("lab-thing",)):
            # Each has a namespace of its own, in which nothing was created before.
            session = await site.session(headers=await site.bearer(role, f"shop-{compared}"))
            absent = there.replace("lab", "nil") if "lab" in there else f"{there[:-4]}0000"
            # As it is, by `?namespace=` and in the path: what is in the lab, and what is nowhere.
            if IN_NAMESPACE in rule:
                pairs = [await asked(session, rule, there, namespace="lab")]
                pairs.append(await asked(session, rule, absent, namespace="nil"))
            else:
                pairs = [await asked(session, rule, there), await asked(session, rule, absent)]
                named = [await asked(session, rule, there, namespace="lab", in_query=True)]
                named.append(await asked(session, rule, absent, namespace="nil", in_query=True))
                assert named[0] == named[1], rule
                assert named[0].status in (403, 404), rule
            assert pairs[0] == pairs[1], rule
            assert pairs[0].status < 500, (rule, pairs[0])
            assert CANARY not in pairs[0].text or rule.startswith(("PUT", "POST")), rule
            compared += 1
    assert compared > 90


@pytest.mark.parametrize("role", [Role.DEPLOYER, Role.INVOKER, Role.VIEWER])
async def test_a_bound_token_is_refused_whatever_is_of_the_whole_cloud(
    site: Site, lab: Lab, role: Role
) -> None:
    session = await site.session(headers=await site.bearer(role, "shop"))
    for name, row in rules.HTTP_RULES.items():
        if row.scope is not AccessScope.CLUSTER or row.anybody:
            continue
        method, template = name.split(" ")
        answers = set()
        for there in ("01hx0000000000000000000000", ABSENT):
            async with session.request(method, re.sub(r"{\w+}", there, template)) as reply:
                answers.add((reply.status, re.sub(r'"request_id":"\w+"', "", await reply.text())))
        assert len(answers) == 1, name
        assert answers.pop()[0] == 403, name


async def test_a_bound_deployer_has_its_own_namespace_without_naming_it(site: Site, lab: Lab) -> None:
    session = await site.session(headers=await site.bearer(Role.DEPLOYER, "shop", "store"))
    async with session.get("/about") as reply:
        about = await reply.json()
    assert (about["role"], about["namespaces"]) == ("deployer", ["shop", "store"])
    for noun in ("workload", "instance", "service", "job", "schedule"):
        name = lab.names[noun][1]
        body = {key: name if value == "NAME" else value for key, value in BODIES[f"PUT /{noun}/"].items()}
        for place in ({}, {"namespace": "store"}):
            async with session.put(f"/{noun}/", json=body, params=place) as reply:
                assert reply.status == 201, await reply.text()
                assert (await reply.json())["namespace"] == place.get("namespace", "shop")
        lists = {"": 1, "store": 1, "shop,store": 2, "*": 2}
        for named, count in lists.items():
            async with session.get(f"/{noun}/", params={"namespace": named} if named else {}) as reply:
                assert (await reply.json())["count"] == count, (noun, named)
    async with session.get("/service/lab-service") as reply:
        assert (await reply.json())["namespace"] == "shop"


@pytest.mark.parametrize(
    ("place", "query", "body"),
    [
        ("/namespace/shop", {}, {"namespace": "lab"}),
        ("/namespace/lab", {}, {"namespace": "shop"}),
        ("", {"namespace": "shop"}, {"namespace": "lab"}),
        ("", {"namespace": "lab"}, {"namespace": "shop"}),
        ("/namespace/shop", {"namespace": "lab"}, {}),
        ("/namespace/lab", {"namespace": "shop"}, {}),
        ("/namespace/shop", {"namespace": "*"}, {}),
        ("", {"namespace": "*"}, {}),
        ("", {"namespace": "shop,lab"}, {}),
        ("", {"namespace": "lab,shop"}, {}),
        ("", {"namespace": "LAB"}, {}),
        ("", {"namespace": "lab "}, {}),
        ("", {"namespace": "shop/../lab"}, {}),
        ("/namespace/l%61b", {}, {}),
        ("/namespace/shop%2f..%2flab", {}, {}),
        ("", {}, {"namespace": "lab"}),
        ("", {}, {"namespace": "*"}),
        ("", {}, {"namespace": "shop", "id": "taken"}),
    ],
)
async def test_no_spelling_of_a_namespace_leads_into_another(
    site: Site,
    lab: Lab,
    admin: aiohttp.ClientSession,
    place: str,
    query: dict[str, str],
    body: dict[str, str],
) -> None:
    session = await site.session(headers=await site.bearer(Role.DEPLOYER, "shop"))
    given = {"name": "web", **SPEC, **body}
    path = f"{place}/instance/"
    encoded = "&".join(f"{key}={value}" for key, value in query.items())
    async with session.put(f"{path}?{encoded}" if encoded else path, json=given) as reply:
        assert reply.status in (400, 404, 422), await reply.text()
        assert CANARY not in await reply.text()
    async with admin.get("/instance/?namespace=*") as reply:
        assert (await reply.json())["count"] == 1  # that of the lab


async def test_an_id_that_is_taken_elsewhere_answers_as_one_that_is_free(
    site: Site, lab: Lab, admin: aiohttp.ClientSession
) -> None:
    session = await site.session(headers=await site.bearer(Role.DEPLOYER, "shop"))
    for noun in ("instance", "workload"):
        taken = lab.names[noun][0]
        answers = []
        for id in (taken, "zz" + taken[2:]):
            async with session.put(f"/{noun}/", json={"name": "web", "id": id, **SPEC}) as reply:
                answers.append((reply.status, without_times((await reply.text()).replace(id, "ID"))))
        assert answers[0] == answers[1]
        assert answers[0][0] == 422
        async with session.put(f"/{noun}/", json={"name": "web", "id": "shop.web", **SPEC}) as reply:
            assert (reply.status, (await reply.json())["id"]) == (201, "shop.web")
    # A workload of the lab is none for instances of the shop, by its id as by its name.
    for key in ("workload_id", "workload_name"):
        answers = []
        for name in (lab.names["workload"][key == "workload_name"], ABSENT):
            async with session.put("/instance/", json={key: name}) as reply:
                answers.append((reply.status, without_times((await reply.text()).replace(name, "NAME"))))
            async with session.patch("/instance/shop.web", json={key: name}) as reply:
                answers.append((reply.status, without_times((await reply.text()).replace(name, "NAME"))))
        assert answers[:2] == answers[2:]
        assert [status for status, _ in answers] == [404] * 4


async def test_idempotency_keys_of_tenants_do_not_meet(site: Site) -> None:
    key = {"Idempotency-Key": "the-same"}
    made = []
    for namespace in ("shop", "lab"):
        session = await site.session(headers=await site.bearer(Role.DEPLOYER, namespace))
        async with session.put("/instance/", json={"name": namespace, **SPEC}, headers=key) as reply:
            assert reply.status == 201
            made.append((await reply.json())["id"])
    assert len(set(made)) == 2


async def test_events_are_those_of_the_namespace_and_their_ids_tell_nothing(
    site: Site, lab: Lab, admin: aiohttp.ClientSession
) -> None:
    session = await site.session(headers=await site.bearer(Role.VIEWER, "shop"))
    other = await site.session(headers=await site.bearer(Role.VIEWER, "lab"))
    for number in range(2):
        async with admin.put(
            "/namespace/shop/service/", json={"name": f"web-{number}", "uri": "x/y"}
        ) as reply:
            assert reply.status == 201
    stored = {"follow": "false", "after": "0"}
    async with session.get("/events", params=stored) as reply:
        text = await reply.text()
    assert "service/shop/web-0" in text
    assert "lab" not in text
    assert "event: token" not in text
    ids = re.findall(r"^id: (\w+)$", text, re.MULTILINE)
    assert len(set(ids)) == len(ids) >= 2
    assert all(len(id) == 56 for id in ids), "no revision of the store"
    async with session.get("/events", params=stored | {"after": ids[0]}) as reply:
        assert re.findall(r"^id: (\w+)$", await reply.text(), re.MULTILINE) == ids[1:]
    changed = ids[0][:-2] + ("00" if ids[0][-2:] != "00" else "01")
    for foreign in ("1", "999999999", changed):
        async with session.get("/events", params=stored | {"after": foreign}) as reply:
            assert reply.status == 400
    async with other.get("/events", params=stored | {"after": ids[0]}) as reply:
        assert reply.status == 400  # a position of another tenant
    async with session.get("/events", params=stored | {"namespace": "lab"}) as reply:
        assert reply.status == 404
    async with other.get(f"/instance/{lab.names['instance'][0]}/events") as reply:
        seen = (await reply.json())["events"]
    assert seen
    assert all(len(one["id"]) == 56 for one in seen)


async def test_a_stream_of_events_passes_over_those_of_others(site: Site, lab: Lab) -> None:
    headers = await site.bearer(Role.DEPLOYER, "shop")
    session, other = (
        await site.session(headers=headers),
        await site.session(headers=await site.bearer(Role.DEPLOYER, "lab2")),
    )
    async with session.get("/events") as stream:
        for client in (other, session):
            async with client.put("/service/", json={"name": "web", "uri": "x/y"}) as reply:
                assert reply.status == 201
        async for line in stream.content:
            if line.startswith(b"data: "):
                assert b"service/shop/web" in line
                break


async def test_a_tenant_that_opens_all_streams_it_can_leaves_some_for_others(serve: Serve) -> None:
    site = await serve(events=EventSettings(max_streams=8), gate=StrangerGate)
    async with AsyncExitStack() as undo:
        shop = await site.session(headers=await site.bearer(Role.VIEWER, "shop"))
        statuses = [(await undo.enter_async_context(shop.get("/events"))).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        lab = await site.session(headers=await site.bearer(Role.VIEWER, "lab"))
        assert (await undo.enter_async_context(lab.get("/events"))).status == 200


async def test_a_stream_of_a_bound_token_ends_when_that_is_revoked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revalidation, "RECHECK_S", 0.01)
    session = await site.session(headers=await site.bearer(Role.VIEWER, "shop"))
    async with session.get("/events") as stream:
        (token,) = site.plane.identity.tokens()
        await site.plane.identity.revoke_token(token.id, actor="test")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(aiohttp.ClientError):
                await stream.content.read()
    async with session.get("/instance/") as reply:
        assert reply.status == 401


async def test_a_list_continues_only_in_the_namespaces_of_the_caller(site: Site) -> None:
    sessions = {
        name: await site.session(headers=await site.bearer(Role.DEPLOYER, name)) for name in ("shop", "lab")
    }
    cursors = {}
    for name, session in sessions.items():
        for number in range(3):
            async with session.put("/instance/", json={"name": f"{name}-{number}", **SPEC}) as reply:
                assert reply.status == 201
        async with session.get("/instance/?limit=1") as reply:
            cursors[name] = (await reply.json())["cursor"]
    async with sessions["shop"].get("/instance/", params={"cursor": cursors["lab"]}) as reply:
        found = await reply.json()
    assert all(one["namespace"] == "shop" for one in found["instances"])
    assert found["count"] == 3


async def test_functions_of_tenants_have_the_same_names_and_meet_nowhere(site: Site) -> None:
    """Those of the default namespace are what clients without a namespace always had."""
    shop = await site.session(headers=await site.bearer(Role.DEPLOYER, "shop"))
    everybody = await site.session(headers=await site.bearer(Role.DEPLOYER))
    for client, environment in ((shop, ["OF=shop"]), (everybody, ["OF=default"])):
        async with client.post(
            "/create", json={**FUNCTION, "Name": "hello", "Environment": environment}
        ) as reply:
            assert (reply.status, (await reply.json())["Created"]) == (200, "hello")
        async with client.post("/create", json={**FUNCTION, "Name": "hello"}) as reply:
            assert reply.status == 409
    for client, place, environment in (
        (shop, "", ["OF=shop"]),
        (everybody, "", ["OF=default"]),
        (everybody, "?namespace=shop", ["OF=shop"]),
    ):
        async with client.get(f"/function/hello{place}") as reply:
            shown = await reply.json()
        assert (shown["Name"], shown["Environment"]) == ("hello", environment)
    lists = {"": ["hello"], "?namespace=*": ["hello", "shop/hello"], "?namespace=shop": ["hello"]}
    for place, names in lists.items():
        async with everybody.get(f"/function{place}") as reply:
            assert await reply.json() == names
        async with shop.get(f"/functions{place}") as reply:
            assert await reply.json() == ["hello"]
    async with shop.post("/invoke/hello", json={"Async": True}) as reply:
        id = (await reply.json())["ReqId"]
        assert "serverledge-free-mem" not in reply.headers
    assert id.startswith("hello-")
    for client, place, state in (
        (shop, "", "queued"),
        (everybody, "?namespace=shop", "queued"),
        (everybody, "", "unknown"),
    ):
        async with client.get(f"/poll/{id}{place}") as reply:
            assert (await reply.json())["State"] == state
    async with shop.post("/delete", json={"Name": "hello"}) as reply:
        assert (await reply.json())["Deleted"] == "hello"
    async with everybody.post("/invoke/hello", json={}) as reply:
        assert reply.status == 200
        assert "serverledge-free-mem" in reply.headers


async def test_a_schedule_calls_functions_of_its_own_namespace(site: Site, lab: Lab) -> None:
    """`there` is a function of the default namespace to the control plane of these tests."""
    session = await site.session(headers=await site.bearer(Role.DEPLOYER, "shop"))
    everybody = await site.session(headers=await site.bearer(Role.DEPLOYER))
    body = {"name": "nightly", "cron": "0 3 * * *"}
    answers = []
    for name in ("there", "lab-thing", "nowhere"):
        async with session.put("/schedule/", json={**body, "function": {"name": name}}) as reply:
            text = (await reply.text()).replace(repr(name), "'NAME'")
            answers.append((reply.status, without_times(text)))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 422
    for namespace in ("default", "lab", "nil"):
        call = {"name": "there", "namespace": namespace}
        async with session.put("/schedule/", json={**body, "function": call}) as reply:
            assert reply.status == 404
    for call in ({"name": "there"}, {"name": "there", "namespace": "default"}):
        async with everybody.put("/schedule/", json={**body, "function": call}) as reply:
            assert (await reply.json())["function"]["namespace"] == "default"


async def test_nobody_spells_the_key_of_a_function_elsewhere(site: Site, lab: Lab) -> None:
    for namespace in ("default", "shop"):
        session = await site.session(headers=await site.bearer(Role.DEPLOYER, namespace))
        for name in ("lab:lab-thing", ":lab:lab-thing", "lab/lab-thing", "../lab:lab-thing"):
            async with session.post("/create", json={**FUNCTION, "Name": name}) as reply:
                assert reply.status == 400
            async with session.post("/delete", json={"Name": name}) as reply:
                assert reply.status == 404
            async with session.post(f"/invoke/{name}", json={}) as reply:
                assert reply.status == 404
