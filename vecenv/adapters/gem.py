"""Announces all tasks that have text to GEM: after ``import vecenv.adapters.gem``, ``gem.make("vecenv/single_stock")``.

Nothing is imported but GEM until an environment is made.
"""

from __future__ import annotations

import gem
from gem.envs.registration import ENV_REGISTRY

TASKS = ("single_stock", "single_stock_costs", "multi_stock_3", "portfolio", "full_autonomous")
"""Tasks of this package that have text and one set of rules."""

for _task in TASKS:
    # A worker may import this more than once.
    if f"vecenv/{_task}" not in ENV_REGISTRY:
        gem.register(f"vecenv/{_task}", entry_point="vecenv.adapters.gem_env:GemMarketEnv", task=_task)
