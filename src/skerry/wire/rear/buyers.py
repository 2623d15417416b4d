"""Who is buying: from whoever sent the request to the name under which the ledger knows it.

A buyer shows a key (a proof for each request) or is a caller like any other: a token, a certificate, or the
user of this machine. Each kind has names of its own, so none can be taken for another. The user who runs this
cloud may also act for buyers by any other name, as the document's clients send them; what a key, a token or a
certificate holds is theirs alone. Decisions on values; proofs are checked in `skerry.market.proofs`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.market import keys
from skerry.model import errors
from skerry.model.identity import Caller, Origin, Role
from skerry.model.ids import CloudId
from skerry.model.market import check_cloud

_TOKEN: Final = "token."  # noqa: S105 - a prefix of names, not a secret
_CERTIFICATE: Final = "certificate."
_USER: Final = "user."
_PROVEN: Final = (keys.PREFIX, _TOKEN, _CERTIFICATE)
_READERS: Final = frozenset({Role.ADMIN, Role.VIEWER})


class Buyer(msgspec.Struct, frozen=True):
    """Whoever asks. An operator may act for any name that nobody has to prove; `sees_all` may read all."""

    cloud: CloudId
    is_operator: bool = False
    sees_all: bool = False

    def speaks_for(self, other: CloudId) -> bool:
        return other == self.cloud or (self.is_operator and not other.startswith(_PROVEN))

    def named(self, name: str) -> CloudId:
        """The buyer that a body names, or this one if it names none; `Forbidden` if it is somebody else."""
        if not name:
            return self.cloud
        other = check_cloud(name, "Buyer.NodeID")
        if not self.speaks_for(other):
            raise errors.Forbidden(
                f"you are {self.cloud}, and cannot act for {other}; leave Buyer out, or show its key"
            )
        return other

    def of(self, holder: CloudId, what: str) -> CloudId:
        """`holder`, if it is this one; `Forbidden` if what is meant is somebody else's."""
        if not self.speaks_for(holder):
            raise errors.Forbidden(
                f"this {what} is not yours: only its buyer may do that, and you are {self.cloud}"
            )
        return holder

    def check_reads(self, holder: CloudId, what: str) -> None:
        if not self.sees_all:
            self.of(holder, what)


def of_key(cloud: CloudId) -> Buyer:
    """A buyer whose proof was good."""
    return Buyer(cloud)


def of_caller(caller: Caller) -> Buyer:
    """A caller like any other."""
    sees_all = caller.role in _READERS
    match caller.origin:
        case Origin.LOOPBACK:
            return Buyer(_named(_USER, caller), is_operator=caller.role is Role.ADMIN, sees_all=sees_all)
        case Origin.TOKEN:
            return Buyer(_named(_TOKEN, caller), sees_all=sees_all)
        case Origin.CERTIFICATE:
            return Buyer(_named(_CERTIFICATE, caller), sees_all=sees_all)
        case _:
            raise errors.Unauthenticated(
                "a buyer must be known: show a token or a certificate, or sign with a key"
            )


def _named(prefix: str, caller: Caller) -> CloudId:
    """`uid:0`, `token:ID` and `certificate:NAME` without their first word, which the prefix stands for."""
    return check_cloud(prefix + caller.name.partition(":")[2], "caller")
