"""Registration record of rating symbols by their news."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vecenv.finance.trading import Trading
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.signals.rating.config import NewsSignalsConfig


def shortened(config: NewsSignalsConfig, days: int) -> NewsSignalsConfig:
    """Return a config whose episodes, with the returns before and the feedback behind them, fit into so many days."""
    fitting = days + 1 - config.horizon - config.recent_days
    return config if config.episode_length <= fitting else replace(config, episode_length=max(1, fitting))


def check_trained(trained: Mapping[str, Any], config: NewsSignalsConfig) -> None:
    """Raise a ValueError if a policy was trained on other actions or features than the config's."""
    for name in ("action", "recent_days"):
        if trained[name] != getattr(config, name):
            raise ValueError(f"the checkpoint was trained with {name} {trained[name]}, not {getattr(config, name)}")


NEWS_SIGNALS = Task(
    name="news_signals",
    version="1",
    scenario=later("vecenv.tasks.signals.rating.scenario:NewsSignals"),
    config=NewsSignalsConfig,
    agents=later("vecenv.tasks.signals.rating.agents:AGENTS"),
    outcomes={
        "rank_ic": "count",
        "pooled_ic": "count",
        "hit_share": "share",
        "total_return": "share",
        "portfolio_value": "currency",
    },
    actions=lambda config: "numbers" if config.action == "continuous" else "one choice",
    domain=Trading(
        generator="news",
        scale="(1 + the cosine of signals and moves to come) / 2: 0.5 for none, 1 for perfect ones, 0 for their "
        "opposite",
        reference="silent",
        hindsight="hindsight",
        beside_account=("rank_ic", "pooled_ic", "hit_share"),
        shortened=shortened,
        check_trained=check_trained,
    ),
    text=later("vecenv.tasks.signals.rating.text:RatingText"),
    recording=later("vecenv.tasks.signals.rating.records:RECORDING"),
)
