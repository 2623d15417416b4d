"""The market for `/metrics`: offers, holds and contracts, and what live contracts earn and cost.

The ledger may have very many offers, so they are counted at most every half a minute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from skerry.kit import metrics
from skerry.market.buyer.quotes import BorrowedContractState, BuyerPort
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.pricing import seconds_of
from skerry.model.market import Price

OFFERS = metrics.gauge_family("skerry_market_offers", "Offers of this cloud")
HOLDS = metrics.gauge_family("skerry_market_holds", "Holds on them that can be bought")
CONTRACTS = metrics.gauge_family(
    "skerry_market_contracts", "Live contracts: side is sold or bought", ["side"]
)
EARNINGS = metrics.gauge_family(
    "skerry_market_price_per_hour",
    "What live contracts cost in an hour together: earned on the side sold, paid on the side bought",
    ["side", "currency"],
)
VALUE = metrics.gauge_family(
    "skerry_market_contract_value",
    "What live contracts cost from start to end together: side is sold or bought",
    ["side", "currency"],
)
EVERY_S: Final = 30.0


class MarketMetrics(metrics.SampledCollector):
    """Of one cloud, as seller and buyer."""

    def __init__(self, ledger: Ledger, buyer: BuyerPort) -> None:
        super().__init__(EVERY_S)
        self._ledger = ledger
        self._buyer = buyer

    def sample(self) -> Iterator[Metric]:
        now = self._ledger.now()
        offers, holds, contracts = OFFERS(), HOLDS(), CONTRACTS()
        offers.add_metric([], len(self._ledger.flavors()))
        holds.add_metric([], sum(hold.is_live(now) for hold in self._ledger.holds()))
        counts: Counter[str] = Counter()
        hourly: defaultdict[tuple[str, str], float] = defaultdict(float)
        values: defaultdict[tuple[str, str], float] = defaultdict(float)
        for side, price, total in self._live(now):
            counts[side] += 1
            hourly[side, price.currency] += per_hour(price)
            values[side, price.currency] += total
        for side in ("sold", "bought"):
            contracts.add_metric([side], counts[side])
        yield from (offers, holds, contracts)
        yield metrics.add_series(EARNINGS(), hourly.items())
        yield metrics.add_series(VALUE(), values.items())

    def _live(self, now: float) -> Iterator[tuple[str, Price, float]]:
        for contract in self._ledger.live_contracts():
            if contract.is_live(now):
                yield "sold", contract.price, float(contract.total)
        for borrowed in self._buyer.borrowed():
            if borrowed.state is not BorrowedContractState.ENDED:
                yield "bought", borrowed.price, float(borrowed.total)


def per_hour(price: Price) -> float:
    """What it costs in an hour."""
    return float(price.amount) * 3600 / seconds_of(price.period)
