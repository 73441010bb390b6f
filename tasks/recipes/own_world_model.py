"""My own world model: fit the shipped network to my bars, draw paths from it, and trade on them.

With its defaults `vecenv worldmodel fit` takes some minutes; the ten steps here show the way.
"""

import subprocess
import sys

import vecenv
from vecenv.tasks.recipes.sample import sample_prices

prices = sys.argv[1] if len(sys.argv) > 1 else sample_prices()
fit = [sys.executable, "-m", "vecenv", "worldmodel", "fit", "--market", prices, "--out", "mine.safetensors"]
subprocess.run([*fit, "--steps", "10", "--evaluate-every", "5"], check=True)

options = {"num_paths": 4, "num_days": 320}  # days after a warm-up of 252
env = vecenv.make(
    "stock_trading", 64, market="mine.safetensors", market_options=options, episode_length=60, compile=False
)
print(env.scenario.tape.symbols, env.scenario.tape.source)
