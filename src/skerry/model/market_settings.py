"""The settings of the market: the part `market` of the tree in `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MarketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Capacity for sale, and borrowed: terms, limits of buyers and peers, what share of nodes is offered."""

    hold_s: Annotated[float, Meta(gt=0, description="A hold that is not bought ends after this")] = 60.0
    max_wait_s: Annotated[
        float, Meta(ge=0, description="A buyer may wait at most this long for capacity that others hold")
    ] = 30.0
    max_waiting: Annotated[int, Meta(ge=0, description="Buyers that may wait for one flavor")] = 256
    contract_s: Annotated[float, Meta(gt=0, description="Length of a contract that names none")] = 3600.0
    max_contract_s: Annotated[float, Meta(gt=0, description="Longest contract, from its start")] = (
        365 * 86400.0
    )
    notice_s: Annotated[
        float,
        Meta(
            ge=0, description="Notice of contracts: they are reclaimed no sooner than this after it was given"
        ),
    ] = 120.0
    max_holds: Annotated[int, Meta(ge=1, description="Holds of one buyer at once")] = 64
    hold_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Share of a flavor that one buyer may hold unpaid, if it is sold in parts",
        ),
    ] = 100
    max_lapsed: Annotated[
        int, Meta(ge=1, description="Holds that a buyer may let expire in an hour before it gets no more")
    ] = 256
    max_flavors: Annotated[int, Meta(ge=1, description="Flavors that may be offered")] = 200_000
    keep_ended: Annotated[
        int, Meta(ge=0, description="Ended holds, and ended contracts, that are stored")
    ] = 10_000
    history: Annotated[
        int, Meta(ge=1, description="Changes of flavors stored for subscribers that resume")
    ] = 10_000
    sell_percent: Annotated[
        int, Meta(ge=0, le=100, description="Share of each node's resources that is for sale; 0: none")
    ] = 0
    sell_nodes: Annotated[
        tuple[str, ...], Meta(description="Only nodes with all of these labels, as KEY=VALUE")
    ] = ()
    sell_price: Annotated[
        str, Meta(description="Price of one core, and the memory and disk that come with it, for a period")
    ] = "0.01"
    sell_currency: Annotated[str, Meta(description="ISO 4217 code of that price")] = "EUR"
    sell_period: Annotated[str, Meta(description="Its period, an ISO 8601 duration")] = "PT1H"
    sell_cpu_min: Annotated[int, Meta(ge=0, description="Least part of a node's offer, cores")] = 1
    sell_cpu_step: Annotated[int, Meta(ge=0, description="Parts grow in steps of this, cores; 0: any")] = 1
    sell_memory_min: Annotated[int, Meta(ge=0, description="Least part of a node's offer, MB")] = 256
    sell_memory_step: Annotated[int, Meta(ge=0, description="Parts grow in steps of this, MB; 0: any")] = 256
    sell_max_count: Annotated[
        int, Meta(ge=1, description="Equal parts of a node's offer that may be taken together")
    ] = 1
    location: Annotated[str, Meta(description="Where this cloud is, as buyers read it")] = ""
    buyers: Annotated[
        tuple[str, ...],
        Meta(
            description="Clouds (`key...`) that may buy, besides those of `skerry market buyers`; if it is "
            "not empty, accounts of this cloud (`token...`) must be named too"
        ),
    ] = ()
    unknown_buyers: Annotated[
        str,
        Meta(
            pattern="^(refuse|list|buy)$",
            description="What keys that are not on the allowlist may do: nothing, see offers, or also buy "
            "within the limits below",
        ),
    ] = "refuse"
    unknown_percent: Annotated[
        int,
        Meta(
            ge=0, le=100, description="Share of each flavor that all unknown buyers together may hold or buy"
        ),
    ] = 25
    unknown_cpu: Annotated[
        int, Meta(ge=0, description="Most that one unknown buyer may hold and have bought, cores")
    ] = 2
    unknown_memory: Annotated[int, Meta(ge=0, description="The same of memory, MB")] = 4096
    unknown_disk: Annotated[int, Meta(ge=0, description="The same of disk, GB")] = 20
    unknown_contract_s: Annotated[
        float, Meta(ge=1, description="Longest contract of an unknown buyer, from its start")
    ] = 3600.0
    unknown_holds: Annotated[
        int,
        Meta(ge=0, description="Holds that one unknown buyer may make in an hour, however they ended"),
    ] = 8
    unknown_total_holds: Annotated[
        int, Meta(ge=0, description="Holds that all unknown buyers together may make in an hour")
    ] = 64
    plain_listen: Annotated[
        str,
        Meta(
            description="HOST:PORT of a listener without TLS and credentials, for buyers that have neither, "
            "such as FLUIDOS's: it serves listing, reserving and purchasing; empty: no listener"
        ),
    ] = ""
    plain_addresses: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses and networks (192.0.2.7, 2001:db8::/64) that may call there, and no others"
        ),
    ] = ()
    plain_percent: Annotated[
        int, Meta(ge=0, le=100, description="Share of each flavor that all of them together may hold or buy")
    ] = 25
    plain_cpu: Annotated[
        int, Meta(ge=0, description="Most that one address there may hold and have bought, cores")
    ] = 2
    plain_memory: Annotated[int, Meta(ge=0, description="The same of memory, MB")] = 4096
    plain_disk: Annotated[int, Meta(ge=0, description="The same of disk, GB")] = 20
    plain_contract_s: Annotated[float, Meta(ge=1, description="Longest contract that is bought there")] = (
        3600.0
    )
    plain_holds: Annotated[
        int, Meta(ge=0, description="Holds that one address there may make in an hour, however they ended")
    ] = 8
    plain_total_holds: Annotated[
        int, Meta(ge=0, description="Holds that all of them together may make in an hour")
    ] = 64
    sign_s: Annotated[
        float,
        Meta(gt=0, description="A contract that its buyer, known by a key, has not signed by then is ended"),
    ] = 120.0
    open_s: Annotated[
        float,
        Meta(gt=0, description="A contract whose tunnel its buyer has not opened within this time is ended"),
    ] = 300.0
    buyer_silence_s: Annotated[
        float, Meta(gt=0, description="A contract whose buyer has been disconnected for this long is ended")
    ] = 3600.0
    max_guests: Annotated[int, Meta(ge=1, description="Instances of a buyer in one contract's cell")] = 256
    guest_registries: Annotated[
        tuple[str, ...],
        Meta(
            description="Registries with private addresses that images of buyers may come from, as "
            "HOST[:PORT]; `*` matches anything. Those with public addresses need not be named"
        ),
    ] = ()
    guest_mesh: Annotated[
        bool,
        Meta(
            description="Containers of buyers on this node may be part of the network of their own cloud, by "
            "WireGuard; they reach nothing else that they could not reach before"
        ),
    ] = False
    list_timeout_s: Annotated[float, Meta(gt=0, description="A peer's offers come within this")] = 3.0
    deal_timeout_s: Annotated[
        float, Meta(gt=0, description="Reserving, buying and opening at one peer take at most this")
    ] = 20.0
    drain_s: Annotated[
        float, Meta(ge=0, description="A borrowed node is drained this long before its contract ends")
    ] = 60.0
    peer_silence_s: Annotated[
        float, Meta(gt=0, description="A contract whose provider is unreachable for this long is given up")
    ] = 120.0
