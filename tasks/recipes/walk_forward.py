"""Walk forward: train up to a day, trade the months after it, and join what was never seen into one curve."""

import sys
from itertools import pairwise

import pandas as pd

from vecenv.tasks.backtest import backtest
from vecenv.tasks.experiment import plan, train_settings
from vecenv.tasks.recipes.sample import sample_prices

market = sys.argv[1] if len(sys.argv) > 1 else sample_prices()
small = {"num_envs": 16, "episodes": 8, "compile": False, "learner": {"total_frames": 1024, "minibatches": 2}}
ends = pd.to_datetime(pd.read_csv(market)["date"]).drop_duplicates().sort_values()
ends = ends.iloc[len(ends) // 2 :: len(ends) // 8].tolist()

curve = []
for number, (first, last) in enumerate(pairwise(ends)):
    settings = train_settings(
        market=market, preset="data", train_end=f"{first:%Y-%m-%d}", folder=f"runs/fold_{number}", **small
    )  # the window expands; with start= it rolls
    with plan(settings) as experiment:
        experiment.fit()
    found = backtest(f"runs/fold_{number}", market, start=f"{first:%Y-%m-%d}", end=f"{last:%Y-%m-%d}")
    curve.append(pd.DataFrame({"trained": found.returns, "buy_and_hold": found.daily["buy_and_hold"].pct_change()}))

joined = pd.concat(curve).dropna()
print((1 + joined).prod() - 1)
