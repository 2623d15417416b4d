"""Wrong settings are refused before a process touches its store and its folder."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.daemon import settings_check
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.settings import Settings

SERVERS, WORKERS = ("up", "server"), ("up", "node")
ALL = ("up", "server", "node")


@pytest.mark.parametrize("role", ALL)
def test_the_settings_that_nobody_changed_are_right(role: str) -> None:
    settings_check.check(role, Settings(), ManualClock())


@pytest.mark.parametrize(
    ("part", "values", "roles"),
    [
        ("backup", {"schedule": "0 3 * * *"}, SERVERS),
        ("backup", {"schedule": "61 * * * *", "target": "/srv", "plain": True}, SERVERS),
        ("http", {"names": ("not a host",)}, SERVERS),
        ("identity", {"edge_names": ("no-host",)}, SERVERS),
        ("fleet", {"subnets": "10.0.0.0/31"}, SERVERS),
        ("fleet", {"service_subnet": "8.8.0.0/16"}, SERVERS),
        ("market", {"sell_percent": 50, "sell_price": "cheap"}, SERVERS),
        ("market", {"plain_listen": "127.0.0.1:1", "plain_addresses": ()}, SERVERS),
        ("node", {"labels": ("no-value",)}, WORKERS),
        ("node", {"cell_paths": ("relative",)}, WORKERS),
        ("mesh", {"endpoints": ("example.org",)}, WORKERS),
        ("node", {"isolation": "none"}, ("server", "node")),
        ("node", {"http": "127.0.0.1:0", "tls_cert": "/a.pem"}, ("node",)),
        ("node", {"http": "127.0.0.1:0", "names": ("not a host",)}, ("node",)),
        ("log", {"forward": ("gopher://example.org",)}, ALL),
        ("traces", {"endpoint": "nowhere"}, ALL),
        ("grpc", {"socket_group": "no-such-group"}, ALL),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_setting_is_refused_by_the_roles_that_use_it(
    part: str, values: dict[str, object], roles: tuple[str, ...]
) -> None:
    settings = replace(Settings(), **{part: replace(getattr(Settings(), part), **values)})
    for role in ALL:
        if role in roles:
            with pytest.raises(errors.Invalid):
                settings_check.check(role, settings, ManualClock())
        else:
            settings_check.check(role, settings, ManualClock())
