"""`/secret/`, `/config/` and `/registry/` over HTTP, on the real control plane."""

from __future__ import annotations

import base64
import json

from skerry.model.secrets import MAX_VALUE
from tests.wire.kudo.rest_client import Rest

CANARY = "canary-51c0"


async def test_a_secret_is_set_listed_and_deleted_and_never_shown(rest: Rest) -> None:
    data = base64.b64encode(CANARY.encode()).decode()
    first = await rest.ask("PUT", "/secret/db", {"data": data})
    assert (first.status, first.body["version"], first.body["size"]) == (201, 1, len(CANARY))
    assert (await rest.ask("PUT", "/secret/db", {"text": CANARY})).status == 200
    second = await rest.ask("PUT", "/namespace/default/secret/db", {"text": "other"})
    assert (second.status, second.body["version"]) == (201, 2)
    shown = await rest.get("/secret/db")
    assert [one["version"] for one in shown["versions"]] == [1, 2]
    listed = await rest.get("/secret/")
    assert (listed["count"], [one["name"] for one in listed["secrets"]]) == (1, ["db"])
    for path in ("/secret/", "/secret/db", "/events?follow=false&since=0", "/metrics"):
        answer = await rest.ask("GET", path)
        assert CANARY not in str(answer)
        assert data not in str(answer)
    assert (await rest.ask("GET", "/secret/db/data")).status == 404
    assert (await rest.ask("DELETE", "/secret/db")).status == 200
    assert (await rest.ask("DELETE", "/secret/db")).status == 404


async def test_what_cannot_be_is_refused_without_the_value(rest: Rest) -> None:
    for body in (
        {},
        {"data": "!" + CANARY},
        {"text": CANARY, "data": ""},
        {"text": ""},
        {"value": CANARY},
        {"text": [CANARY]},
    ):
        answer = await rest.ask("PUT", "/secret/db", body)
        assert answer.status == 400, (body, answer)
        assert CANARY not in json.dumps(answer.body)
    too_large = await rest.ask("PUT", "/secret/db", {"text": "x" * (MAX_VALUE + 1)})
    assert too_large.status == 413
    assert (await rest.ask("PUT", "/secret/a..", {"text": "x"})).status == 400


async def test_a_config_is_read_back_in_any_version(rest: Rest) -> None:
    for text in ("one", "two"):
        assert (await rest.ask("PUT", "/namespace/shop/config/app.conf", {"text": text})).status == 201
    newest = await rest.get("/namespace/shop/config/app.conf/data")
    assert (newest["version"], base64.b64decode(newest["data"])) == (2, b"two")
    first = await rest.get("/namespace/shop/config/app.conf/data?version=1")
    assert base64.b64decode(first["data"]) == b"one"
    assert (await rest.ask("GET", "/namespace/shop/config/app.conf/data?version=3")).status == 404
    assert (await rest.ask("GET", "/config/app.conf/data")).status == 404


async def test_a_login_is_listed_without_its_password(rest: Rest) -> None:
    body = {"user": "robot", "password": CANARY}
    made = await rest.ask("PUT", "/namespace/shop/registry/Registry.example.org:5000", body)
    assert (made.status, made.body["registry"], made.body["user"]) == (
        201,
        "registry.example.org:5000",
        "robot",
    )
    listed = await rest.ask("GET", "/registry/?namespace=*")
    assert CANARY not in str(listed)
    assert [one["namespace"] for one in listed.body["registries"]] == ["shop"]
    for bad in ({"user": "robot"}, {"password": CANARY}, {"user": "a:b", "password": CANARY}):
        answer = await rest.ask("PUT", "/registry/docker.io", bad)
        assert answer.status == 400
        assert CANARY not in str(answer)
    assert (await rest.ask("DELETE", "/namespace/shop/registry/registry.example.org:5000")).status == 200


async def test_a_spec_shows_names_and_versions(rest: Rest) -> None:
    await rest.ask("PUT", "/secret/db", {"text": CANARY})
    await rest.ask("PUT", "/config/app.conf", {"text": "x"})
    spec = {
        "name": "web",
        "image": "example.org/web:1",
        "secrets": ["db:pw,mode=0440", {"name": "db", "variable": "PASSWORD"}],
        "configs": ["app.conf:/etc/app.conf"],
    }
    made = await rest.ask("PUT", "/service/", spec)
    assert made.status == 201, made
    file, variable = made.body["secrets"]
    assert (file["name"], file["target"], file["mode"], file["version"]) == ("db", "pw", "0440", 1)
    assert (variable["variable"], variable["version"]) == ("PASSWORD", 1)
    # What was read can be sent back, and changes nothing.
    back = {key: made.body[key] for key in ("secrets", "configs")}
    same = await rest.ask("PATCH", "/service/web", back)
    assert (same.status, same.body["revision"]) == (200, 1)
    gone = await rest.ask("PATCH", "/service/web", {"secrets": None})
    assert (gone.body["secrets"], len(gone.body["configs"]), gone.body["revision"]) == ([], 1, 2)
    used = await rest.get("/config/app.conf")
    assert used["users"] == [{"kind": "service", "name": "web", "versions": [1], "is_past": False}]
    assert (await rest.ask("DELETE", "/config/app.conf")).status == 409
    unknown = await rest.ask("PUT", "/instance/", {"uri": "example.org/web:1", "secrets": ["nothing"]})
    assert unknown.status == 422


async def test_the_key_is_rotated_over_http(rest: Rest) -> None:
    await rest.ask("PUT", "/secret/db", {"text": CANARY})
    done = await rest.ask("POST", "/secret-key/rotate", {})
    assert (done.status, done.body["sealed"], done.body["is_prepared"]) == (200, 1, False)
