"""OpenEnv: a server whose sessions are rows of one world, and its client.

The folder is an OpenEnv package: ``openenv.yaml`` declares it, ``Dockerfile`` builds it, ``vecenv serve`` starts it.
"""

from vecenv.adapters.openenv.client import TextClient
from vecenv.adapters.openenv.models import TextAction, TextObservation, TextState

__all__ = ["TextAction", "TextClient", "TextObservation", "TextState"]
