"""The law of an account on replayed order books: its state, and a step of it; `rules.md` is the specification.

Side 0 of resting orders is the bid, 1 the ask; on the tape side 0 is the asks, which a bid trades with. The queue ahead
of a resting order is estimated as by hftbacktest's `RiskAverseQueueModel`: trades shorten it, cancellations only when
the size shown is less than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.tasks.crypto_lob.config import MARGIN_UNITS, RATE_UNITS, CryptoLobConfig, part_up
from vecenv.tasks.crypto_lob.orders import KEEP, Choice, Order

BID, ASK = 0, 1

Tensors = Mapping[str, Tensor]


class LobState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """An account and its place on the tape. Money is in half ticks times lots, and begins at 0.

    Shape (), int32, where nothing else is said. ``position`` is in lots, negative if short, ``cash`` is received less
    paid, ``equity`` that and the position at the mid. Of the open trade, ``trade_cost`` is paid less received,
    ``entry`` the doubled mid at which the position began, ``best`` the most favourable one and ``age`` the steps since.
    ``pending`` are choices that are not heard yet, the oldest first: kind and lots of each, see `orders.Order`,
    (latency - 1, 2), empty with a latency of at most one, and ``pending_quotes`` price and lots of bid and ask chosen
    with them, (latency - 1, 2, 2), or (0, 2, 2) where action is not limit. ``resting`` is price, lots left and lots
    ahead of bid and ask, (2, 3), or (0, 3). ``bought`` and ``sold`` are lots of the last step. ``drawdown`` is the
    largest from the ``peak`` as a share of it, initial cash included, and ``squares`` the sum of the squared changes of
    equity, in currency, both float64. ``won`` and ``lost`` count closed trades with a profit and a loss; ``traded`` is
    the value bought and sold, ``costs`` fees and slippage. ``exposed`` counts steps that ended with a position,
    ``unfilled``, int64, lots of market orders that the levels did not cover. ``liquidated`` is 1 if the margin ended
    the episode. All money is int64.
    """

    row: Tensor
    start_row: Tensor
    position: Tensor
    cash: Tensor
    equity: Tensor
    trade_cost: Tensor
    entry: Tensor
    best: Tensor
    age: Tensor
    pending: Tensor
    pending_quotes: Tensor
    resting: Tensor
    bought: Tensor
    sold: Tensor
    peak: Tensor
    drawdown: Tensor
    squares: Tensor
    won: Tensor
    lost: Tensor
    traded: Tensor
    costs: Tensor
    exposed: Tensor
    unfilled: Tensor
    invalid: Tensor
    liquidated: Tensor


def opened(row: Tensor, config: CryptoLobConfig) -> LobState:
    """Return an account without a position at a row. Shape: ()."""
    none = row * 0
    money, real = none.to(torch.int64), none.double()
    resting, waiting = 2 if config.action == "limit" else 0, max(config.latency - 1, 0)
    names = "position entry best age bought sold won lost exposed invalid liquidated"
    return LobState(
        row=row,
        start_row=row,
        **dict.fromkeys(names.split(), none),
        **dict.fromkeys(["cash", "equity", "trade_cost", "peak", "traded", "costs", "unfilled"], money),
        **dict.fromkeys(["drawdown", "squares"], real),
        pending=none.expand(waiting, 2).clone(),
        pending_quotes=(none + KEEP).expand(waiting if resting else 0, 2, 2).clone(),
        resting=none.expand(resting, 3).clone(),
        batch_size=[],
    )


class Account(NamedTuple):
    """What fills change, as in `LobState`. Shape of each: (), int64."""

    position: Tensor
    cash: Tensor
    trade_cost: Tensor
    entry: Tensor
    best: Tensor
    age: Tensor
    won: Tensor
    lost: Tensor
    traded: Tensor
    costs: Tensor


def after_fill(account: Account, filled: Tensor, value: Tensor, cost: Tensor, doubled_mid: Tensor) -> Account:
    """Return an account after an order of ``filled`` lots, negative if sold; ``cost`` is fees and slippage."""
    paid = torch.where(filled < 0, -value, value) + cost
    position = account.position + filled
    was, now = account.position.sign(), position.sign()
    ends = (was != 0) & (was != now)
    begins = (now != 0) & (was != now)
    # An order through zero belongs to two trades, in proportion to its lots.
    closing = (paid * account.position.abs()) // filled.abs().clamp(min=1)
    of_old = torch.where(ends & begins, closing, paid)
    result = account.trade_cost + of_old
    open_cost = torch.where(begins, torch.where(ends, paid - closing, paid), result)
    return Account(
        position=position,
        cash=account.cash - paid,
        trade_cost=torch.where(now == 0, 0, open_cost),
        entry=torch.where(begins, doubled_mid, account.entry),
        best=torch.where(begins, doubled_mid, account.best),
        age=torch.where(begins | (now == 0), 0, account.age),
        won=account.won + (ends & (result < 0)),
        lost=account.lost + (ends & (result > 0)),
        traded=account.traded + value,
        costs=account.costs + cost,
    )


class Walked(NamedTuple):
    """A market order's lots, negative if sold, their value, not negative, and lots beyond the levels. Shapes: ()."""

    filled: Tensor
    value: Tensor
    uncovered: Tensor


def walked(order: Tensor, row: Tensor, depth: Tensor, closes: Tensor) -> Walked:
    """Fill a market order, lots, negative to sell, at most the table's largest, at the levels of the side it hits.

    With ``closes`` lots beyond the levels are filled too, at the price of the deepest. Shapes: ().
    """
    side = (order < 0).to(torch.int64)
    place = 2 * row + side
    wanted = order.abs()
    value = wanted * 0
    for level in range(depth.shape[1]):
        lots, weight = depth[place, level, 0].to(torch.int64), depth[place, level, 1].to(torch.int64)
        taken = torch.minimum(wanted, lots)
        value = value + weight * taken
    # That of the deepest level is what all levels cover, and its weight the price there.
    covered = taken
    uncovered = wanted - covered
    extra = torch.where(closes, uncovered, 0)
    value = 2 * (value + extra * weight)
    filled = covered + extra
    return Walked(torch.where(order < 0, -filled, filled), value, uncovered)


def filled_on_the_way(
    resting: Tensor, row: Tensor, price: Tensor, size: Tensor, taken: Tensor, is_open: Tensor
) -> tuple[Tensor, Tensor]:
    """Fill resting orders on the way from a row to the next; return them and the lots filled. Shapes: (2, 3), (2,).

    ``resting`` is price, lots left and lots ahead of bid and ask, (2, 3), int64; the last four are the tape's.
    """
    known, was_known = is_open[row + 1], is_open[row]
    orders, fills = [], []
    for side, sign in ((BID, 1), (ASK, -1)):
        limit, left, ahead = resting[side].unbind()
        own, other = 1 - side, side
        crossed = sign * price[row + 1, other, 0] <= sign * limit
        better = torch.where(sign * price[row, own] > sign * limit, size[row, own], 0).to(torch.int64).sum(-1)
        reaching = (taken[row + 1, own].to(torch.int64) - better).clamp(min=0)
        reaching = torch.where(was_known, reaching, 0)
        traded = torch.minimum(left, (reaching - ahead).clamp(min=0))
        filled = torch.where(known, torch.where(crossed, left, traded), 0)
        shown = torch.where(price[row + 1, own] == limit, size[row + 1, own], 0).to(torch.int64).sum(-1)
        shorter = torch.minimum((ahead - reaching).clamp(min=0), shown)
        orders.append(torch.stack([limit, left - filled, torch.where(known, shorter, ahead)]))
        fills.append(filled)
    return torch.stack(orders), torch.stack(fills)


def placed(
    resting: Tensor, quotes: Tensor, room: Tensor, row: Tensor, price: Tensor, size: Tensor, is_open: Tensor
) -> Tensor:
    """Return the resting orders after those of a choice have been placed, kept or cancelled. Shape: (2, 3), int64.

    ``quotes`` are those of `orders.Choice`, ``room`` the lots that may be bought and sold, (2,).
    """
    orders = []
    for side, sign in ((BID, 1), (ASK, -1)):
        own, other = 1 - side, side
        limit, wanted = quotes[side].unbind()
        old_limit, left, ahead = resting[side].unbind()
        lots = torch.minimum(wanted, room[side]).clamp(min=0)
        there = price[row, own] > 0
        beyond = ~(there & (sign * price[row, own] <= sign * limit)).any(-1)
        trades_at_once = sign * limit >= sign * price[row, other, 0]
        lots = torch.where(beyond | trades_at_once, 0, lots)
        keeps_place = (limit == old_limit) & (lots <= left)
        shown = torch.where(price[row, own] == limit, size[row, own], 0).to(torch.int64).sum(-1)
        new = torch.stack([limit, lots, torch.where(keeps_place, ahead, shown)])
        old = torch.stack([old_limit, torch.minimum(left, room[side].clamp(min=0)), ahead])
        stays = (limit == KEEP) | ~is_open[row]
        order = torch.where(stays, old, new)
        orders.append(torch.where(order[1] > 0, order, 0))
    return torch.stack(orders)


class Terms(NamedTuple):
    """What is the same for all accounts, beside the parameters.

    ``most`` is the largest position in lots, ``initial`` the initial cash in money, of which a unit is ``money_size``
    of the currency, ``used`` the names of the parameters that have an effect.
    """

    config: CryptoLobConfig
    most: int
    initial: int
    money_size: float
    used: frozenset[str]


def stepped(state: LobState, choice: Choice, row: Tensor, terms: Terms, params: Tensors, shared: Tensors) -> LobState:
    """Return an account after a step from a row of the tape to the next. Shapes: ()."""
    config = terms.config
    heard, pending, pending_quotes = _heard(state, choice, config)
    account = Account(*(getattr(state, name).to(torch.int64) for name in Account._fields))
    resting = state.resting.to(torch.int64)
    signed_mid = shared["mid"][row + 1].to(torch.int64)
    after = signed_mid.abs()
    last = row + 1 - state.start_row >= config.episode_steps
    if config.latency > 0:
        account, resting, passive = _on_the_way(account, resting, row, after, config, params, shared)
        account, resting, trade, liquidated = _carried_out(
            account, resting, heard, row + 1, signed_mid, last, terms, params, shared
        )
    else:
        here = shared["mid"][row].to(torch.int64)
        account, resting, trade, liquidated = _carried_out(
            account, resting, heard, row, here, last, terms, params, shared
        )
        account, resting, passive = _on_the_way(account, resting, row, after, config, params, shared)
    equity = account.cash + account.position * after
    peak = torch.maximum(state.peak, equity)
    change = (equity - state.equity).double() * terms.money_size
    return state.replace(
        **{name: getattr(account, name).to(torch.int32) for name in _SMALL},
        row=(row + 1).to(torch.int32),
        cash=account.cash,
        equity=equity,
        trade_cost=account.trade_cost,
        pending=pending.to(torch.int32),
        pending_quotes=pending_quotes.to(torch.int32),
        resting=resting.to(torch.int32),
        bought=(trade.filled.clamp(min=0) + passive[BID]).to(torch.int32),
        sold=((-trade.filled).clamp(min=0) + passive[ASK]).to(torch.int32),
        peak=peak,
        drawdown=torch.maximum(state.drawdown, (peak - equity).double() / (peak + terms.initial).double()),
        squares=state.squares + change * change,
        traded=account.traded,
        costs=account.costs,
        exposed=state.exposed + (account.position != 0),
        unfilled=state.unfilled + trade.uncovered,
        invalid=state.invalid + (choice.kind == Order.INVALID),
        liquidated=liquidated.to(torch.int32),
    )


_SMALL = ("position", "entry", "best", "age", "won", "lost")
"""Fields of an account that a state keeps as int32."""


def _heard(state: LobState, choice: Choice, config: CryptoLobConfig) -> tuple[Choice, Tensor, Tensor]:
    """Return the choice that is heard now, and those that are not yet."""
    if config.latency <= 1:
        return choice, state.pending, state.pending_quotes
    chosen = torch.stack([choice.kind, choice.lots]).unsqueeze(0)
    pending = torch.cat([state.pending.to(torch.int64), chosen])
    if config.action != "limit":
        return Choice(pending[0, 0], pending[0, 1], choice.quotes), pending[1:], state.pending_quotes
    quotes = torch.cat([state.pending_quotes.to(torch.int64), choice.quotes.unsqueeze(0)])
    return Choice(pending[0, 0], pending[0, 1], quotes[0]), pending[1:], quotes[1:]


def _on_the_way(
    account: Account,
    resting: Tensor,
    row: Tensor,
    doubled_mid: Tensor,
    config: CryptoLobConfig,
    params: Tensors,
    shared: Tensors,
) -> tuple[Account, Tensor, Sequence[Tensor]]:
    """Fill resting orders on the way to the next row, and pay funding there; returns also the lots traded."""
    nothing = account.position * 0
    passive: Sequence[Tensor] = (nothing, nothing)
    if config.action == "limit":
        prices = resting[:, 0]
        resting, fills = filled_on_the_way(
            resting, row, shared["price"], shared["size"], shared["taken"], shared["open"]
        )
        passive = fills.unbind()
        for side, sign in ((BID, 1), (ASK, -1)):
            value = 2 * prices[side] * passive[side]
            cost = part_up(value, params["maker_fee"])
            account = after_fill(account, sign * passive[side], value, cost, doubled_mid)
    if config.funding_rate:
        times = shared["funding"][row + 1].to(torch.int64)
        paid = times * part_up(account.position * doubled_mid, params["funding_rate"])
        account = account._replace(cash=account.cash - paid, trade_cost=account.trade_cost + paid)
    return account, resting, passive


def _carried_out(
    account: Account,
    resting: Tensor,
    heard: Choice,
    row: Tensor,
    signed_mid: Tensor,
    last: Tensor,
    terms: Terms,
    params: Tensors,
    shared: Tensors,
) -> tuple[Account, Tensor, Walked, Tensor]:
    """Close, liquidate or trade at a row of the tape, and place resting orders.

    Returns also what was traded at the market, with whether the account was liquidated.
    """
    config, mid, is_open = terms.config, signed_mid.abs(), signed_mid > 0
    position = account.position
    holds = position != 0
    best = torch.where(position > 0, torch.maximum(account.best, mid), torch.minimum(account.best, mid))
    account = account._replace(
        age=torch.where(holds, account.age + 1, account.age), best=torch.where(holds, best, account.best)
    )
    closes = last
    if "stop_loss" in terms.used:
        left = (account.best - mid).abs() * RATE_UNITS > params["stop_loss"] * account.entry
        closes = closes | ((params["stop_loss"] > 0) & holds & left)
    if "max_holding" in terms.used:
        closes = closes | ((params["max_holding"] > 0) & (account.age > params["max_holding"]))
    worth = account.cash + terms.initial + position * mid
    needed = params["maintenance_margin"] * position.abs() * mid
    liquidated = is_open & holds & (worth * MARGIN_UNITS < needed)
    traded = torch.where(heard.kind == Order.TRADE, position + heard.lots, position)
    target = torch.where(heard.kind == Order.TARGET, heard.lots, traded)
    stops = closes | liquidated
    order = torch.where(stops, 0, target.clamp(-terms.most, terms.most)) - position
    if config.fill == "mid":
        whole = torch.where(is_open, order, 0)
        trade = Walked(whole, whole.abs() * mid, (order - whole).abs())
    else:
        trade = walked(order, row, shared["depth"], last | liquidated)
    cost = part_up(trade.value, params["taker_fee"])
    if "slippage" in terms.used:
        cost = cost + part_up(trade.value, params["slippage"])
    account = after_fill(account, trade.filled, trade.value, cost, mid)
    if config.action == "limit":
        room = torch.stack([terms.most - account.position, terms.most + account.position])
        after = placed(resting, heard.quotes, room, row, shared["price"], shared["size"], shared["open"])
        resting = torch.where(stops, 0, after)
    return account, resting, trade, liquidated
