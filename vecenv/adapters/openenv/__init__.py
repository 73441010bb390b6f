"""OpenEnv: a server whose sessions are rows of one tensor market, and its client.

The folder is an OpenEnv package: ``openenv.yaml`` declares it, ``Dockerfile`` builds it, ``vecenv serve`` starts it.
"""

from vecenv.adapters.openenv.client import MarketClient
from vecenv.adapters.openenv.models import MarketAction, MarketObservation, MarketState

__all__ = ["MarketAction", "MarketClient", "MarketObservation", "MarketState"]
