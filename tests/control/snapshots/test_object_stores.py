"""The configured store: its credentials come from a file that others cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.control.snapshots.object_stores import StoreSource
from skerry.model import errors
from skerry.model.snapshot_settings import SnapshotSettings

SECRET = "canary-of-the-store"


def settings(path: Path, endpoint: str = "https://s3.example.org") -> SnapshotSettings:
    return SnapshotSettings(
        s3_endpoint=endpoint, s3_bucket="backups", s3_prefix="/cloud/", s3_credentials=str(path)
    )


def credentials(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_is_read_with_its_credentials_each_time(tmp_path: Path) -> None:
    path = credentials(tmp_path / "keys", f"access_key = one\nsecret_key={SECRET}\n")
    source = StoreSource(settings(path))
    store = source.get()
    assert (store.access_key, store.secret_key, store.prefix) == ("one", SECRET, "cloud")
    credentials(path, f"access_key=two\nsecret_key={SECRET}\n")
    assert source.get().access_key == "two"


@pytest.mark.parametrize(
    ("text", "mode", "endpoint", "said"),
    [
        (f"access_key=one\nsecret_key={SECRET}\n", 0o644, "https://s3.example.org", "chmod 600"),
        (f"secret_key={SECRET}\n", 0o600, "https://s3.example.org", "access_key="),
        (f"access_key=one\nsecret_key={SECRET}\n", 0o600, "s3.example.org", "must be a URL"),
        (f"access_key=one\nsecret_key={SECRET}\n", 0o600, "", r"snapshots\.s3_endpoint"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(
    tmp_path: Path, text: str, mode: int, endpoint: str, said: str
) -> None:
    path = credentials(tmp_path / "keys", text, mode)
    with pytest.raises(errors.FailedPrecondition, match=said) as caught:
        StoreSource(settings(path, endpoint)).get()
    assert SECRET not in f"{caught.value.message} {caught.value.detail}"


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.FailedPrecondition, match="cannot be read"):
        StoreSource(settings(tmp_path / "keys")).get()
