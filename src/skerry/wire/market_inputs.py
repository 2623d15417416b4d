"""Inputs that market requests of all dialects share: amounts in whole cores, MB and GB, ids, withdrawals."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.model import ids
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources

CORE: Final = 1000  # millicores
MAX_TEXT: Final = 256

Cores = Annotated[int, Meta(ge=0, le=MAX_AMOUNT // CORE, description="Cores")]
MB = Annotated[int, Meta(ge=0, le=MAX_AMOUNT, description="MB")]
GB = Annotated[int, Meta(ge=0, le=MAX_AMOUNT, description="GB")]
Count = Annotated[int, Meta(ge=1, le=MAX_AMOUNT)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class MarketIdPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=ids.MAX_ID)]


class WithdrawOfferQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to withdraw an offer."""

    reason: Annotated[str, Meta(max_length=256, description="Sent to subscribers and buyers")] = ""
    reclaim: Annotated[bool, Meta(description="Reclaim its contracts, each after its notice")] = False


def parse_resources(cores: int, megabytes: int, gigabytes: int = 0) -> Resources:
    return Resources(Millicores(cores * CORE), Megabytes(megabytes), Gigabytes(gigabytes))
