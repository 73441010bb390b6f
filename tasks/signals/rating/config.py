"""Settings of rating symbols by their news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Count, CountFromZero, Fraction, NotNegative, Positive, Settings, When, Within

LARGEST_SIGNAL = 10
"""Size of the strongest signal."""


@dataclass(frozen=True)
class NewsSignalsConfig(Settings):
    """Rules of rating symbols by their news; see ``tasks/signals/rating/rules.md`` for their exact meaning."""

    action: Literal["levels", "continuous"] = "levels"
    """One of 21 signals per symbol, or a number in [-1, 1] that is rounded to one."""
    horizon: Literal[1, 3, 5] = 1
    """Trading days from a signal to the market's feedback."""
    feedback: Literal["return", "sign"] = "return"
    """Reward of a signal: its share of the move, or whether its direction was right."""
    threshold: Annotated[int, Within(1, LARGEST_SIGNAL)] = 1
    """Signals below this size count as none."""
    move_threshold: Annotated[NotNegative, When("feedback", "sign")] = 0.0
    """sign: moves up to this size, a share of the price, are neither right nor wrong."""
    picks: CountFromZero = 0
    """Only so many of the highest and of the lowest signals count; 0 for all."""
    demeaned: bool = False
    """Take the mean move of the day's symbols away from each: what is rewarded is to tell them apart."""
    signal_cost: NotNegative = 0.0
    """Reward, in its unit, that the strongest signal on all symbols costs, such as what trading on it would."""
    commission: Fraction = 0.001
    """Share of the traded value that the portfolio pays."""
    initial_cash: Positive = 1_000_000.0
    """Cash at the start, in the currency of the prices."""
    recent_days: Annotated[int, Within(0, 10_000)] = 5
    """Daily returns of each symbol that are shown, the latest ones."""
    shuffled: bool = False
    """Exchange the news of each symbol at random among its days: the control, in which they tell nothing."""
    episode_length: Count = 20
    """Days of an episode."""
    random_start: bool = True
    """Draw path and start day; otherwise start at the first possible day."""

    @property
    def reads_scores(self) -> bool:
        return True

    @property
    def features(self) -> tuple[str, ...]:
        return ()

    @property
    def context(self) -> tuple[str, ...]:
        return ()
