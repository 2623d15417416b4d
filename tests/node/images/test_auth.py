"""Tokens: given out by a token server, believed by the real registry, and replaced when they end."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skerry.model import errors
from tests.node.images.ground import Ground
from tests.node.images.tokens import TokenServer
from tests.support import imagery
from tests.support.certificates import TestAuthority
from tests.support.registry import PASSWORD, USER, Registry

IMAGE = imagery.image(imagery.layer(imagery.file("a", "a" * 100)), imagery.layer(imagery.file("b")))
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[Registry, TokenServer]]:
    """A registry that holds `IMAGE` as web:1 and wants tokens of the server beside it."""
    authority = TestAuthority(folder / "ca")
    async with TokenServer(authority).serving() as tokens:
        with Registry(folder / "registry") as opened:
            await asyncio.to_thread(opened.push, IMAGE, "web:1")
        with Registry(folder / "registry", authority=authority, token_realm=tokens.realm) as registry:
            yield registry, tokens


def log_in(ground: Ground, registry: Registry, **auth: str) -> None:
    Path(ground.settings.credentials).write_text(json.dumps({"auths": {registry.address: auth}}))


async def test_a_token_is_asked_for_once_and_used_for_everything(ground: Ground, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (registry, tokens), ground.images() as images:
        assert (await images.pull(f"{registry.address}/web:1")).id == IMAGE.id
        assert tokens.scopes == ["repository:web:pull"]


async def test_a_login_is_shown_to_the_token_server(ground: Ground, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (registry, tokens), ground.images() as images:
        tokens.login = f"Basic {BASIC}"
        with pytest.raises(errors.FailedPrecondition, match="requires a login for web"):
            await images.pull(f"{registry.address}/web:1")
        log_in(ground, registry, username=USER, password="wrong")
        with pytest.raises(errors.FailedPrecondition, match="rejects the login"):
            await images.pull(f"{registry.address}/web:1")
        log_in(ground, registry, auth=BASIC)
        assert (await images.pull(f"{registry.address}/web:1")).id == IMAGE.id


async def test_an_identity_token_is_exchanged_for_tokens(ground: Ground, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (registry, tokens), ground.images() as images:
        tokens.login = "the identity"
        log_in(ground, registry, identitytoken="the identity")
        assert (await images.pull(f"{registry.address}/web:1")).id == IMAGE.id


async def test_a_token_that_ended_in_the_middle_of_a_pull_is_replaced(ground: Ground, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (registry, tokens):
        # The first is of no use when it comes, as if it had ended on the way; nobody says how long they last.
        tokens.ends_in_s = [-500.0, 300.0]
        tokens.says_when = False
        async with ground.images() as images:
            assert (await images.pull(f"{registry.address}/web:1")).id == IMAGE.id
        assert len(tokens.scopes) == 2


async def test_a_token_that_says_that_it_ends_is_replaced_before_it_is_shown(
    ground: Ground, tmp_path: Path
) -> None:
    async with guarded(tmp_path) as (registry, tokens), ground.images() as images:
        tokens.ends_in_s = [0.0, 300.0]
        assert (await images.pull(f"{registry.address}/web:1")).id == IMAGE.id
        assert len(tokens.scopes) == 2


async def test_tokens_that_are_never_good_end_the_pull_with_a_word_about_clocks(
    ground: Ground, tmp_path: Path
) -> None:
    async with guarded(tmp_path) as (registry, tokens):
        tokens.ends_in_s = [-500.0]
        tokens.says_when = False
        async with ground.images() as images:
            with pytest.raises(
                errors.FailedPrecondition,
                match=r"token that was just issued .* expired .* Compare the clocks",
            ):
                await images.pull(f"{registry.address}/web:1")
            assert ground.stored() == []
        assert len(tokens.scopes) == 2
