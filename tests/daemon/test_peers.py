"""Naming a peer on a real server: what is wrong with it is said, and it is not kept."""

from __future__ import annotations

from pathlib import Path

from tests.support.skerry import running
from tests.support.waiting import PATIENCE_S


def test_a_peer_with_the_wrong_ca_key_or_scheme_is_refused_with_the_reason(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("north", "home")]
    for folder in folders:
        folder.mkdir()
    with (
        running(folders[0], "--set", "http.tls=true", role="server") as north,
        # One that does not answer in this time is taken for one that is away, and may be added.
        running(folders[1], "--set", f"market.list_timeout_s={PATIENCE_S}", role="server") as home,
    ):
        id, own = (one.call("GET", "/market")[1]["cloud"] for one in (north, home))
        url, ca = north.ready["http"], north.ready["ca"]
        add = ("market", "peers", "add", "north")
        wrong = (
            ((url, "--cloud", id, "--ca", home.ready["ca"]), "peer north is not trusted"),
            ((url, "--cloud", id), "peer north is not trusted"),
            ((url, "--cloud", "key." + own[4:][::-1], "--ca", ca), "this provider is key."),
            ((url.replace("https:", "http:"), "--cloud", id), "set its URL anew with https"),
            ((home.ready["http"].replace("http:", "https:"), "--cloud", id), "cannot be spoken to with TLS"),
        )
        for arguments, why in wrong:
            refused = home.cli(*add, *arguments)
            assert refused.returncode != 0, arguments
            assert why in refused.stderr, (arguments, refused.stderr)
        assert home.call("GET", "/market/peers")[1]["peers"] == []
        added = home.cli(*add, url, "--cloud", id, "--ca", ca)
        assert added.returncode == 0, added.stderr
