"""Pages of volumes, secrets, routes and events: what they say, and what they never show."""

from __future__ import annotations

from skerry.console.components import Tone
from skerry.console.pages import events, http_routes, secrets, volumes
from skerry.console.pages.http_routes import RouteRow
from skerry.console.tables import ListQuery
from skerry.control.events.log import StoredEvent
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.events import Event
from skerry.model.ids import Namespace, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.routes import Route, RouteSpec, RouteTarget
from skerry.model.secrets import Secret, SecretKind, SecretVersion
from skerry.model.volumes import Volume, VolumeStatus, VolumeUsage

ADMIN = Caller(AuthMethod.TOKEN, "root", Role.ADMIN)
VIEWER = Caller(AuthMethod.TOKEN, "eve", Role.VIEWER)
SHOP = Namespace("shop")
VOLUME = Volume(VolumeId("v1"), "data", Gigabytes(2), 10.0, status=VolumeStatus.READY, namespace=SHOP)
ROUTE = Route("r1", "shop", RouteSpec("shop.example.org", "/api", RouteTarget.parse("service/web:80")), 10.0)


def test_a_volume_shows_how_full_it_is() -> None:
    view = volumes.volume_view(VOLUME, VolumeUsage(512 * 2**20, 2048 * 2**20), ["service db"], ADMIN, 20.0)
    (bar,) = view.bars
    assert (bar.text, bar.percent) == ("512 MB of 2 GB", "25.0%")
    (delete,) = view.actions
    assert delete.is_destructive
    assert delete.command == "skerry volume delete data --namespace shop"
    assert delete.path == "/console/volumes/data/delete?namespace=shop"


def test_a_volume_that_no_node_has_reported_has_no_bar() -> None:
    assert volumes.volume_view(VOLUME, None, [], ADMIN, 20.0).bars == ()


def test_who_may_not_delete_sees_no_button() -> None:
    assert volumes.volume_view(VOLUME, None, [], VIEWER, 20.0).actions == ()
    assert http_routes.route_view(RouteRow(ROUTE, ""), VIEWER, 20.0).actions == ()


def test_secrets_and_configs_are_one_list_with_links_to_each_kind() -> None:
    found = [
        Secret("s1", "key", SecretKind.SECRET, 1.0, (SecretVersion(1, 1.0, "ann", 7),)),
        Secret("c1", "app.toml", SecretKind.CONFIG, 1.0, (SecretVersion(3, 2.0, "bob", 90),)),
    ]
    table = secrets.secret_table(found, ListQuery(sort="-version"), 10.0)
    assert [row.cells[0].href for row in table.rows] == [
        "/console/secrets/config/app.toml?namespace=default",
        "/console/secrets/secret/key?namespace=default",
    ]


def test_a_route_with_a_problem_says_so_in_word_and_shape() -> None:
    view = http_routes.route_view(RouteRow(ROUTE, "service web has no ready copy"), ADMIN, 20.0)
    assert view.name == "shop.example.org/api"
    assert view.note == "service web has no ready copy"
    assert view.status.badge is not None
    assert (view.status.badge.text, view.status.badge.tone) == ("PROBLEM", Tone.WARNING)


def test_a_route_to_a_function_that_is_not_public_needs_a_token() -> None:
    target = RouteTarget.parse("fn/hello")
    closed = Route("r2", "hello", RouteSpec("a.example.org", target=target), 1.0)
    opened = Route("r3", "hi", RouteSpec("b.example.org", target=target, is_public=True), 1.0)
    table = http_routes.route_table([RouteRow(closed, ""), RouteRow(opened, "")], ListQuery(), 20.0)
    assert [row.cells[3].text for row in table.rows] == ["a token of Skerry", "open to all"]


def test_events_are_the_newest_first_and_found_by_subject() -> None:
    stored = [
        StoredEvent("1", Event("node.registered", "node/n1", 1.0)),
        StoredEvent("2", Event("service.created", "service/shop/web", 2.0, data={"namespace": "shop"})),
    ]
    every = events.events_table(stored, ListQuery(), 10.0)
    assert [row.cells[1].text for row in every.rows] == ["service.created", "node.registered"]
    assert every.rows[0].cells[2].text == ""
    found = events.events_table(stored, ListQuery(q="node/n1"), 10.0)
    assert [row.cells[1].note for row in found.rows] == ["node/n1"]
