"""One-line accounts for the examples: a price of 10.0000 is 100,000 ticks of 0.0001."""

from __future__ import annotations

from tests.tasks.stock_trading.oracle import Account, Market, Rules

TEN = 100_000  # ticks


def open_account(close, *, start_day=0, length=250, open=None, tradable=None, gate_series=None, **rules):
    """Open an account on closes ``[day][symbol]``: opens equal them and all is tradable unless given."""
    num_days, num_symbols = len(close), len(close[0])
    market = Market(
        tick_size=0.0001,
        close=close,
        open=open or close,
        tradable=tradable or [[True] * num_symbols] * num_days,
        gate_series=gate_series or [0.0] * num_days,
        features=[[[10.0 * t + k, -1.0] for k in range(num_symbols)] for t in range(num_days)],
    )
    return Account(Rules(gate=gate_series is not None, **rules), market, start_day, length)
