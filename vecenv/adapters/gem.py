"""Registers all installed tasks with GEM: after ``import vecenv.adapters.gem``, ``gem.make("vecenv/single_stock")``.

Nothing is imported but GEM until an environment is made.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import gem
from gem.envs.registration import ENV_REGISTRY

TASKS = tuple(sorted(point.name for point in entry_points(group="vecenv.tasks")))
"""Installed tasks. A task without text is rejected when its environment is made."""

for _task in TASKS:
    # A worker may import this more than once.
    if f"vecenv/{_task}" not in ENV_REGISTRY:
        gem.register(f"vecenv/{_task}", entry_point="vecenv.adapters.gem_env:make_gem_env", task=_task)
