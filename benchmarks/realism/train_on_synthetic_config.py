"""Settings of the train-on-synthetic benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vecenv.benchmarks.realism.simulated_markets import WARM_UP
from vecenv.benchmarks.result_files import RESULTS
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation
from vecenv.worldmodel.baselines.resampled import StationaryBootstrap
from vecenv.worldmodel.data.market_model import MarketModel

RIVALS: dict[str, Callable[..., MarketModel] | None] = {
    "FHS": FilteredHistoricalSimulation.fit,
    "bootstrap": StationaryBootstrap.fit,
    "replay": None,
}
"""Fit functions of the other simulators; None for replay of the training days."""


@dataclass(frozen=True)
class TrainOnSyntheticConfig:
    """Settings of the comparison."""

    history: Path
    """File of bars: training days, validation days and test days."""
    model: str | None = None
    """Weights by name, judged, or a checkpoint of ``vecenv worldmodel train``; without it only the other simulators."""
    market: str | None = None
    """Name of one of the model's markets, by default the only one."""
    temperature: float = 1.0
    """Temperature: factor on the size of every move; 1 draws from the model."""
    train_end: str | None = None
    """Last date of training, by default the model's."""
    validation_end: str | None = None
    """Last date before the test, by default the model's."""
    test_end: str | None = None
    """Last date of the test, by default the file's."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, by default the first of the file that have a bar on every day."""
    max_symbols: int = 30
    """Maximum number of symbols."""
    rivals: tuple[str, ...] = tuple(RIVALS)
    """Other simulators: FHS, bootstrap, replay. Without a model the first is compared with the rest."""
    paths: int = 256
    """Training paths per simulator, and as many others for evaluation."""
    starts: int = 8
    """Number of training days as starts of paths."""
    days: int = 250
    """Days of a path, of which the first 60 are the warm-up."""
    seeds: int = 5
    """PPO runs per simulator; run s has the same initial weights and episodes on all."""
    seed: int = 0
    """Seed of the first run, of the paths and of the test episodes."""
    num_envs: int = 256
    """Number of parallel training sub-environments."""
    episodes: int = 256
    """Test episodes, and as many at home."""
    compile: bool = True
    """Compile rollouts and gradients."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Device of policy training; paths are drawn on the CPU."""
    env: StockTradingConfig = field(default_factory=lambda: StockTradingConfig(action="weights", episode_length=60))
    """Rules. Target weights are independent of price levels."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(total_frames=1_000_000))
    """Settings of the learner."""
    runs: Path | None = None
    """Folder for the learners' checkpoints, from which an interrupted command resumes."""
    output: Path | None = RESULTS
    """Folder for JSON and Markdown; none are written without it."""

    def __post_init__(self) -> None:
        for name in ("paths", "starts", "seeds", "num_envs", "episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_symbols < 2:
            raise ValueError(f"max_symbols must be at least 2, got {self.max_symbols}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.paths % self.starts:
            raise ValueError(f"paths {self.paths} must be a multiple of starts {self.starts}")
        if self.days <= WARM_UP + self.env.episode_length:
            raise ValueError(
                f"days {self.days} must be more than the warm-up of {WARM_UP} days and an episode of "
                f"{self.env.episode_length}"
            )
        unknown = [name for name in self.rivals if name not in RIVALS]
        if unknown or len(set(self.rivals)) < len(self.rivals) or not (self.rivals or self.model):
            raise ValueError(f"rivals must be different ones of {', '.join(RIVALS)}, got {', '.join(self.rivals)}")
