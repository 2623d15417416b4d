"""The account at the ACME server: its key is made once and sealed, and it is registered once.

The key is written before the server hears of it, and registering a key again gives the account that it has: a
leader that is killed in between leaves no second account. If the server has forgotten the account (a private
one that was made anew), it is registered again with the same key.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from skerry.control.secrets.vault import SecretVault
from skerry.control.tls.acme_api import AcmeApi, AcmeConnector, AcmeFailure
from skerry.control.tls.decisions import RATE_LIMIT_S
from skerry.control.tls.tables import AccountTable, account_id, account_key
from skerry.kit import pki
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.tls_certificates import AcmeAccount
from skerry.model.tls_settings import TlsSettings
from skerry.store.protocol import Expect
from skerry.store.tables.table import Record

log = structlog.get_logger(__name__)


class AcmeAccounts:
    """The account of the settings."""

    def __init__(
        self,
        table: AccountTable,
        vault: SecretVault,
        clock: Clock,
        settings: TlsSettings,
        connector: AcmeConnector,
    ) -> None:
        self._table = table
        self._vault = vault
        self._clock = clock
        self._settings = settings
        self._connector = connector
        self._id = account_id(settings.acme_directory)
        self._lock = asyncio.Lock()
        self._api: AcmeApi | None = None

    @property
    def held_until(self) -> float:
        """The ACME server takes no orders before."""
        record = self._table.get(self._id)
        return 0.0 if record is None else record.value.held_until

    async def api(self, fence: Expect) -> AcmeApi:
        """The connection of a registered account; raises `AcmeFailure`."""
        async with self._lock:
            if self._api is None:
                self._api = await self._connect(fence)
            return self._api

    def close(self) -> None:
        """Drop the connection, at the end of a term."""
        if self._api is not None:
            self._api.close()
            self._api = None

    async def failed(self, failure: AcmeFailure, fence: Expect) -> None:
        """Remember what a failure says of the account: a pause, or that there is none any more."""
        if not failure.is_rate_limit and not failure.is_unknown_account:
            return
        pause_s = failure.retry_after_s or RATE_LIMIT_S
        log.warning("acme.account_refused", reason=failure.message, is_rate_limit=failure.is_rate_limit)
        if failure.is_unknown_account:
            self.close()
        while (record := await self._table.read(self._id)) is not None:
            account = record.value
            if failure.is_rate_limit:
                account = replace(account, held_until=max(account.held_until, self._clock.now() + pause_s))
            if failure.is_unknown_account:
                account = replace(account, url="")
            try:
                await self._write(account, record, fence)
            except errors.Conflict:
                continue  # the failure of another order
            return

    async def _connect(self, fence: Expect) -> AcmeApi:
        record = await self._table.read(self._id) or await self._make(None, fence)
        try:
            key = await self._vault.value(account_key(record.value.directory))
        except errors.NotFound:  # it was discarded with a lost key of the vault
            record = await self._make(record, fence)
            key = await self._vault.value(account_key(record.value.directory))
        api = self._connector.connect(key, record.value.url)
        if not record.value.url:
            url = await api.register(self._settings.acme_email)
            await self._write(replace(record.value, url=url, email=self._settings.acme_email), record, fence)
            log.info("acme.registered", directory=record.value.directory, account=url)
        return api

    async def _make(self, record: Record[AcmeAccount] | None, fence: Expect) -> Record[AcmeAccount]:
        directory = self._settings.acme_directory
        account = AcmeAccount(directory, self._clock.now())
        key = await asyncio.to_thread(pki.new_key)
        write = await self._vault.seal(account_key(directory), key)
        revision = await self._table.commit(
            [self._table.put(self._id, account), write.put],
            [self._table.expect(self._id, record), write.expect],
            fence,
        )
        return Record(account, revision)

    async def _write(self, account: AcmeAccount, record: Record[AcmeAccount], fence: Expect) -> None:
        await self._table.commit(
            [self._table.put(self._id, account)], [self._table.expect(self._id, record)], fence
        )
