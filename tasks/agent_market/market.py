"""State of one market, the report of a tick, and the numbers of its rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor
from torch.nn.functional import pad

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.accounts import empty_accounts
from vecenv.kernels.order_book.book import empty_book
from vecenv.tasks.agent_market.background import (
    ARRIVALS,
    CLASSES,
    MAX_LATENCY,
    NUM_CANDLES,
    NUM_SAMPLES,
    NUMBERS,
    BackgroundConfig,
)
from vecenv.tasks.agent_market.streams import MarketStream
from vecenv.tasks.agent_market.tables import growth_table, kept_log, normal_table, size_table, table_normal

DEPTH = 10
"""Levels of each side that a report shows."""


class Market(TensorClass):
    """One market; A owners, S seats, K orders a side. Units as in `rules.md`.

    Attributes:
        words: of the episode's key. Shape: (4,), int64.
        tick: ticks since the market opened. Shape: (), int64.
        key: of the book. Shape: (2, K), int32.
        quantity: of the book. Shape: (2, K), int32.
        owner: of the book. Shape: (2, K), int32.
        id: of the book. Shape: (2, K), int32.
        next_id: of the book. Shape: (), int32.
        cash: of all owners, in price ticks. Shape: (A,), int64.
        shares: of all owners. Shape: (A,), int64.
        fundamental: in 2^-16 price ticks. Shape: (), int64.
        log_volatility: of the fundamental, beside its mean, in 2^-20. Shape: (), int64.
        news: sign, magnitude, remaining ticks and drift a tick of active news, else zeros. Shape: (4,), int64.
        backlog: wakes that wait, by class. Shape: (4,), int64.
        noise_wakes: ticks at which noise traders wake, rising. Shape: (noise traders,), int32.
        noise_served: noise traders that have sent their message. Shape: (), int64.
        spreads: average spread of each maker, in 2^-8 price ticks. Shape: (makers,), int64.
        doubled_mid: last sum of best bid and ask. Shape: (), int64.
        samples: doubled mids that momentum traders average, newest last. Shape: (50,), int64.
        volumes: bought and sold a tick, averaged, in 2^-16 shares. Shape: (2,), int64.
        views: best bid, best ask and fundamental after the last ticks, newest first. Shape: (8, 3), int64.
        counts: `COUNTS`. Shape: (5,), int64.
        candles: close, high and low as doubled prices, volume and trades, newest last. Shape: (5, 65), int32.
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

    Attributes:
        bid: best price, 0 if that side is empty. Shape: (), int32.
        ask: likewise. Shape: (), int32.
        doubled_mid: last sum of best bid and ask. Shape: (), int32.
        high: highest of twice the trades' prices and the doubled mid. Shape: (), int32.
        low: lowest of them. Shape: (), int32.
        bought: shares bought by incoming orders. Shape: (), int32.
        sold: shares sold by incoming orders. Shape: (), int32.
        notional: sum of price times size of the trades, in price ticks. Shape: (), int64.
        trades: number of trades. Shape: (), int32.
        estimate: public estimate of the fundamental, in 2^-16 price ticks. Shape: (), int64.
        news: as in the market. Shape: (4,), int64.
        prices: of the best levels, bids first, 0 where there is none. Shape: (2, 10), int32.
        quantities: at them. Shape: (2, 10), int32.
        seat_cash: of each seat, in price ticks. Shape: (S,), int64.
        seat_shares: of each seat. Shape: (S,), int64.
        seat_traded: shares bought and sold by each seat. Shape: (S, 2), int32.
        own_quantity: of each seat's orders in the book, by side. Shape: (S, 2), int32.
        own_price: of the best of them, 0 without. Shape: (S, 2), int32.
        own_size: quantity of that order. Shape: (S, 2), int32.
        own_ahead: quantity before it at its price. Shape: (S, 2), int32.
        own_id: of that order, -1 without. Shape: (S, 2), int32.
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


@dataclass(frozen=True)
class Layout:
    """Numbers of a market that shapes depend on.

    Attributes:
        seats: of learners.
        makers: market makers.
        value: value traders.
        momentum: momentum traders.
        noise: noise traders.
        slots: messages of traders a tick.
        levels: quotes of a maker a side.
        room: orders of a side of the book.
        auction: prices of an auction, 0 in a market with an order book.
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
        """Return shape and type of each field of a market."""
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


class Rules(NamedTuple):
    """Numbers and tables of the rules.

    Attributes:
        numbers: `NUMBERS` in their order. Shape: (P,), int64.
        arrivals: thresholds of the makers, value and momentum traders. Shape: (3, C), int64.
        normal: table of normal numbers. Shape: (4096,), int32.
        sizes: table of order sizes. Shape: (4096,), int32.
        growth: table of exponentials. Shape: (1025,), int32.
    """

    numbers: Tensor
    arrivals: Tensor
    normal: Tensor
    sizes: Tensor
    growth: Tensor

    def number(self, name: str) -> Tensor:
        return self.numbers[NUMBERS.index(name)]


def tables_of(config: BackgroundConfig) -> dict[str, Tensor]:
    """Return the tables that all sub-environments share, by name."""
    return {"normal": normal_table(), "sizes": size_table(config.room), "growth": growth_table()}


def rules_of(params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Rules:
    """Return the rules of one sub-environment from its parameters and the shared tables."""
    numbers = torch.stack([params[name] for name in NUMBERS])
    arrivals = torch.stack([params[name] for name in ARRIVALS])
    return Rules(numbers, arrivals, shared["normal"], shared["sizes"], shared["growth"])


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
    samples = (2 * mean + zero).expand(NUM_SAMPLES).clone()
    view = torch.stack([zero, zero, (mean << 16) + zero])
    first, none = (2 * mean + zero).to(torch.int32), zero.to(torch.int32)
    backlog = torch.stack([zero + layout.makers, zero, zero, zero])
    return Market(
        words=words,
        tick=zero,
        key=book.key + zero.to(torch.int32),
        quantity=book.quantity + zero.to(torch.int32),
        owner=book.owner + zero.to(torch.int32),
        id=book.id + zero.to(torch.int32),
        next_id=book.next_id + zero.to(torch.int32),
        cash=accounts.cash + zero,
        shares=accounts.shares + zero,
        fundamental=(mean << 16) + zero,
        log_volatility=kept_log(table_normal(rules.normal, first_log, rules.number("log_volatility_spread"))),
        news=zero.expand(len(CLASSES)).clone(),
        backlog=backlog,
        noise_wakes=wakes,
        noise_served=zero,
        spreads=((rules.number("first_spread") << 8) + zero).expand(layout.makers).clone(),
        doubled_mid=2 * mean + zero,
        samples=samples,
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
