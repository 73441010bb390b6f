"""Periodic regeneration of a generated market's training paths, at fixed update numbers.

So training results do not depend on the speed of generation or the number of sub-environments.
"""

from __future__ import annotations

from typing import Any

from vecenv.core.env import VecEnv
from vecenv.tasks.experiment.splits import TapeSplits


class FreshPaths:
    """Replaces an environment's training paths every few updates; all episodes restart then.

    It starts on the paths of round 0; its tape's metadata keeps describing these.
    """

    def __init__(self, splits: TapeSplits, config: Any, env: VecEnv, every: int) -> None:  # noqa: ANN401
        self.splits, self.config, self.env, self.every, self.round = splits, config, env, every, 0

    def due(self, update: int) -> bool:
        return update // self.every != self.round

    def before_update(self, update: int) -> None:
        """Replace the paths at the start of a round, or when a run resumes within a later round."""
        if not self.due(update):
            return
        current = update // self.every
        tape = self.splits.drawn(current, self.config)
        scenario: Any = self.env.scenario
        if tape.price_bits > scenario.tape.price_bits:
            raise ValueError(
                f"{tape.source}: the paths of round {current} have prices of 2^{scenario.tape.price_bits - 1} ticks "
                f"of {tape.tick_size:g} or more, which the first round's accounts cannot hold; use a coarser tick_size"
            )
        again = type(scenario)(tape, self.config)
        self.env.write_shared(again.shared)
        if update % self.every == 0:
            self.env.reset()
        self.round = current
