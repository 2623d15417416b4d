"""The values that this node has: requested from the server when they are needed, and forgotten after.

`skerry.node.agent.session` sends the requests and brings the answers. A value is kept in memory only
(`memory_folder`), until no instance and no function uses it: a restart of a container, or of the agent, needs
no server, but after a reboot the server is asked again. What waits for a value says so. Logins for registries
are asked for at each pull, and not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from skerry.model import errors
from skerry.model.node_messages import MAX_SECRETS_REQUESTED, SecretDelivery, SecretValue
from skerry.model.secrets import SecretKind, SecretRef
from skerry.node.secrets.memory_folder import MemoryFolder

log = structlog.get_logger(__name__)

_VALUES: Final = "values"
_PATIENCE_S: Final = 1.0  # before something that waits says so: a report costs a transaction
_AT_ONCE_S: Final = 10.0  # for a value that something about to start needs


class NodeSecrets:
    """All values of this node. Calls from one event loop."""

    def __init__(self, folder: MemoryFolder, *, patience_s: float = _PATIENCE_S) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._users: list[Callable[[], Iterable[SecretRef]]] = []
        self._wanted: dict[SecretRef, asyncio.Future[SecretValue]] = {}
        self._unsent: dict[SecretRef, None] = {}
        self._has_unsent = asyncio.Event()

    def add_user(self, refs: Callable[[], Iterable[SecretRef]]) -> None:
        """Values that `refs` names are kept."""
        self._users.append(refs)

    # For what runs

    def prefetch(self, refs: Iterable[SecretRef]) -> None:
        """Request those that are not here: they are needed soon."""
        for ref in refs:
            if not self._has(ref):
                self._want(ref)

    async def ensure(self, refs: Sequence[SecretRef], waiting: Callable[[str], None]) -> None:
        """Have all of them here, however long the server is away; if that takes a while, `waiting` is called
        with what is missing.

        Raises FailedPrecondition with the reason of the server for those that it refuses.
        """
        missing = [ref for ref in refs if not self._has(ref)]
        if not missing:
            return
        fetching = asyncio.ensure_future(asyncio.gather(*(self._fetch(ref) for ref in missing)))
        try:
            await asyncio.wait([fetching], timeout=self._patience_s)
            if not fetching.done():
                waiting(f"waits for {', '.join(map(str, missing))} from the server")
            await fetching
        finally:
            fetching.cancel()

    async def values(self, refs: Sequence[SecretRef]) -> Mapping[SecretRef, bytes]:
        """All of them, now: raises Unavailable if the server does not answer in time, FailedPrecondition if
        it refuses."""
        found: dict[SecretRef, bytes] = {}
        for ref in refs:
            data = self._read(ref)
            if data is None:
                try:
                    async with asyncio.timeout(_AT_ONCE_S):
                        data = await self._fetch(ref)
                except TimeoutError:
                    raise errors.Unavailable(
                        f"{ref} is not on this node, and the server did not send it; it is delivered when "
                        "the node is connected"
                    ) from None
            found[ref] = data
        return found

    async def login(self, ref: SecretRef) -> bytes | None:
        """The login for a registry as the server has it now; None if there is none. Raises Unavailable."""
        try:
            async with asyncio.timeout(_AT_ONCE_S):
                return (await self._request(ref)).data or None
        except TimeoutError:
            raise errors.Unavailable(
                f"the server did not say whether there is a login for {ref.name}; it is asked again when "
                "the node is connected"
            ) from None

    async def _fetch(self, ref: SecretRef) -> bytes:
        value = await self._request(ref)
        if value.error:
            raise errors.FailedPrecondition(f"{ref} is not delivered: {value.error}")
        return value.data

    async def _request(self, ref: SecretRef) -> SecretValue:
        """The answer of the server. Several that ask for the same share one request."""
        return await asyncio.shield(self._want(ref))

    def _want(self, ref: SecretRef) -> asyncio.Future[SecretValue]:
        future = self._wanted.get(ref)
        if future is None:
            future = self._wanted[ref] = asyncio.get_running_loop().create_future()
            self._unsent[ref] = None
            self._has_unsent.set()
        return future

    def prune(self) -> None:
        """Forget values that nothing uses any more."""
        folder = self._folder.existing(_VALUES)
        if folder is None:
            return
        names = {_file_name(ref) for refs in self._users for ref in refs()}
        for path in folder.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)

    # For the session

    def begin_session(self) -> None:
        """A new session: what was not answered is requested again."""
        self._unsent = dict.fromkeys(self._wanted)
        if self._unsent:
            self._has_unsent.set()

    async def next_request(self) -> tuple[SecretRef, ...]:
        """Wait for values to request. For one session at a time."""
        while not self._unsent:
            self._has_unsent.clear()
            await self._has_unsent.wait()
        refs = tuple(self._unsent)[:MAX_SECRETS_REQUESTED]
        for ref in refs:
            del self._unsent[ref]
        return refs

    def deliver(self, delivery: SecretDelivery) -> None:
        """The server has answered."""
        for value in delivery.values:
            future = self._wanted.pop(value.ref, None)
            self._unsent.pop(value.ref, None)
            if future is None or future.done():
                continue  # nobody asked for it: it is not kept
            if value.error:
                log.warning("secret.not_delivered", secret=str(value.ref), reason=value.error)
            elif value.ref.kind is not SecretKind.REGISTRY:
                try:
                    self._write(value.ref, value.data)
                except (errors.Unavailable, OSError) as error:
                    reason = error.strerror if isinstance(error, OSError) else error.message
                    future.set_result(SecretValue(value.ref, error=f"this node cannot keep it: {reason}"))
                    continue
            future.set_result(value)

    # Files

    def _has(self, ref: SecretRef) -> bool:
        folder = self._folder.existing(_VALUES)
        return folder is not None and (folder / _file_name(ref)).exists()

    def _read(self, ref: SecretRef) -> bytes | None:
        folder = self._folder.existing(_VALUES)
        if folder is None:
            return None
        try:
            return (folder / _file_name(ref)).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, ref: SecretRef, data: bytes) -> None:
        folder = self._folder.child(_VALUES)
        draft = folder / f".{_file_name(ref)}"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(draft, folder / _file_name(ref))


def _file_name(ref: SecretRef) -> str:
    text = "\0".join((ref.namespace, ref.kind, ref.name, str(ref.version)))
    return hashlib.sha256(text.encode()).hexdigest()
