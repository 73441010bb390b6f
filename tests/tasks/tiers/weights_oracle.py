"""The tiers' action spaces of weights and tilts in plain Python, decoded to orders.

Written from ``tasks/tiers/actions.md`` alone, to be read beside it, on the accounts of `tests.tasks.tiers.oracle`.
"""

import math
from collections.abc import Sequence

import numpy as np

from tests.tasks.tiers.oracle import BUY, HOLD, INVALID, MOST_SHARES, SELL, TierAccount


def weights_to_orders(account: TierAccount, weights: Sequence[float], max_orders: int = 8) -> list[list[float]]:
    """Decode the ``weights`` space: K target shares of the value to M orders, all INVALID if one is no number."""
    if not all(math.isfinite(weight) for weight in weights):
        return [[INVALID, 0, 0.0] for _ in range(max_orders)]
    value, prices = account.portfolio_value, account.market.close[account.day]
    targets = [min(max(weights[k], 0.0), 1.0) if account.owned[k] else 0.0 for k in account.symbols]
    total = max(sum(targets), 1.0)
    current = [account.holdings[k] * prices[k] / value for k in account.symbols]
    differences = [targets[k] / total - current[k] for k in account.symbols]
    large = [k for k in account.symbols if abs(differences[k]) >= 0.005]
    largest = sorted(sorted(large, key=lambda k: -abs(differences[k]))[:max_orders])  # equal ones: the first symbol
    orders: list[list[float]] = []
    cash_left: float = account.cash
    for k in largest:
        if differences[k] < 0:
            orders.append([SELL, k, -differences[k] / current[k]])
            cash_left -= differences[k] * value
    for k in largest:
        if differences[k] > 0:
            spent = differences[k] * value
            orders.append([BUY, k, spent / cash_left if spent < cash_left else 1.0])
            cash_left -= spent
    return orders + [[HOLD, 0, 0.0] for _ in range(max_orders - len(orders))]


def exponential(x: float) -> float:
    """Return the page's e(x)."""
    y = x / 256
    power = 1 / math.factorial(6)
    for i in range(5, -1, -1):
        power = power * y + 1 / math.factorial(i)
    for _ in range(8):
        power *= power
    return power


def target_weights(account: TierAccount, action: Sequence[float], gain: float) -> list[int]:
    """Return the target weight w of every symbol of the tape, in steps of 2⁻¹⁶."""
    rules, market, t = account.rules, account.market, account.day
    may_trade = [account.owned[k] and market.tradable[t][k] for k in account.symbols]
    h = min(rules.max_position, rules.max_exposure / sum(account.owned))
    benchmark = [round(0.98 * h * 2**30) if may_trade[k] else 0 for k in account.symbols]
    cash = max(2**30 - sum(benchmark), 0.02 * 2**30)
    tilt = [exponential(gain * float(np.clip(np.float32(a), -1, 1))) for a in action]
    u = [round(weight * factor) for weight, factor in zip(benchmark, tilt[:-1], strict=True)]
    total = sum(u) + round(cash * tilt[-1])
    w = [min(math.floor(2**16 * tilted / total), math.floor(0.98 * rules.max_position * 2**16)) for tilted in u]
    stuck = sum(account.holdings[k] * market.close[t][k] for k in account.symbols if not may_trade[k])
    room = max(math.floor(0.98 * rules.max_exposure * 2**16) - math.ceil(2**16 * stuck / account.portfolio_value), 0)
    used = sum(w)
    return [math.floor(weight * room / used) for weight in w] if used > room else w


def limit_weights_to_orders(
    account: TierAccount, action: Sequence[float], gain: float, max_orders: int = 8
) -> list[list[float]]:
    """Decode K + 1 tilts, that of cash last, to M orders, all INVALID if a tilt is NaN or infinite."""
    if not all(math.isfinite(a) for a in action):
        return [[INVALID, 0, 0.0] for _ in range(max_orders)]
    rules, prices, value = account.rules, account.market.close[account.day], account.portfolio_value
    changes = {}
    for k, weight in enumerate(target_weights(account, action, gain)):
        if not account.owned[k] or not account.market.tradable[account.day][k]:
            continue
        target = min(math.floor(float(weight) * float(value) / (2**16 * prices[k])), MOST_SHARES)
        change = target - account.holdings[k]
        if change > 0 and account.gate_is_closed():
            continue
        if abs(change) * prices[k] >= 0.005 * value:
            changes[k] = change
    most = min(max_orders, rules.max_trades)
    largest = sorted(sorted(changes, key=lambda k: -abs(changes[k]) * prices[k])[:most])  # equal ones: the first symbol
    sales, purchases = ([k for k in largest if changes[k] * side > 0] for side in (-1, 1))
    orders: list[list[float]] = []
    cash, exposure = account.cash, value - account.cash
    for k in sales:
        q = math.ceil(-changes[k] * 10_000 / account.holdings[k])
        sold = q * account.holdings[k] // 10_000
        price = account.sell_price(k)
        cash += sold * price - account.commission(sold * price)
        exposure -= sold * prices[k]
        orders.append([SELL, k, q / 10_000])
    for k in purchases:
        q, bought = purchase(account, k, changes[k], cash, exposure)
        paid = bought * account.buy_price(k)
        cash -= paid + account.commission(paid)
        exposure += bought * prices[k]
        orders.append([BUY, k, q / 10_000] if bought > 0 else [HOLD, 0, 0.0])
    return orders + [[HOLD, 0, 0.0] for _ in range(max_orders - len(orders))]


def purchase(account: TierAccount, k: int, shares: int, cash: int, exposure: int) -> tuple[int, int]:
    """Return q of a purchase, and the shares that a BUY of it asks for."""
    rules, p, b, c = account.rules, account.market.close[account.day][k], account.buy_price(k), account.capacity()
    position_room = math.floor(rules.max_position * account.portfolio_value) - account.holdings[k] * p
    total_room = math.floor(rules.max_exposure * account.portfolio_value) - exposure
    fits = min(max(position_room, 0) // p, max(total_room, 0) // p, MOST_SHARES - account.holdings[k])
    n = min(shares, fits)
    cost = n * b + account.commission(n * b)
    q = min(math.ceil(cost * 40_000 / max(c * cash, 1)), 10_000)
    if account.shares_asked(q, b, cash) > fits:
        q -= 1
    return q, account.shares_asked(q, b, cash)
