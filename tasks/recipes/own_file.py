"""My file: train on a CSV of daily bars, and read what was learned.

Columns are date, symbol, open, high, low, close and volume; other columns may be features.
"""

import sys

from vecenv.tasks.experiment import plan, train_settings
from vecenv.tasks.recipes.sample import sample_prices

market = sys.argv[1] if len(sys.argv) > 1 else sample_prices()

# Small, to end in seconds: leave these out for a training of 2.5 million steps, which compiles first.
small = {"num_envs": 64, "episodes": 16, "compile": False, "learner": {"total_frames": 4096, "num_steps": 16}}

with plan(train_settings(market=market, preset="data", folder="runs/own_file", **small)) as experiment:
    experiment.show()
    experiment.fit()
    evaluation = experiment.compare()
    experiment.write()  # checkpoint.pt, metrics.json, settings.yaml and pictures in the folder

excess = evaluation.records["trained"].outcomes["total_return"].mean()
print(f"mean return of the trained agent on the test: {excess:.2%}")
