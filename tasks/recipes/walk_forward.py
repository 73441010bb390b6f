"""Walk forward: train up to a day, trade the months after it, and join what was never seen into one curve."""

import sys

from vecenv.tasks.recipes.sample import sample_prices
from vecenv.tasks.walk_forward import walk_forward

market = sys.argv[1] if len(sys.argv) > 1 else sample_prices()
small = {"num_envs": 16, "compile": False, "learner": {"total_frames": 1024, "minibatches": 2}}

found = walk_forward(market, preset="data", test_months=6, folder="runs/forward", **small)
# The window expands; with train_window="rolling" it rolls.
print(found.spans)
print((1 + found.returns).prod() - 1, *found.joined.verdicts, sep="\n")
