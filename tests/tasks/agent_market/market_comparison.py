"""Random markets beside the lists: every field of the state and of the report, at every tick."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tests.tasks.agent_market.market_oracle import MarketOracle, Words
from vecenv.core.random import EpisodeKey
from vecenv.core.rows import leaves, with_leaves
from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message
from vecenv.tasks.agent_market.config import MAX_FUNDAMENTAL, BackgroundConfig
from vecenv.tasks.agent_market.law import ticked
from vecenv.tasks.agent_market.market import Layout, Market, Report, layout_of, opened
from vecenv.tasks.agent_market.native import advanced_market
from vecenv.tasks.agent_market.rules import NUMBERS, Rules, background_parameters, rules_of, tables_of

CHOICES: dict[str, tuple[Any, ...]] = {
    **{"tick_seconds": (0.1, 1.0, 3.0), "mean_price": (3, 400, 100_000, MAX_FUNDAMENTAL - 50)},
    **{"reversion": (0.0, 0.05, 1.0), "volatility": (0.0, 1.58, 40.0, 2.0**14)},
    **{"volatility_spread": (0.0, 0.7, 4.0), "volatility_seconds": (0.5, 60.0, 1e9)},
    **{"shock_rate": (0.0, 0.2), "shock_mean": (0.0, 30.0, 1_000.0, float(MAX_FUNDAMENTAL))},
    **{"shock_spread": (0.0, 223.6, 2.0**14), "news_rate": (0.0, 0.3, 2.0)},
    **{"news_magnitude": (1, 60, 10**6), "news_seconds": (1.0, 7.0, 40.0)},
    **{"level_spacing": (0, 1, 5, 2**10), "first_spread": (1, 50, 3_000, 2**20), "spread_alpha": (0.0, 0.2, 1.0)},
    **{"share_of_volume": (0.0, 0.025, 1.0), "min_quote": (1, 30, 4_000), "price_skew": (0, 4, 200, 2**16)},
    **{"volume_seconds": (1.0, 7.0, 600.0), "observation_noise": (0.0, 3.0, 2.0**14)},
    **{"aggressive_share": (0.0, 0.5, 1.0), "depth_spread": (0, 1, 64), "momentum_every": (1, 2, 3, 5)},
    **{f"{name}_latency": (0, 0, *range(9)) for name in ("maker", "value", "momentum", "noise")},
    **{"fair_noise": (0, 2**14), "candle_ticks": (1, 2, 5), "max_spread": (1, 30, 5_000, 2**24)},
    **{"take_spread": (1, 30, 2**24), "auction_spread": (0, 3, 2**16)},
}
"""Values that a market takes half the time, else the default."""

KINDS = {kind: 1.0 for kind in Kind} | {Kind.LIMIT: 6.0, Kind.POST_ONLY: 2.0, Kind.MODIFY: 2.0, 99: 0.1}
"""How often a seat sends each kind."""


class Markets(NamedTuple):
    """Markets of one layout, not yet opened for trade, with a row for each in the rules, and their oracles."""

    layout: Layout
    state: Market
    rules: Rules
    oracles: list[MarketOracle]


ROWS = Rules(0, 0, None, None, None)  # type: ignore[arg-type]
"""Mapped dimensions of the rules."""


def random_config(random: Random, layout: Layout) -> BackgroundConfig:
    """Settings in which much happens."""
    drawn: dict[str, Any] = {name: random.choice(of) for name, of in CHOICES.items() if random.random() < 0.5}
    tick = drawn.get("tick_seconds", 1.0)
    busy = random.choice((0.3, 0.9, 1.6)) * max(1, layout.slots)
    clearing = {"room": layout.room, "slots": layout.slots, "levels": layout.levels}
    if layout.auction:
        clearing = {"clearing": "auction", "auction_levels": layout.auction}
    return BackgroundConfig(
        **drawn,
        **clearing,
        num_makers=layout.makers,
        num_value=layout.value,
        num_momentum=layout.momentum,
        num_noise=layout.noise,
        maker_seconds=tick * max(1, layout.makers) * random.choice((0.6, 2.0, 9.0)),
        value_seconds=tick * max(1, layout.value) / busy * 2,
        momentum_seconds=tick * max(1, layout.momentum) / busy * 3,
        session_seconds=tick * random.choice((3, 30, 300)),
    )


def markets_of(
    configs: list[BackgroundConfig], seats: int, seed: int = 0, oracle: type[MarketOracle] = MarketOracle
) -> Markets:
    """Markets of settings with one layout; the market of row i is that of sub-environment i under the seed."""
    layout, shared = layout_of(configs[0], seats), tables_of(configs[0])
    rows = [rules_of(background_parameters(config), shared) for config in configs]
    entries = max(row.arrivals.shape[-1] for row in rows)
    # With more thresholds that no word reaches.
    arrivals = [functional.pad(row.arrivals, (0, entries - row.arrivals.shape[-1]), value=2**32) for row in rows]
    rules = rows[0]._replace(numbers=torch.stack([row.numbers for row in rows]), arrivals=torch.stack(arrivals))
    words = torch.tensor([[seed % 2**32, seed >> 32, row, 3 * row + 1] for row in range(len(configs))])
    state = torch.vmap(lambda key, row: opened(EpisodeKey(*key.unbind()), row, layout), in_dims=(0, ROWS))(words, rules)
    quantiles = rules.normal.tolist(), rules.sizes.tolist(), rules.growth.tolist()
    settings = [
        (dict(zip(NUMBERS, numbers, strict=True)), arrivals, *quantiles)
        for numbers, arrivals in zip(rules.numbers.tolist(), rules.arrivals.tolist(), strict=True)
    ]
    oracles = [oracle(key, row, layout) for key, row in zip(words.tolist(), settings, strict=True)]
    return Markets(layout, state, rules, oracles)


def seat_order(random: Random, market: MarketOracle) -> Words:
    """A message of a seat near what is in the book, or a wrong one."""
    layout, book, seat = market.layout, market.book, random.randrange(market.layout.seats)
    orders = [order for queue in book.sides for order in queue]
    mine = [order for order in orders if order.owner == seat]
    near = [queue[0].price for queue in book.sides if queue] or [market.doubled_mid >> 1]
    price = random.choice(near) + random.choice((0, 0, 1, -1, random.randint(-60, 60)))
    quantity = random.choice((random.randint(1, 12), random.randint(1, 12), 300, 5_000))
    if random.random() < 0.03 and price < 2 * MAX_FUNDAMENTAL:
        quantity = max_quantity(layout.room)
    target = random.choice(mine or orders).id if orders and random.random() < 0.9 else book.next_id
    if mine and random.random() < 0.3:
        order = random.choice(mine)
        # The same price and a smaller quantity, which keeps its place.
        target, price, quantity = order.id, order.price, max(1, order.quantity - random.randint(-1, 2))
    kind = random.choices(list(KINDS), list(KINDS.values()))[0]
    words, most = [int(kind), random.choice((BUY, SELL)), price, quantity, seat, target], max_quantity(layout.room)
    if random.random() < 0.06:
        column = random.randrange(1, 6)
        wrong = ((2, -1), (0, -7, MAX_PRICE, MAX_PRICE + 1), (0, -3, most + 1, 2**31 - 1), (-1, layout.owners), (-5, 0))
        words[column] = random.choice(wrong[column - 1])
    elif random.random() < 0.04:
        # A message is carried out for whoever is named as its owner.
        words[4] = random.randrange(layout.owners)
    return tuple(words)


Tick = Callable[[Market, Message, Rules, Layout], tuple[Market, Report]]
"""A form of the tick, of one market."""


def native(market: Market, orders: Message, rules: Rules, layout: Layout) -> tuple[Market, Report]:
    """The tick in C++, on a copy of the market, which it overwrites."""
    own = with_leaves(market, [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves(market)])
    return advanced_market(own, orders, rules, layout)


FORMS: list[Tick] = [ticked, native]
"""All forms of the tick; without a compiler both are PyTorch's."""


def batched(tick: Tick, markets: Markets, state: Market, orders: Message) -> tuple[Market, Report]:
    """A tick of all markets."""
    mapped = torch.vmap(lambda one, sent, rules: tick(one, sent, rules, markets.layout), in_dims=(0, 0, ROWS))
    return mapped(state, orders, markets.rules)


def message_of(orders: list[list[Words]]) -> Message:
    """Messages of the seats of each market, equally many. Shape of each: (N, J), int32."""
    return Message(*torch.tensor(orders, dtype=torch.int32).reshape(len(orders), -1, 6).unbind(-1))


def fields_of(state: Market) -> dict[str, Tensor]:
    return {name: getattr(state, name) for name in Market.__annotations__ if name != "batch_size"}


def rows_of(columns: dict[str, Tensor]) -> list[dict[str, Any]]:
    lists = (tensor.tolist() for tensor in columns.values())
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def states_of(state: Market) -> list[dict[str, Any]]:
    """Each market in the words of the oracle."""
    rows = rows_of(fields_of(state))
    for row in rows:
        book = [row.pop(name) for name in ("key", "quantity", "owner", "id")]
        row["orders"] = [
            [(abs(key), *told) for key, *told in zip(*(part[side] for part in book), strict=True) if told[0]]
            for side in (BUY, SELL)
        ]
    return rows


def check_laws(state: Market) -> None:
    """Cash and shares add up to nothing, keys are sorted, and no book is crossed or locked."""
    assert not bool(state.cash.sum(-1).any()) and not bool(state.shares.sum(-1).any())
    assert bool((state.key[..., 1:] >= state.key[..., :-1]).all())
    best = torch.where(state.quantity > 0, state.key, 2**31 - 1).amin(-1).to(torch.int64)
    assert bool((-best[..., BUY] < best[..., SELL]).all())


def check_same(found: list[dict[str, Any]], expected: list[dict[str, Any]], when: object) -> None:
    """Every field of every market is the same, and none is missing."""
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == other[name], (when, row, name)


def same(one: tuple[Market, Report], other: tuple[Market, Report]) -> bool:
    """Whether markets and reports are those of others bit for bit, holes of the books included."""
    pairs = [*zip(*(fields_of(state).values() for state, _ in (one, other)), strict=True)]
    pairs += zip(one[1], other[1], strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def play(forms: list[Tick], markets: Markets, ticks: int, messages: int, seed: int) -> Counter[str]:
    """Hold ticks of all markets with random messages of their seats to the lists; return what has happened in them."""
    random, state, oracles = Random(seed), markets.state, markets.oracles
    check_same(states_of(state), [oracle.state() for oracle in oracles], "before the market opens")
    for number in range(ticks):
        orders = [[seat_order(random, oracle) for _ in range(messages)] for oracle in oracles]
        before, sent = state, message_of(orders)
        state, report = batched(forms[0], markets, before, sent)
        assert all(same(batched(form, markets, before, sent), (state, report)) for form in forms[1:]), number
        check_laws(state)
        told = [oracle.tick(sent) for oracle, sent in zip(oracles, orders, strict=True)]
        check_same(rows_of(report._asdict()), told, number)
        check_same(states_of(state), [oracle.state() for oracle in oracles], number)
    return sum((oracle.seen for oracle in oracles), Counter())
