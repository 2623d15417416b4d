"""Templates of functions on this node: stored memory of a process that has loaded one and ran no call of it.

After a start whose load took long, a further worker loads the function off the path of calls, stores its
memory in a file that exists in memory only, and ends (`python_template`). The file is sealed: nobody can
write to it any more. Later workers of the same version become copies of it. Here it is decided which
functions have one, and when it is dropped; `process_workers` makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.metrics_core import Metric

from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

MAKERS_FACTOR: Final = 2  # a worker that makes a template has its function's memory, and as much for the file
_MB: Final = 1024 * 1024
_CHECK_S: Final = 10.0
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

TEMPLATES = metrics.gauge_family("skerry_function_templates", "Functions with a template")
BYTES = metrics.gauge_family("skerry_function_template_bytes", "Memory of all templates")
STARTS = metrics.counter_family(
    "skerry_function_worker_starts_total",
    "Python workers that were started by loading the code, or as copies of a template",
    ["source"],
)

MakeTemplate = Callable[[Function, Path, int], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Template:
    """The stored memory of a function's process."""

    function: Function
    code: Path
    image: int  # descriptor
    bytes: int  # of the whole file: reading it may fill its holes
    used_at: float


class Templates(metrics.UndescribedCollector):
    """Those of one node. `run` makes and drops them."""

    def __init__(
        self, settings: FunctionSettings, clock: Clock, make: MakeTemplate, *, memory_mb: int
    ) -> None:
        """`make` lets a worker load a function and store its memory in the open file; it raises CodeLoadError
        if that is impossible. `memory_mb` is that of all workers."""
        self._settings = settings
        self._clock = clock
        self._make = make
        # What all of them may have, with one that is being made.
        self.memory_mb = min(settings.template_memory_mb, memory_mb)
        self._templates: OrderedDict[FunctionName, Template] = OrderedDict()  # the first: least recently used
        self._requested: dict[FunctionName, tuple[Function, Path]] = {}
        self._refused: dict[FunctionName, tuple[Function, str]] = {}  # versions that cannot have one, and why
        self._has_requests = asyncio.Event()
        self._starts = {"code": 0, "template": 0}
        metrics.REGISTRY.register(self)

    def collect(self) -> Iterator[Metric]:
        count, size, starts = TEMPLATES(), BYTES(), STARTS()
        count.add_metric([], len(self._templates))
        size.add_metric([], sum(each.bytes for each in self._templates.values()))
        for source, number in self._starts.items():
            starts.add_metric([source], number)
        yield from (count, size, starts)

    def find(self, function: Function, code: Path) -> Template | None:
        """The one for a start of this version."""
        template = self._templates.get(function.name)
        if template is None:
            return None
        if template.function != function or template.code != code:
            self.drop(function.name, "the function has changed")
            return None
        template.used_at = self._clock.monotonic()
        self._templates.move_to_end(function.name)
        return template

    def started(self, function: Function, code: Path, *, load_s: float, is_copy: bool) -> None:
        """A worker of it has started; loading took `load_s` of processor time."""
        self._starts["template" if is_copy else "code"] += 1
        if is_copy or not self._wants(function):
            return
        if load_s * 1000 < self._settings.template_after_ms:
            log.debug("template.not_needed", function=function.name, load_ms=round(load_s * 1000, 1))
            return
        if not self.refusal(function) and function.name not in self._templates:
            self._requested[function.name] = function, code
            self._has_requests.set()

    def refusal(self, function: Function) -> str:
        """Why this version cannot have one; empty if that is not known."""
        refused, reason = self._refused.get(function.name, (None, ""))
        return reason if refused == function else ""

    def _wants(self, function: Function) -> bool:
        return self.memory_mb > 0 and function.uses_template and not function.secrets

    def drop(self, name: FunctionName, reason: str) -> None:
        """Close it; copies are not affected."""
        self._requested.pop(name, None)
        self._refused.pop(name, None)
        template = self._templates.pop(name, None)
        if template is not None:
            os.close(template.image)
            log.info("template.dropped", function=name, reason=reason)

    async def run(self) -> None:
        """Make requested ones, one at a time, and drop idle ones, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._has_requests.wait()
            self._has_requests.clear()
            self._drop_idle()
            while self._requested:
                name = next(iter(self._requested))
                await self._make_one(*self._requested.pop(name))

    def _drop_idle(self) -> None:
        before = self._clock.monotonic() - self._settings.template_idle_s
        for template in list(self._templates.values()):
            if template.used_at <= before:
                self.drop(template.function.name, "it was not used")

    async def _make_one(self, function: Function, code: Path) -> None:
        if not self._free_memory(MAKERS_FACTOR * function.memory):
            self._refuse(function, f"it may need {MAKERS_FACTOR * function.memory} MB while it is made")
            return
        began = self._clock.monotonic()
        most = function.memory * _MB
        async with _new_image(most) as image:
            try:
                await self._make(function, code, image)
                fcntl.fcntl(image, fcntl.F_ADD_SEALS, _SEALS)
                if (size := os.fstat(image).st_size) > most:
                    raise CodeLoadError("it needs more memory than a template may have")
            except CodeLoadError as error:
                self._refuse(function, error.message.partition("\n")[0])
                return
            except (errors.SkerryError, OSError) as error:
                log.warning("template.not_made", function=function.name, error=str(error))
                return
            now = self._clock.monotonic()
            self.drop(function.name, "it was replaced")
            self._templates[function.name] = Template(function, code, os.dup(image), size, now)
        log.info("template.made", function=function.name, bytes=size, seconds=round(now - began, 3))

    def _free_memory(self, needed_mb: int) -> bool:
        """Drop the least recently used ones until so much is free."""
        if needed_mb > self.memory_mb:
            return False
        while sum(each.bytes for each in self._templates.values()) > (self.memory_mb - needed_mb) * _MB:
            self.drop(next(iter(self._templates)), "its memory was needed")
        return True

    def _refuse(self, function: Function, reason: str) -> None:
        self._refused[function.name] = function, reason
        log.info("template.refused", function=function.name, reason=reason)

    def close(self) -> None:
        """Drop all. `run` has ended."""
        for name in list(self._templates):
            self.drop(name, "the node stops")
        with contextlib.suppress(KeyError):  # it is closed already
            metrics.REGISTRY.unregister(self)


@contextlib.asynccontextmanager
async def _new_image(size: int) -> AsyncIterator[int]:
    """A file in memory, which uses none yet."""
    image = os.memfd_create("template", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(image, size)
        yield image
    finally:
        os.close(image)
