"""Periodic regeneration of a generated market's training paths, at fixed update numbers.

So training results do not depend on the speed of generation or the number of sub-environments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from vecenv.core.env import VecEnv
from vecenv.market.load import generator_of
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.market_settings import MarketSettings

Settings = TypeVar("Settings", bound=MarketSettings)

SEED_STRIDE = 1 << 40
"""Difference between the market seeds of successive rounds of paths."""

HEADROOM = 4.0
"""Headroom factor for higher prices in later rounds than in the first."""


def first_round(settings: Settings, config: Any) -> tuple[Settings, MarketTape]:  # noqa: ANN401
    """Generate the first round of paths, and return settings that fix its tick size for all rounds."""
    tape = settings.tape(config, HEADROOM)
    return replace(settings, tick_size=tape.tick_size), tape


class FreshPaths:
    """Replaces an environment's training paths every few updates; all episodes restart then.

    Settings are from `first_round`, on whose paths the environment starts; its tape's metadata keeps describing these.
    """

    def __init__(self, settings: MarketSettings, config: Any, env: VecEnv, every: int) -> None:  # noqa: ANN401
        if every < 1:
            raise ValueError(f"refresh_every must be at least 1, got {every}")
        if generator_of(settings.market) is None:
            raise ValueError(f"{settings.market}: only the paths of a generated market can be refreshed")
        self.settings, self.config, self.env, self.every, self.round = settings, config, env, every, 0

    def due(self, update: int) -> bool:
        return update // self.every != self.round

    def before_update(self, update: int) -> None:
        """Replace the paths at the start of a round, or when a run resumes within a later round."""
        if not self.due(update):
            return
        current = update // self.every
        settings = replace(self.settings, market_seed=self.settings.market_seed + current * SEED_STRIDE)
        tape = settings.training_alone(self.config)
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
