"""Today's orders: what a trained policy orders at the last close of a file for an account. Nothing is sent."""

import sys

import pandas as pd

from vecenv.market.sources import read_bars
from vecenv.tasks.backtest import orders
from vecenv.tasks.experiment import plan, train_settings
from vecenv.tasks.recipes.sample import sample_prices

market = sys.argv[1] if len(sys.argv) > 1 else sample_prices()
bars = read_bars(market)
small = {"num_envs": 16, "episodes": 8, "compile": False, "learner": {"total_frames": 1024, "minibatches": 2}}
with plan(train_settings(market=market, preset="data", folder="runs/today", **small)) as experiment:
    experiment.fit()

held = dict(zip(bars.symbols, [100, 50], strict=False)) | {"CASH": 25_000}
account = pd.DataFrame({"symbol": [*held], "shares": [*held.values()]})
# Without today= the date is the system's, and an old file is refused.
found = orders("runs/today", market, account, today=str(bars.dates[-1])[:10])
print(found.orders[["symbol", "held", "target_weight", "shares", "price", "commission", "reason"]])
print(found.after)
print(*found.notes, sep="\n")
