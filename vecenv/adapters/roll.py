"""ROLL: an environment worker that registers the tasks with GEM; set it as ``worker_cls`` of an environment manager.

ROLL makes environments by GEM's registry, in worker processes. Unpickling this worker imports this module and so runs
the registration.
"""

from __future__ import annotations

from roll.pipeline.agentic.environment_worker import EnvironmentWorker

import vecenv.adapters.gem  # noqa: F401, registers the environments


class TextEnvironmentWorker(EnvironmentWorker):
    """ROLL's environment worker."""
