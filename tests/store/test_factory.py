"""From the setting `store.url` to a store, and what is said about a URL that cannot be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.settings import StoreSettings
from skerry.store.etcd.store import EtcdStore
from skerry.store.factory import FILE_NAME, open_store, parse_url
from skerry.store.protocol import Put
from skerry.store.sqlite.store import SqliteStore
from tests.support.etcd import EtcdServer


async def test_sqlite_is_a_file_in_the_folder(tmp_path: Path) -> None:
    store = await open_store(StoreSettings(), tmp_path, ManualClock())
    assert isinstance(store, SqliteStore)
    await store.commit([Put("a", b"")])
    await store.close()
    assert (tmp_path / FILE_NAME).exists()


async def test_etcd_is_opened_by_its_url(tmp_path: Path, etcd_server: EtcdServer) -> None:
    url = f"etcd://{etcd_server.address},{etcd_server.address}"
    store = await open_store(StoreSettings(url=url, etcd_prefix="/opening/"), tmp_path, ManualClock())
    assert isinstance(store, EtcdStore)
    await store.commit([Put("a", b"")])
    await store.close()
    assert list(tmp_path.iterdir()) == []


def test_endpoints_are_read_from_the_url() -> None:
    assert parse_url("etcd://a:1,b.example:65535,[::1]:2379/") == (
        ("a:1", "b.example:65535", "[::1]:2379"),
        False,
    )
    assert parse_url("etcds://10.0.0.1:2379") == (("10.0.0.1:2379",), True)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a:1",
        "sqlite://x",
        "etcd:/a:1",
        "ETCD://a:1",
        "etcd://",
        "etcd://a",
        "etcd://a:0",
        "etcd://a:x",
        "etcd://a:99999",
        "etcd://a:1,",
        "etcd://::1:2379",
        "etcd://u:p@h:1",
        "etcd://a:1/path",
    ],
)
async def test_anything_else_is_refused_with_what_is_accepted(url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="accepted are `sqlite`, `etcd://") as caught:
        await open_store(StoreSettings(url=url), tmp_path, ManualClock())
    assert caught.value.field == "store.url"


@given(st.text(max_size=40))
def test_no_url_is_more_than_refused(text: str) -> None:
    try:
        endpoints, _ = parse_url("etcd://" + text)
    except errors.Invalid:
        return
    assert endpoints


def test_the_etcd_client_is_not_imported_for_sqlite() -> None:
    program = "import sys, skerry.store.factory; print([m for m in ('grpc', 'aetcd') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("missing", ["aetcd", "grpc"])
def test_without_the_extra_etcd_a_server_says_how_to_install_it(missing: str, tmp_path: Path) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from skerry.cli.main import main; main()"
    listen = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    arguments = ["server", "--store", "etcd://127.0.0.1:1", "--data", str(tmp_path), *listen]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "install them with `make etcd`" in done.stderr
    assert "Traceback" not in done.stderr
