"""The context of REAR's endpoints, which they get when the application is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.request_proofs import ProofVerifier
from skerry.model.ids import CloudId, ContractId
from skerry.transport.limits import ConcurrencyLimit
from skerry.wire.rear.change_messages import EncodedChangeCache
from skerry.wire.rear.documents import CredentialsDocument, IdentityDocument
from skerry.wire.rear.offer_document_cache import OfferDocumentCache
from skerry.wire.rear.tunnel_server import ContractTunnelServer

# Concurrent subscribers: each holds a connection. Fewer than the connections of a server, and fewer for one
# buyer than for all.
MAX_SUBSCRIBERS: Final = 2048
MAX_OF_ONE_BUYER: Final = 1024
HEARTBEAT_S: Final = 15.0


class RearContext(msgspec.Struct, frozen=True):
    """The first argument of every endpoint of this dialect."""

    ledger: Ledger
    proofs: ProofVerifier
    provider: CloudId
    owner: IdentityDocument  # of all flavors: this cloud
    new_id: Callable[[], str]
    offers: OfferDocumentCache
    changes: EncodedChangeCache
    tunnels: ContractTunnelServer | None = None  # None: this server does not lend
    subscribers: ConcurrencyLimit = msgspec.field(
        default_factory=lambda: ConcurrencyLimit(
            MAX_SUBSCRIBERS, "subscribers to offers", each=MAX_OF_ONE_BUYER
        )
    )
    heartbeat_s: float = HEARTBEAT_S

    def credentials_of(self, id: ContractId) -> CredentialsDocument | None:
        """The credentials of a contract's buyer; None if this server has no tunnels."""
        return None if self.tunnels is None else self.tunnels.credentials_of(id)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        proofs: ProofVerifier,
        *,
        provider: CloudId,
        new_id: Callable[[], str],
        domain: str = "",
        address: str = "",
        tunnels: ContractTunnelServer | None = None,
    ) -> RearContext:
        """`domain` and `address` are those that this cloud publishes."""
        owner = IdentityDocument(domain, provider, address)
        return cls(
            ledger,
            proofs,
            provider,
            owner,
            new_id,
            OfferDocumentCache(ledger),
            EncodedChangeCache(owner),
            tunnels,
        )
