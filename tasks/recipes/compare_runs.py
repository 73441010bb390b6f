"""Compare runs: policies with other features play the same episodes, each on what it sees, with paired differences."""

import subprocess
import sys

from vecenv.tasks.recipes.sample import sample_prices

market, vecenv = sample_prices(), [sys.executable, "-m", "vecenv"]
small = "--no-compile --num-envs 16 --episodes 16 --learner.total-frames 1024 --learner.minibatches 2".split()
for name, features in (("momentum", ["momentum_10"]), ("strength", ["rsi_14", "volatility_20"])):
    folder = ["--folder", f"runs/{name}", "--env.features", *features]
    subprocess.run([*vecenv, "train", "--market", market, *small, *folder], check=True)
subprocess.run([*vecenv, "runs", "runs"], check=True)
subprocess.run([*vecenv, "compare", "runs/momentum", "runs/strength", "--market", market], check=True)
