"""Routes on this node: has HAProxy serve what network objects say, for as long as there are routes.

Copies, certificates and ACME answers change by commands, and nothing else notices; other changes are a new
configuration, which a new worker takes over without a closed connection. While no server can be reached the
last known routes are served. One task applies everything, one step after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, program_paths
from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.network_objects import EndpointState, ServiceAddress
from skerry.model.route_settings import RouteSettings
from skerry.model.routes import NOT_SERVED, RouteLoad, RouteObject, ServiceWake, TargetKind
from skerry.model.tls_certificates import HttpChallenge
from skerry.node.agent.network_state import NetworkState
from skerry.node.routes import config, loads, runtime_api, slots
from skerry.node.routes.certificates import CertificateFiles
from skerry.node.routes.config import EdgeConfig, EdgeFiles
from skerry.node.routes.connect_probes import ConnectProbes
from skerry.node.routes.matching import BACKEND_PREFIX, backend_name
from skerry.node.routes.process import HaproxyProcess, reload_pause_s
from skerry.node.routes.slots import Copy, Slots
from skerry.node.routes.wake import WakeListener

log = structlog.get_logger(__name__)

LOAD_PERIOD_S = 1.0
_SETTLE_S = 0.02  # changes that come together are one step
_ADOPTED_S = 10.0  # for so long an adopted HAProxy is left as it is until a server has sent what is so now
_USER = "haproxy"
_SOCKETS = Path("/run/skerry-routes")  # of root, for the user of HAProxy


class EdgeRoutes:
    """The routes that this node serves."""

    def __init__(self, paths: EdgeFiles, settings: RouteSettings, state: NetworkState) -> None:
        self._paths = paths
        self._settings = settings
        self._state = state
        self._user = _haproxy_user()
        self.certificates = CertificateFiles(paths)
        self._process = HaproxyProcess(settings.program, paths)
        self._wakes = WakeListener(
            paths.wake_socket,
            hold_s=settings.hold_s,
            is_ready=self._is_ready,
            wake=self._wake,
            settled=self._settled,
            group=None if self._user is None else grp.getgrnam(self._user[1]).gr_gid,
        )
        self._probes = ConnectProbes(lambda: self._has_work.set())
        self._slots: dict[str, Slots] = {}  # of routes to services, by id, as they should be
        self._applied: dict[str, Slots] = {}  # as HAProxy has them
        self._challenges: dict[str, str] = {}  # as HAProxy has them
        self._described = ""  # the configuration that it has; empty: not known
        self._totals: dict[str, int] = {}  # requests of backends, at the last count
        self._unreachable: frozenset[NodeId] = frozenset()
        self._adopted_until = 0.0  # until then HAProxy may know more than this process does
        self._reload_at = 0.0  # the earliest time of the next reload
        self._reload_timer: asyncio.TimerHandle | None = None
        self._wake_number = 0
        self._has_work = asyncio.Event()
        self._runs = asyncio.Event()  # HAProxy was started or adopted, and its end is to be awaited
        self._applying = asyncio.Lock()
        self._is_closed = False
        self.problem = ""  # why routes are not served as they should be

    @property
    def pid(self) -> int | None:
        """Of HAProxy; None: it does not run."""
        return self._process.pid

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know, in sentences."""
        if not self.problem:
            return ()
        return (f"{NOT_SERVED}; this is tried again and again: {self.problem}",)

    async def open(self) -> EdgeRoutes:
        """Adopt what runs, and follow network objects."""
        await asyncio.to_thread(self._make_folders)
        await self._wakes.open()
        if await self._process.adopt():
            self._described = await runtime_api.description(self._paths.admin_socket)
            self._adopted_until = time.monotonic() + _ADOPTED_S
            asyncio.get_running_loop().call_later(_ADOPTED_S, self._has_work.set)
            self._runs.set()
        for kind in (RouteObject, HttpChallenge):
            self._state.subscribe(kind, lambda _: self._has_work.set())
        self._state.subscribe(ServiceAddress, lambda _: self._services_changed())
        return self

    async def run(self) -> None:
        """Apply changes, restart HAProxy when it has ended, and count requests, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._apply_for_ever())
            group.create_task(self._watch_for_ever())
            group.create_task(self._count_for_ever())

    async def detach(self) -> None:
        """Leave HAProxy to the next agent: it goes on as it is."""
        async with self._applying:
            self._is_closed = True  # `run` may go on for a moment
        await self._close_listeners()

    def remove(self) -> None:
        """End HAProxy after `detach`, as nothing is left that it could serve. Blocks."""
        asyncio.run(self.close())

    async def close(self) -> None:
        """End HAProxy, and remove everything of it but certificates."""
        async with self._applying:
            self._is_closed = True  # `run` may go on for a moment
            await self._process.stop()
        await self._close_listeners()
        paths = self._paths
        for path in (paths.config, paths.routes, paths.challenges, paths.wake_script, paths.output):
            path.unlink(missing_ok=True)
        await asyncio.to_thread(_remove_sockets, paths)

    async def _close_listeners(self) -> None:
        await self._wakes.close()
        await self._probes.close()

    def unreachable_changed(self, nodes: frozenset[NodeId]) -> None:
        """No packet gets to these nodes now: the mesh knows it long before servers do."""
        self._unreachable = nodes
        self._has_work.set()

    def certificate_names(self) -> Sequence[str]:
        """Of the certificates that are in use, without the default one."""
        return self.certificates.names

    async def set_certificate(self, name: str, domains: tuple[str, ...], pem: bytes) -> None:
        """Use a certificate with its key for these hosts; no connection is closed."""
        async with self._applying:
            await self.certificates.set(name, domains, pem, running=self._process.pid is not None)

    async def remove_certificate(self, name: str) -> None:
        async with self._applying:
            await self.certificates.remove(name, running=self._process.pid is not None)

    # Applying

    async def apply(self) -> None:
        """Have HAProxy serve what is known now; raises `Unavailable` or `Internal`."""
        async with self._applying:
            if self._is_closed or self._is_ahead():
                return
            routes = self._state.all(RouteObject)
            if not routes:
                if self._process.pid is not None:
                    await self._process.stop()
                    log.info("routes.stopped", reason="there are no routes")
                self._slots, self._applied, self._described = {}, {}, ""
                return
            self._slots = self._desired_slots()
            challenges = self._desired_challenges()
            wanted = config.render(routes, self._slots, self._settings, self._paths, self._user)
            if self._process.pid is None:
                await self._write(wanted, challenges)
                await self._process.start(wanted.digest)
                self._use(wanted, challenges)
                self._runs.set()
            elif wanted.digest == self._described:
                await self._send_changes(self._slots, challenges)
            elif self._is_paused():
                await self._send_changes(self._slots_that_fit(), challenges)
            else:
                await self._write(wanted, challenges)
                await self._process.reload(wanted.digest)
                self._use(wanted, challenges)
                await self._pause_reloads()
                log.info("routes.reloaded", routes=len(routes))
            self._wakes.notify()

    def _is_ahead(self) -> bool:
        """Whether HAProxy may know more than this process: it was adopted, and the file of the process before
        may lack what that one learnt last."""
        return (
            self._process.pid is not None
            and not self._state.is_current
            and time.monotonic() < self._adopted_until
        )

    def _is_paused(self) -> bool:
        """Whether the next reload has to wait: there were many, and processes of before have connections."""
        wait_s = self._reload_at - time.monotonic()
        if not self._described or wait_s <= 0:
            return False
        if self._reload_timer is not None:
            self._reload_timer.cancel()
        self._reload_timer = asyncio.get_running_loop().call_later(wait_s, self._has_work.set)
        return True

    async def _pause_reloads(self) -> None:
        with contextlib.suppress(errors.Unavailable):
            old = await runtime_api.old_processes(self._paths.master_socket)
            self._reload_at = time.monotonic() + reload_pause_s(len(old))

    def _slots_that_fit(self) -> dict[str, Slots]:
        """The slots that HAProxy has, as they should be."""
        return {
            id: msgspec.structs.replace(self._slots[id], copies=self._slots[id].copies[: len(has.copies)])
            for id, has in self._applied.items()
            if id in self._slots
        }

    def _services_changed(self) -> None:
        self._accepting(self._desired_copies())
        self._has_work.set()

    def _desired_slots(self) -> dict[str, Slots]:
        copies = self._desired_copies()
        accepting = self._accepting(copies)
        return {
            id: slots.assign(
                self._slots.get(id, Slots()),
                [one for one in wanted if not self._is_probed(id, one) or one.location in accepting],
            )
            for id, wanted in copies.items()
        }

    def _desired_copies(self) -> dict[str, list[Copy]]:
        """The copies of each route to a service, by the id of the route."""
        services = slots.by_service(self._state.all(ServiceAddress))
        found: dict[str, list[Copy]] = {}
        for route in self._state.all(RouteObject).values():
            target = route.spec.target
            if target is None or target.kind is not TargetKind.SERVICE:
                continue
            service = services.get((route.namespace, target.name))
            found[route.id] = slots.copies_of(service, target.port, self._unreachable)
        return found

    def _accepting(self, copies: dict[str, list[Copy]]) -> frozenset[tuple[str, int]]:
        """Where the copies are that requests are held for and that accept connections."""
        probed = {one.location for id, some in copies.items() for one in some if self._is_probed(id, one)}
        return self._probes.accepting(probed)

    def _is_probed(self, route: str, copy: Copy) -> bool:
        return copy.state is EndpointState.READY and self._wakes.is_waiting(route)

    async def _write(self, wanted: EdgeConfig, challenges: dict[str, str]) -> None:
        """Write all files, and check them: those of before stay if HAProxy refuses these."""
        paths = self._paths
        texts = {
            paths.routes: wanted.routes_map,
            paths.challenges: "".join(f"{token} {answer}\n" for token, answer in challenges.items()),
            paths.wake_script: wanted.wake_script,
            paths.config: wanted.text,
        }
        before = {path: path.read_bytes() for path in texts if path.exists()}
        for path, text in texts.items():
            files.write_atomically(path, text.encode(), files.PRIVATE)
        try:
            await self._process.check()
        except errors.Internal:
            for path, data in before.items():
                files.write_atomically(path, data, files.PRIVATE)
            raise

    def _use(self, wanted: EdgeConfig, challenges: dict[str, str]) -> None:
        self._described = wanted.digest
        self._applied = dict(self._slots)
        self._challenges = challenges
        self._totals = {}

    async def _send_changes(self, desired: dict[str, Slots], challenges: dict[str, str]) -> None:
        """By commands: copies and ACME answers."""
        commands: list[str] = []
        for id, wanted in desired.items():
            if (has := self._applied.get(id)) != wanted:
                commands.extend(slots.commands(f"{BACKEND_PREFIX}{id}", has, wanted))
        path = self._paths.challenges
        commands.extend(f"del map {path} {token}" for token in self._challenges.keys() - challenges.keys())
        for token, answer in challenges.items():
            if self._challenges.get(token) != answer:
                verb = "set" if token in self._challenges else "add"
                commands.append(f"{verb} map {path} {token} {answer}")
        if not commands:
            return
        try:
            if not await runtime_api.execute(self._paths.admin_socket, commands, described=self._described):
                self._described = ""  # the next step loads the configuration
                raise errors.Unavailable("HAProxy has another configuration than expected")
        except errors.Unavailable:
            self._applied, self._described = {}, ""
            raise
        self._applied = dict(desired)
        self._challenges = challenges

    def _desired_challenges(self) -> dict[str, str]:
        return {one.token: one.authorization for one in self._state.all(HttpChallenge).values()}

    async def _apply_for_ever(self) -> None:
        failures, backoff = 0, Backoff(cap_s=30.0)
        while True:
            await self._has_work.wait()
            await asyncio.sleep(_SETTLE_S)
            self._has_work.clear()
            try:
                await self.apply()
            except (errors.Unavailable, errors.Internal, OSError) as error:
                self.problem = str(error)
                detail = error.detail if isinstance(error, errors.SkerryError) else ""
                log.warning("routes.not_applied", error=str(error), detail=detail)
                self._has_work.set()
                await asyncio.sleep(backoff.delay(failures))
                failures += 1
            else:
                failures, self.problem = 0, ""

    async def _watch_for_ever(self) -> None:
        while True:
            await self._runs.wait()
            self._runs.clear()
            await self._process.ended()
            if self._state.all(RouteObject) and not self._is_closed:
                log.warning("routes.ended")
                self._has_work.set()

    # Requests that wait, and counts

    def _is_ready(self, route: str) -> bool:
        has = self._applied.get(route)
        return has is not None and has.ready > 0

    def _wake(self, route: str) -> bool:
        """Report that a service is needed."""
        service = self._service_of(self._state.all(RouteObject).get(route))
        if service is None:
            return False
        self._wake_number += 1
        self._state.report(ServiceWake(service.service, self._wake_number))
        return True

    def _settled(self, route: str) -> None:
        """Report that it is not needed any more: reports are repeated in every session."""
        if (service := self._service_of(self._state.all(RouteObject).get(route))) is not None:
            self._state.report(ServiceWake(service.service))

    def _service_of(self, route: RouteObject | None) -> ServiceAddress | None:
        target = None if route is None else route.spec.target
        if route is None or target is None or target.kind is not TargetKind.SERVICE:
            return None
        return slots.by_service(self._state.all(ServiceAddress)).get((route.namespace, target.name))

    async def _count_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOAD_PERIOD_S)
            if self._process.pid is not None:
                with contextlib.suppress(errors.Unavailable, ValueError, KeyError):
                    await self._count()

    async def _count(self) -> None:
        """Report the load of every service that routes go to."""
        known = slots.by_service(self._state.all(ServiceAddress))
        services: dict[str, str] = {}
        for route in self._state.all(RouteObject).values():
            target = route.spec.target
            if target is None or target.kind is not TargetKind.SERVICE:
                continue
            if (service := known.get((route.namespace, target.name))) is not None:
                services[backend_name(route)] = service.service
        if not services:
            return
        counts = await runtime_api.backend_counts(self._paths.admin_socket)
        found = loads.service_loads(services, self._totals, counts)
        self._totals = loads.totals(counts)
        # Connections of before the last reload are under way, too.
        for pid in await runtime_api.old_processes(self._paths.master_socket):
            for one in await runtime_api.backend_counts(self._paths.master_socket, pid):
                if (service_id := services.get(one.name)) is not None:
                    found[service_id] += one.current
        for service_id, requests in found.items():
            self._state.report(RouteLoad(service_id, requests))

    def _make_folders(self) -> None:
        files.private_folder(self._paths.folder)
        sockets = self._paths.sockets
        sockets.mkdir(mode=0o750, parents=True, exist_ok=True)
        if self._user is not None:
            sockets.parent.chmod(0o755)
            os.chown(sockets, 0, grp.getgrnam(self._user[1]).gr_gid)
            sockets.chmod(0o750)
        self.certificates.open()


async def remove(paths: EdgeFiles, program: str) -> None:
    """End a HAProxy that has outlived its agent, and remove everything of it, certificates too."""
    process = HaproxyProcess(program, paths)
    await process.adopt()
    await process.stop()
    await asyncio.to_thread(_remove_sockets, paths)
    await asyncio.to_thread(shutil.rmtree, paths.folder, ignore_errors=True)


def _remove_sockets(paths: EdgeFiles) -> None:
    shutil.rmtree(paths.sockets, ignore_errors=True)
    if paths.sockets.parent == _SOCKETS:
        with contextlib.suppress(OSError):  # another Skerry of this machine has some there, or it is gone
            _SOCKETS.rmdir()


def lacking(settings: RouteSettings) -> str:
    """Why this machine cannot serve routes; empty: it can."""
    if not program_paths.find(settings.program):
        return f"{settings.program} is not installed; install the package haproxy"
    return ""


def _haproxy_user() -> tuple[str, str] | None:
    """The user and group that HAProxy runs as; None: as we do."""
    if os.geteuid() != 0:
        return None
    try:
        return _USER, grp.getgrgid(pwd.getpwnam(_USER).pw_gid).gr_name
    except KeyError:
        return None


def edge_files(folder: Path, key: str) -> EdgeFiles:
    """The files of the Skerry with this data folder and key."""
    home = folder / "routes"
    sockets = _SOCKETS / key if os.geteuid() == 0 else home / "sockets"
    return EdgeFiles(home, sockets, sockets / "web.sock")
