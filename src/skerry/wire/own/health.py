"""Liveness and readiness of this server, for service managers, load balancers and people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire.own.context import OwnContext
from skerry.wire.own.health_route import ALIVE, HealthDocument

log = structlog.get_logger(__name__)

CHECK_TIMEOUT_S = 2.0


class ReadinessDocument(msgspec.Struct, frozen=True):
    """`checks` holds `ok` for every part that works, otherwise what is wrong with it."""

    ready: bool
    checks: dict[str, str]


@endpoint("GET", "/healthz", summary="Liveness of the process", is_quiet=True)
async def healthz(own: OwnContext, call: RequestContext) -> HealthDocument:
    """Answers as long as the event loop runs; nothing else is checked."""
    return ALIVE


@endpoint(
    "GET",
    "/readyz",
    summary="Readiness of the server",
    extra_statuses={503: "Something is not ready; `checks` says what."},
    is_quiet=True,
)
async def readyz(own: OwnContext, call: RequestContext) -> ReadinessDocument | Response:
    """Checks every part of the server, each for at most two seconds."""
    return await run_checks(own.plane.checks)


async def run_checks(checks: Mapping[str, Callable[[], Awaitable[None]]]) -> ReadinessDocument | Response:
    """The response of all checks, which run at once."""
    names = list(checks)
    results = await asyncio.gather(*(_run_check(name, checks[name]) for name in names))
    readiness = ReadinessDocument(
        ready=all(result == "ok" for result in results), checks=dict(zip(names, results, strict=True))
    )
    return readiness if readiness.ready else Response(readiness, 503)


async def _run_check(name: str, check: Callable[[], Awaitable[None]]) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check()
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S:g} s"
    except errors.SkerryError as error:
        return error.message
    except Exception as error:
        log.warning("check.failed", check=name, exc_info=error)
        return "failed; see the log"
    return "ok"
