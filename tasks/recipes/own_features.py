"""My features: a column of the file, indicators by name, and a function of mine that is checked for looking ahead."""

import pandas as pd
import torch

import vecenv
from vecenv.tasks.recipes.sample import sample_prices

# A column of the file: here the day's traded value.
prices = pd.read_csv(sample_prices())
prices["traded_value"] = prices["close"] * prices["volume"]
prices.to_csv("with_column.csv", index=False)


def close_in_range(bars):
    """Where the close lies between low and high. Bars: (paths, days, symbols, open/high/low/close/volume)."""
    high, low, close = bars[..., 1], bars[..., 2], bars[..., 3]
    return torch.where(high > low, (close - low) / (high - low), 0.5)


vecenv.register_indicator("close_in_range", close_in_range, warmup=0)

features = ("traded_value", "close_in_range", "rsi_21", "momentum_60")
env = vecenv.make("stock_trading", num_envs=16, market="with_column.csv", features=features, compile=False)
print(env.scenario.tape.feature_names, env.observations().shape)

try:  # tomorrow's close: refused
    vecenv.register_indicator("tomorrow", lambda bars: bars[..., 3].roll(-1, 1), warmup=0)
except ValueError as error:
    print(error)
