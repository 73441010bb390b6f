"""Settings of trading on scores of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Items, When, Within
from vecenv.tasks.stock_trading.config import StockTradingConfig

LARGEST_STRENGTH = 0.5
"""Bound of a strength: at 0.5 the most extreme score would turn an action, or a reward, to nothing."""


@dataclass(frozen=True)
class SignalsConfig(StockTradingConfig):
    """Rules of trading on scores; see ``tasks/signals/rules.md`` for their exact meaning."""

    observed: Annotated[tuple[Literal["sentiment", "risk"], ...], Items(distinct=True)] = ()
    """Scores shown to the agent, per symbol, each with a mask of where there is one."""
    sentiment_strength: Annotated[float, Within(0, LARGEST_STRENGTH, below=True)] = 0.0
    """Change of an action per point of sentiment from neutral: 0.1 makes a purchase 20% larger at the best score."""
    risk_strength: Annotated[float, Within(0, LARGEST_STRENGTH, below=True)] = 0.0
    """Change of the portfolio's risk level per point of risk from neutral."""
    risk_form: Annotated[
        Literal["reward", "published", "trajectory"], When("risk_strength", told="a risk_strength above 0")
    ] = "reward"
    """Where the risk level acts: gains are divided by it and losses multiplied; both divided, as published, which
    softens losses of risky portfolios; or the reward is left alone, and CVaR-PPO weighs trajectories by it."""
    shuffled: bool = False
    """Exchange the scores of each symbol at random among its days: the control, in which they tell nothing."""

    @property
    def reads_scores(self) -> bool:
        return True

    @property
    def weighs_trajectories(self) -> bool:
        """Whether the risk level is for learners that weigh trajectories, and not in the rewards."""
        return self.risk_strength > 0 and self.risk_form == "trajectory"
