"""The identity of a buyer: from the sender of a request to the name under which the ledger knows it.

A buyer proves a key (a signature on each request) or is a caller like any other: by a token, a certificate,
or as the user of this machine. On the listener for buyers without credentials it is the address of the
connection. Each kind has names with a prefix of its own, so that none can be taken for another. The user who
runs this cloud may also act for buyers by any other name, as clients of the document send them; holds and
contracts of a key, a token, a certificate or an address are theirs alone. Decisions on values;
`skerry.market.terms.request_proofs` checks proofs.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.market import plain
from skerry.market.terms import keys
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import CloudId
from skerry.model.market import Contact, check_cloud

_TOKEN: Final = "token."  # noqa: S105 - a prefix of names, not a secret
_CERTIFICATE: Final = "certificate."
_USER: Final = "user."
_PROVEN: Final = (keys.PREFIX, _TOKEN, _CERTIFICATE, plain.PREFIX)
_READERS: Final = frozenset({Role.ADMIN, Role.VIEWER})


class BuyerIdentity(msgspec.Struct, frozen=True):
    """The buyer that sent a request. An operator may act for any name without a proof; with `sees_all` it may
    read all."""

    cloud: CloudId
    is_operator: bool = False
    sees_all: bool = False

    @property
    def is_key(self) -> bool:
        """Whether it is a key, and not an account of this cloud."""
        return keys.is_key_id(self.cloud)

    @property
    def is_address(self) -> bool:
        """Whether it has no credentials, and is identified by its address."""
        return plain.is_plain(self.cloud)

    def contact(self, given: Contact, name: str) -> Contact:
        """Its contact, with the name that it gave itself if that differs from its identity."""
        return replace(given, node=name) if self.is_address and name else given

    def acts_for(self, other: CloudId) -> bool:
        return other == self.cloud or (self.is_operator and not other.startswith(_PROVEN))

    def named(self, name: str) -> CloudId:
        """The buyer that a body names, or this one if it names none; `Forbidden` if it is another. The name
        that an address gives itself is ignored."""
        if not name or self.is_address:
            return self.cloud
        other = check_cloud(name, "Buyer.NodeID")
        if not self.acts_for(other):
            raise errors.Forbidden(
                f"you are {self.cloud}, and cannot act for {other}; leave Buyer out, or show its key"
            )
        return other

    def of(self, holder: CloudId, what: str) -> CloudId:
        """`holder`, if this buyer may act for it; `Forbidden` otherwise."""
        if not self.acts_for(holder):
            raise errors.Forbidden(
                f"this {what} is not yours: only its buyer may do that, and you are {self.cloud}"
            )
        return holder

    def check_reads(self, holder: CloudId, what: str) -> None:
        if not self.sees_all:
            self.of(holder, what)


def identity_of_key(cloud: CloudId) -> BuyerIdentity:
    """A buyer whose proof is valid."""
    return BuyerIdentity(cloud)


def identity_of_caller(caller: Caller) -> BuyerIdentity:
    """A buyer that is a caller of this cloud."""
    sees_all = caller.role in _READERS
    match caller.origin:
        case AuthMethod.LOOPBACK:
            return BuyerIdentity(
                _named(_USER, caller), is_operator=caller.role is Role.ADMIN, sees_all=sees_all
            )
        case AuthMethod.TOKEN:
            return BuyerIdentity(_named(_TOKEN, caller), sees_all=sees_all)
        case AuthMethod.CERTIFICATE:
            return BuyerIdentity(_named(_CERTIFICATE, caller), sees_all=sees_all)
        case AuthMethod.ADDRESS:
            return BuyerIdentity(plain.buyer_at(caller.name.partition(":")[2]))
        case _:
            raise errors.Unauthenticated(
                "a buyer must be known: show a token or a certificate, or sign with a key"
            )


def _named(prefix: str, caller: Caller) -> CloudId:
    """The name of a caller (`uid:0`, `token:ID`, `certificate:NAME`) with `prefix` in place of its first
    part."""
    return check_cloud(prefix + caller.name.partition(":")[2], "caller")
