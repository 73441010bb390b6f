"""State of one market, how it opens, what is told of a tick, and its random streams."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor
from torch.nn.functional import pad

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.accounts import empty_accounts
from vecenv.kernels.order_book.book import empty_book
from vecenv.tasks.agent_market.config import CLASSES, MAX_LATENCY, NUM_CANDLES, NUM_SAMPLES, BackgroundConfig
from vecenv.tasks.agent_market.rules import Rules, kept_log, table_normal

DEPTH = 10
"""Levels of each side that a report shows."""


class MarketStream(IntEnum):
    """Random streams of an episode's key, one for each purpose, so that no two share a number; see the rules."""

    NOISE_WAKES = 16
    ARRIVALS = 17
    FUNDAMENTAL = 18
    NEWS = 19
    MAKER = 20
    TRADER = 21
    TRADER_PRICE = 22
    PARENT = 23
    VOLATILITY = 24
    FIRST_VOLATILITY = 25
    AUCTION = 2**12


SLOTS_A_TICK = 256
"""Indices of slots that each tick has, however many slots there are."""

AGENTS_A_STREAM = 512
"""Agents of an auction that share a stream: index tick × 512 + number; the next ones have the next stream."""


class Market(TensorClass):
    """One market. Units as in `rules.md`; shapes and types are those of `Layout.market_shapes`.

    ``words`` are of the episode's key, ``tick`` counts since the market opened. ``key`` to ``next_id`` are the book's,
    ``cash``, in price ticks, and ``shares`` of all owners. ``fundamental`` is in 2^-16 price ticks, ``log_volatility``
    beside its mean and in 2^-20, ``news`` sign, magnitude, remaining ticks and drift a tick, else zeros. ``backlog``
    counts wakes that wait, by class; ``noise_wakes`` are the ticks at which noise traders wake, rising, and
    ``noise_served`` those that have sent their message. ``spreads`` are the makers' averages, in 2^-8 price ticks,
    ``volumes`` bought and sold a tick, averaged, in 2^-16 shares. ``doubled_mid`` is the last sum of best bid and ask,
    ``samples`` those that momentum traders average, newest last; ``views`` are best bid, best ask and fundamental after
    the last ticks, newest first. ``candles`` are close, high and low as doubled prices, volume and trades, newest last.
    """

    words: Tensor
    tick: Tensor
    key: Tensor
    quantity: Tensor
    owner: Tensor
    id: Tensor
    next_id: Tensor
    cash: Tensor
    shares: Tensor
    fundamental: Tensor
    log_volatility: Tensor
    news: Tensor
    backlog: Tensor
    noise_wakes: Tensor
    noise_served: Tensor
    spreads: Tensor
    doubled_mid: Tensor
    samples: Tensor
    volumes: Tensor
    views: Tensor
    counts: Tensor
    candles: Tensor


COUNTS = ("messages", "rejected", "evicted", "unplaced", "carried")
"""What a market counts; see the rules."""


class Report(NamedTuple):
    """What is seen of a market after some ticks, and what has been traded in them.

    Numbers have shape () and are int32, but ``notional`` (the sum of price times size, in price ticks) and ``estimate``
    (the public one of the fundamental, in 2^-16 price ticks) int64. ``bid`` and ``ask`` are 0 if that side is empty;
    ``doubled_mid`` is their last sum, ``high`` and ``low`` are taken over twice the trades' prices and it. ``bought``
    and ``sold`` are by incoming orders, ``news`` is the market's. ``prices`` and ``quantities`` are those of the best
    levels, (2, 10), bids first, 0 where there is none. Of each seat: cash in price ticks and shares, (S,), int64, and
    by side, (S, 2): shares traded, quantity of its orders in the book, and of the best of them price (0 without), size,
    quantity ahead of it at its price, and id (-1 without).
    """

    bid: Tensor
    ask: Tensor
    doubled_mid: Tensor
    high: Tensor
    low: Tensor
    bought: Tensor
    sold: Tensor
    notional: Tensor
    trades: Tensor
    estimate: Tensor
    news: Tensor
    prices: Tensor
    quantities: Tensor
    seat_cash: Tensor
    seat_shares: Tensor
    seat_traded: Tensor
    own_quantity: Tensor
    own_price: Tensor
    own_size: Tensor
    own_ahead: Tensor
    own_id: Tensor


OWN_ORDERS = ("own_quantity", "own_price", "own_size", "own_ahead", "own_id")
"""Parts of a report that are of the seats' orders in the book."""


class Clearing(NamedTuple):
    """What carrying out the orders of a tick has done. Shape of each: (), int64 for the first three, else int32.

    Best prices are 0 where there is none, and ``high`` without a trade; ``bought`` and ``sold`` are shares by incoming
    orders. ``market`` are the market's fields after it, and ``seen`` the parts of the report that it alone knows.
    """

    bid: Tensor
    ask: Tensor
    doubled_mid: Tensor
    high: Tensor
    low: Tensor
    bought: Tensor
    sold: Tensor
    trades: Tensor
    market: dict[str, Tensor]
    seen: dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """Numbers of a market that shapes depend on.

    ``slots`` are messages of traders a tick, ``levels`` quotes of a maker a side, ``room`` orders of a side of the
    book, ``auction`` prices of an auction, 0 in a market with an order book.
    """

    seats: int
    makers: int
    value: int
    momentum: int
    noise: int
    slots: int
    levels: int
    room: int
    auction: int = 0

    @property
    def first(self) -> tuple[int, int, int, int]:
        """First owner of each class of background agents."""
        makers = self.seats
        value = makers + self.makers
        momentum = value + self.value
        return makers, value, momentum, momentum + self.momentum

    @property
    def owners(self) -> int:
        return self.first[-1] + self.noise

    def market_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        whole: tuple[tuple[int, ...], torch.dtype] = ((), torch.int64)
        forms = dict.fromkeys(Market.__annotations__, whole)
        forms |= dict.fromkeys(("key", "quantity", "owner", "id"), ((2, self.room), torch.int32))
        forms |= dict.fromkeys(("cash", "shares"), ((self.owners,), torch.int64))
        forms |= {"next_id": ((), torch.int32), "noise_wakes": ((self.noise,), torch.int32)}
        forms |= {"words": ((4,), torch.int64), "news": ((4,), torch.int64), "backlog": ((4,), torch.int64)}
        forms |= {"spreads": ((self.makers,), torch.int64), "samples": ((NUM_SAMPLES,), torch.int64)}
        forms |= {"volumes": ((2,), torch.int64), "views": ((MAX_LATENCY, 3), torch.int64)}
        return forms | {"counts": ((len(COUNTS),), torch.int64), "candles": ((5, NUM_CANDLES), torch.int32)}


def layout_of(config: BackgroundConfig, seats: int) -> Layout:
    """Return the layout of a market with seats for learners."""
    agents = (config.num_makers, config.num_value, config.num_momentum, config.num_noise)
    if config.clearing == "auction":
        # Nothing waits in the book.
        return Layout(seats, *agents, 0, 0, 1, config.auction_levels)
    return Layout(seats, *agents, config.slots, config.levels, config.room)


def opened(key: EpisodeKey, rules: Rules, layout: Layout) -> Market:
    """Return the market of an episode before its first tick."""
    words = torch.stack([key.seed_low, key.seed_high, key.env_id, key.episode])
    book, accounts = empty_book(layout.room, words.device), empty_accounts(layout.owners, words.device)
    zero = words[0] * 0
    mean = rules.number("mean_price")
    trader = torch.arange(layout.noise, device=words.device)
    bits = random_bits(key, MarketStream.NOISE_WAKES, trader)[0]
    wakes = ((bits * rules.number("session_ticks")) >> 32).to(torch.int32).sort().values
    first_log = random_bits(key, MarketStream.FIRST_VOLATILITY)[0]
    view = torch.stack([zero, zero, (mean << 16) + zero])
    first, none = (2 * mean + zero).to(torch.int32), zero.to(torch.int32)
    return Market(
        words=words,
        tick=zero,
        **{name: part + none for name, part in book._asdict().items()},
        **{name: part + zero for name, part in accounts._asdict().items()},
        fundamental=(mean << 16) + zero,
        log_volatility=kept_log(table_normal(rules.normal, first_log, rules.number("log_volatility_spread"))),
        news=zero.expand(len(CLASSES)).clone(),
        backlog=torch.stack([zero + layout.makers, zero, zero, zero]),
        noise_wakes=wakes,
        # Its own memory, as ticks change markets in place.
        noise_served=zero.clone(),
        spreads=((rules.number("first_spread") << 8) + zero).expand(layout.makers).clone(),
        doubled_mid=2 * mean + zero,
        samples=(2 * mean + zero).expand(NUM_SAMPLES).clone(),
        volumes=zero.expand(2).clone(),
        views=view.expand(MAX_LATENCY, 3).clone(),
        counts=zero.expand(len(COUNTS)).clone(),
        candles=torch.stack([first, first, first, none, none]).unsqueeze(-1).expand(5, NUM_CANDLES).clone(),
        batch_size=[],
    )


def part_size(count: int, seats: int) -> int:
    """Return how many of the numbers of a tensor each seat's row holds; the last row's may have no meaning.

    Rows of an environment have equal shapes. So each row of a market with S seats holds an S-th part of every tensor,
    and a market takes no more memory than with one seat.
    """
    return -(-count // seats)


def split(market: Market, seats: int) -> Market:
    """Return a market by parts. Batch: () -> (S,)."""
    parts = {}
    for name in Market.__annotations__:
        flat: Tensor = market.get(name).flatten()
        size = part_size(len(flat), seats)
        parts[name] = pad(flat, (0, seats * size - len(flat))).view(seats, size)
    return Market(**parts, batch_size=[seats])


def field_of(market: Market, name: str, layout: Layout) -> Tensor:
    """Return a tensor of a market, which may be split. Shape: as of an undivided one."""
    value: Tensor = market.get(name)
    if not market.batch_size:
        return value
    shape, _ = layout.market_shapes()[name]
    return value.flatten()[: math.prod(shape)].view(shape)


def joined(parts: Market, layout: Layout) -> Market:
    """Return a market from its parts. Batch: (S,) -> ()."""
    return Market(**{name: field_of(parts, name, layout) for name in Market.__annotations__}, batch_size=[])
