"""ROLL: a worker whose process knows the tiers, named as ``worker_cls`` of an environment manager.

ROLL makes environments by GEM's registry, in processes of their own. Whoever unpickles this worker imports this module,
and with it the registration.
"""

from __future__ import annotations

from roll.pipeline.agentic.environment_worker import EnvironmentWorker

import vecenv.adapters.gem  # noqa: F401, registers the environments


class TierEnvironmentWorker(EnvironmentWorker):
    """ROLL's own worker of environments."""
