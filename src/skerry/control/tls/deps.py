"""What the parts for certificates share."""

from __future__ import annotations

from typing import NamedTuple

from skerry.control.events.log import EventLog
from skerry.control.secrets.vault import SecretVault
from skerry.control.tls.tables import TlsTable
from skerry.kit.clock import Clock
from skerry.model.tls_certificates import InternalDomains
from skerry.model.tls_settings import TlsSettings


class TlsDeps(NamedTuple):
    """The records, where their keys are sealed, and what is written with them."""

    table: TlsTable
    vault: SecretVault
    events: EventLog
    clock: Clock
    settings: TlsSettings
    internal: InternalDomains
