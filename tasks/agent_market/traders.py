"""What background agents do when they wake: the message of a trader, and the quotes of a maker."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.book import max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message
from vecenv.tasks.agent_market.background import CLASSES, MAX_LATENCY, SHORT_SAMPLES
from vecenv.tasks.agent_market.market import SLOTS_A_TICK, Layout, MarketStream, Rules
from vecenv.tasks.agent_market.tables import TABLE_BITS, table_normal

MAKER, VALUE, MOMENTUM, NOISE = range(len(CLASSES))
"""Places of the classes in a backlog."""


class View(NamedTuple):
    """What an agent sees: best prices, 0 if a side is empty, fundamental in 2^-16 price ticks. Shapes: (), int64."""

    bid: Tensor
    ask: Tensor
    fundamental: Tensor


class Wake(NamedTuple):
    """The message of a trader that wakes, and backlog, (4,), and noise traders served, (), after it."""

    message: Message
    backlog: Tensor
    noise_served: Tensor


def view_of(now: View, views: Tensor, latency: Tensor) -> View:
    """Return what an agent with a latency sees. Shapes: (8, 3) and ()."""
    # An index that all markets share would be read on the host.
    past = views.index_select(0, (latency - 1).clamp(0, MAX_LATENCY - 1).reshape(1))[0]
    return View(*torch.where(latency == 0, torch.stack(now), past).unbind())


def trader_message(
    backlog: Tensor,
    noise_served: Tensor,
    now: View,
    views: Tensor,
    samples: Tensor,
    key: EpisodeKey,
    tick: Tensor,
    slot: int,
    rules: Rules,
    layout: Layout,
) -> Wake:
    """Return the message of the trader that a slot serves, `Kind.NOTHING` if none waits.

    Shapes: backlog (4,), by class, ``views`` after the last ticks (8, 3), ``samples`` of momentum traders (50,), int64.
    """
    index = tick * SLOTS_A_TICK + slot
    chosen, who, size, side_bits = random_bits(key, MarketStream.TRADER, index)
    distance, observed, touch = random_bits(key, MarketStream.TRADER_PRICE, index)[:3]
    waiting = backlog[VALUE] + backlog[MOMENTUM] + backlog[NOISE]
    served = (chosen * waiting) >> 32
    anyone = waiting > 0
    value = anyone & (served < backlog[VALUE])
    momentum = anyone & ~value & (served < backlog[VALUE] + backlog[MOMENTUM])
    noise = anyone & ~value & ~momentum
    taken = torch.stack([torch.zeros_like(value), value, momentum, noise]).to(torch.int64)

    _, first_value, first_momentum, first_noise = layout.first
    owner = torch.where(value, first_value + ((who * layout.value) >> 32), first_noise + noise_served)
    owner = torch.where(momentum, first_momentum + ((who * layout.momentum) >> 32), owner)

    latencies = [rules.number(f"{name}_latency") for name in CLASSES]
    latency = torch.where(value, latencies[VALUE], torch.where(momentum, latencies[MOMENTUM], latencies[NOISE]))
    seen = view_of(now, views, latency)
    both = (seen.bid > 0) & (seen.ask > 0)
    most = rules.number("max_spread")
    spread = torch.minimum((seen.ask - seen.bid).clamp(min=0), most)

    buys_by_chance = side_bits % 2 == 0
    noisy = table_normal(rules.normal, observed, rules.number("observation_noise"))
    observation = (seen.fundamental + noisy + 2**15) >> 16
    away = (distance * (rules.number("depth_spread") * spread)) >> 32
    mispriced = (observation > seen.ask + most) | (observation < seen.bid - most)
    away = torch.where((touch < rules.number("aggressive_chance")) | mispriced, 0, away)
    buys_value = torch.where(both, observation >= (seen.bid + seen.ask) >> 1, buys_by_chance)
    at_value = torch.where(buys_value, seen.ask - away, seen.bid + away)
    at_value = torch.where(both, at_value, observation)

    rises = 5 * samples[-SHORT_SAMPLES:].sum() >= 2 * samples.sum()
    buys = torch.where(value, buys_value, torch.where(momentum, rises, buys_by_chance))
    touched = torch.where(buys, seen.ask, seen.bid)
    narrow = both & (seen.ask - seen.bid <= rules.number("take_spread"))
    acts = value | ((momentum | noise) & narrow)
    price = torch.where(value, at_value, touched).clamp(1, MAX_PRICE)
    kind = torch.where(value, Kind.REPLACE_ALL, Kind.LIMIT)
    words = (
        torch.where(acts, kind, Kind.NOTHING),
        torch.where(buys, BUY, SELL),
        price,
        rules.sizes[size >> (32 - TABLE_BITS)],
        owner,
        torch.full_like(price, -1),
    )
    message = Message(*(word.to(torch.int32) for word in words))
    return Wake(message, backlog - taken, noise_served + taken[NOISE])


class Quotes(NamedTuple):
    """What a maker quotes: prices of bids, falling, and asks, rising, (L,), and the shares of each.

    ``spread`` is the maker's average after it, in 2^-8 price ticks.
    """

    bids: Tensor
    asks: Tensor
    quantity: Tensor
    spread: Tensor


def maker_quotes(
    seen: View, doubled_mid: Tensor, spread: Tensor, volumes: Tensor, rules: Rules, layout: Layout
) -> Quotes:
    """Return a maker's quotes; its average ``spread`` so far is in 2^-8 price ticks, ``volumes`` in 2^-16 shares."""
    both = (seen.bid > 0) & (seen.ask > 0)
    most = rules.number("max_spread")
    mid = torch.where(both & (seen.ask - seen.bid <= most), seen.bid + seen.ask, doubled_mid) >> 1
    gap = torch.minimum((seen.ask - seen.bid).clamp(min=0), most)
    spread = torch.where(both, spread + (((gap * 256 - spread) * rules.number("spread_alpha")) >> 8), spread)
    traded = volumes.sum()
    one_sided = (volumes[BUY] - volumes[SELL]) * rules.number("price_skew")
    skew = torch.div(one_sided, traded.clamp(min=1), rounding_mode="trunc")
    centre = mid + torch.where(traded > 0, skew, 0)
    highest_bid = centre - (spread >> 9)
    lowest_ask = torch.maximum(centre + ((spread + 511) >> 9), highest_bid + 1)
    step = ((spread * rules.number("level_spacing") + 128) >> 8).clamp(min=1)
    recent = (traded * rules.number("volume_ticks")) >> 16
    quantity = (recent * rules.number("share_of_volume") + 2**15) >> 16
    quantity = torch.maximum(quantity, rules.number("min_quote")).clamp(1, max_quantity(layout.room))
    outwards = torch.arange(layout.levels, device=spread.device) * step
    return Quotes(highest_bid - outwards, lowest_ask + outwards, quantity.to(torch.int32), spread)
