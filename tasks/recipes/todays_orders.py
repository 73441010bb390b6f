"""Today's orders: what a trained policy orders at the last close of a file for an account. Nothing is sent."""

import sys

import pandas as pd

from vecenv.tasks.backtest import orders
from vecenv.tasks.experiment import plan, train_settings
from vecenv.tasks.recipes.sample import sample_prices

market = sys.argv[1] if len(sys.argv) > 1 else sample_prices()
small = {"num_envs": 16, "episodes": 8, "compile": False, "learner": {"total_frames": 1024, "minibatches": 2}}
with plan(train_settings(market=market, preset="data", folder="runs/today", **small)) as experiment:
    experiment.fit()

prices = pd.read_csv(market)
symbols, last = prices["symbol"].unique(), prices["date"].max()
account = pd.DataFrame({"symbol": [*symbols[:2], "CASH"], "shares": [100, 50, 25_000]})
# Without today= the date is the system's, and an old file is refused.
found = orders("runs/today", market, account, today=last)
print(found.orders[["symbol", "held", "target_weight", "shares", "price", "commission", "reason"]])
print(found.after)
print(*found.notes, sep="\n")
