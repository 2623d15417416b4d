"""The DNS hook: how it is called, and what becomes of one that fails or does not end."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.control.tls.acme_api import AcmeFailure
from skerry.control.tls.dns_hook import DnsHook
from skerry.model.tls_settings import TlsSettings
from tests.support.waiting import eventually


def hook(folder: Path, script: str, **more: float) -> DnsHook:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return DnsHook(TlsSettings(dns_hook=str(path), **more))  # type: ignore[arg-type]


async def test_it_gets_its_arguments_as_they_are_and_nothing_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "canary")
    called = tmp_path / "called"
    one = hook(tmp_path, f'printf "%s|" "$@" > {called}; env >> {called}; pwd >> {called}')
    await one.present("*.example.org", "a b;$(touch x)")
    text = called.read_text()
    assert text.startswith("present|example.org|_acme-challenge.example.org|a b;$(touch x)|")
    assert "canary" not in text
    await one.cleanup("shop.example.org", "v")
    assert called.read_text().startswith("cleanup|shop.example.org|_acme-challenge.shop.example.org|v|")


async def test_its_output_is_not_in_the_error(tmp_path: Path) -> None:
    one = hook(tmp_path, "echo password=canary; exit 3")
    with pytest.raises(AcmeFailure, match="failed with status 3; the log") as failed:
        await one.present("example.org", "v")
    assert "canary" not in failed.value.message


async def test_one_that_writes_without_end_or_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    one = hook(tmp_path, f"sleep 1000 & echo $! $$ > {pids}; yes", dns_hook_timeout_s=0.5)
    with pytest.raises(AcmeFailure, match=r"did not end within 0.5 s"):
        await one.present("example.org", "v")
    for pid in map(int, pids.read_text().split()):
        await eventually(lambda pid=pid: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    for path, reason in ((str(tmp_path / "none"), "cannot be started"), ("", "needs a DNS hook")):
        with pytest.raises(AcmeFailure, match=reason):
            await DnsHook(TlsSettings(dns_hook=path)).present("example.org", "v")
