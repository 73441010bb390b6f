"""Settings of the comparison of simulators by what PPO learns in them."""

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
"""What fits each simulator beside the neural one to the training days; None for these days themselves."""


@dataclass(frozen=True)
class TrainOnSyntheticConfig:
    """Settings of the comparison."""

    history: Path
    """File of bars: training days, validation days and test days."""
    model: Path | None = None
    """Checkpoint of ``vecenv worldmodel train``; without it the other simulators alone."""
    market: str | None = None
    """Name of the market among those of the model, by default its only one."""
    temperature: float = 1.0
    """Factor on the size of every move of the model; 1 draws from the model."""
    train_end: str | None = None
    """Last date of training, by default the model's."""
    validation_end: str | None = None
    """Last date before the test, by default the model's."""
    test_end: str | None = None
    """Last date of the test, by default the file's."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, by default the first of the file that have a bar on every day."""
    max_symbols: int = 30
    """How many of them."""
    rivals: tuple[str, ...] = tuple(RIVALS)
    """Simulators beside the neural one: FHS, bootstrap, replay. Without a model the first is compared with the rest."""
    paths: int = 256
    """Paths of each simulator, and as many others to score policies on."""
    starts: int = 8
    """Training days that they go on from."""
    days: int = 250
    """Days of a path, of which the first 60 are the warm-up."""
    seeds: int = 5
    """PPO runs on each simulator; run s has the same first weights and episodes on all."""
    seed: int = 0
    """Of the first run, of the paths and of the test episodes."""
    num_envs: int = 256
    """Sub-environments that train at once."""
    episodes: int = 256
    """Test episodes, and as many at home."""
    compile: bool = True
    """Compile rollouts and gradients."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Where policies are trained; paths are drawn on the CPU."""
    env: StockTradingConfig = field(default_factory=lambda: StockTradingConfig(action="weights", episode_length=60))
    """Rules. Target weights mean the same at every level of prices."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(total_frames=1_000_000))
    """Settings of the learner."""
    runs: Path | None = None
    """Folder for the learners' checkpoints: a command that was interrupted, given again, goes on from them."""
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
