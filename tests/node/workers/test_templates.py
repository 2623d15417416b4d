"""Which functions get a template, and when it is dropped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skerry.kit import metrics
from skerry.kit.clock import ManualClock
from skerry.model.calls import CodeLoadError
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.resources import Megabytes
from skerry.model.secrets import SecretUse
from skerry.model.settings import FunctionSettings
from skerry.node.workers.templates import Templates
from tests.support.waiting import eventually

CODE = Path("/code")
MB = 1024 * 1024


def function(name: str = "heavy", **more: Any) -> Function:
    parts: dict[str, Any] = {
        "name": FunctionName(name),
        "runtime": "python311",
        "memory": Megabytes(32),
        "created_at": 0.0,
        "handler": "main.handle",
        "code": Digest("sha256:" + "0" * 64),
    }
    return Function(**(parts | more))


class Maker:
    """Stores so many bytes, or refuses."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.size = 8 * MB
        self.refuses = ""

    async def make(self, function: Function, code: Path, image: int) -> None:
        self.made.append(function.name)
        if self.refuses:
            raise CodeLoadError(self.refuses)
        os.ftruncate(image, self.size)


@pytest.fixture
def maker() -> Maker:
    return Maker()


@asynccontextmanager
async def running(maker: Maker, clock: ManualClock, **settings: int) -> AsyncIterator[Templates]:
    chosen = FunctionSettings(**{"template_memory_mb": 512, **settings})
    templates = Templates(chosen, clock, maker.make, memory_mb=4096)
    task = asyncio.create_task(templates.run())
    try:
        yield templates
    finally:
        task.cancel()
        await asyncio.wait([task])
        templates.close()


async def test_a_function_that_takes_long_to_load_gets_one_and_others_do_not(maker: Maker) -> None:
    async with running(maker, ManualClock()) as templates:
        templates.started(function("quick"), CODE, load_s=0.014, is_copy=False)
        templates.started(function("declined", uses_template=False), CODE, load_s=1.0, is_copy=False)
        secret = function("secret", secrets=(SecretUse("key"),))
        templates.started(secret, CODE, load_s=1.0, is_copy=False)
        templates.started(function(), CODE, load_s=0.015, is_copy=False)
        await eventually(lambda: templates.find(function(), CODE) is not None)
        templates.started(function(), CODE, load_s=0.0, is_copy=True)
        assert maker.made == ["heavy"]
        text = (await metrics.EXPOSITIONS.render(is_open=False)).content.decode()
    assert "skerry_function_templates 1.0" in text
    assert f"skerry_function_template_bytes {float(8 * MB)}" in text.replace("8.388608e+06", "8388608.0")
    assert 'skerry_function_worker_starts_total{source="template"} 1.0' in text


async def test_a_node_without_memory_for_templates_makes_none(maker: Maker) -> None:
    async with running(maker, ManualClock(), template_memory_mb=0) as templates:
        templates.started(function(), CODE, load_s=1.0, is_copy=False)
        assert not templates._requested


async def test_another_version_or_code_has_no_use_for_it(maker: Maker) -> None:
    for other, code in ((function(version=2), CODE), (function(), Path("/other"))):
        async with running(maker, ManualClock()) as templates:
            templates.started(function(), CODE, load_s=1.0, is_copy=False)
            await eventually(lambda: templates.find(function(), CODE) is not None)
            assert templates.find(other, code) is None
            assert templates.find(function(), CODE) is None  # it is dropped


async def test_what_cannot_have_one_is_asked_once_for_each_version(maker: Maker) -> None:
    maker.refuses = "it has started threads\n\nmore"
    async with running(maker, ManualClock()) as templates:
        for one in (function(), function(), function(version=2)):
            templates.started(one, CODE, load_s=1.0, is_copy=False)
            await eventually(lambda one=one: templates.refusal(one))
        assert templates.refusal(function(version=2)) == "it has started threads"
        assert templates.refusal(function()) == ""
    assert maker.made == ["heavy", "heavy"]


async def test_the_least_recently_used_give_way_to_one_that_needs_their_memory(maker: Maker) -> None:
    async with running(maker, ManualClock(), template_memory_mb=80) as templates:  # 64 while one is made
        for name in ("a", "b"):
            templates.started(function(name), CODE, load_s=1.0, is_copy=False)
            await eventually(lambda name=name: templates.find(function(name), CODE) is not None)
        assert templates.find(function("a"), CODE) is not None  # used after b
        maker.size = 9 * MB
        templates.started(function("c"), CODE, load_s=1.0, is_copy=False)
        await eventually(lambda: templates.find(function("c"), CODE) is not None)
        templates.started(function("d"), CODE, load_s=1.0, is_copy=False)
        await eventually(lambda: templates.find(function("d"), CODE) is not None)
        assert [templates.find(function(name), CODE) is not None for name in "abcd"] == [
            False,
            False,
            True,
            True,
        ]
        large = function("large", memory=Megabytes(41))
        templates.started(large, CODE, load_s=1.0, is_copy=False)
        await eventually(lambda: templates.refusal(large))
        assert "82 MB" in templates.refusal(large)


async def test_a_file_that_grew_beyond_the_memory_of_the_function_is_not_kept(maker: Maker) -> None:
    maker.size = 33 * MB
    async with running(maker, ManualClock()) as templates:
        templates.started(function(), CODE, load_s=1.0, is_copy=False)
        await eventually(lambda: templates.refusal(function()))
        assert templates.find(function(), CODE) is None


async def test_nobody_can_write_to_a_template_and_an_idle_one_is_dropped(maker: Maker) -> None:
    clock = ManualClock()
    async with running(maker, clock, template_idle_s=100) as templates:
        templates.started(function(), CODE, load_s=1.0, is_copy=False)
        await eventually(lambda: templates.find(function(), CODE) is not None)
        template = templates.find(function(), CODE)
        assert template is not None
        with pytest.raises(PermissionError):
            os.pwrite(template.image, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(template.image, 0)
        clock.advance(101)
        templates.started(function("other"), CODE, load_s=1.0, is_copy=False)  # wakes it
        await eventually(lambda: templates.find(function("other"), CODE) is not None)
        assert templates.find(function(), CODE) is None
