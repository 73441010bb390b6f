"""Settings of the commands that train, fit, draw from and describe a neural market, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from tyro import conf

from vecenv.distributed.settings import ProcessSettings, world_size
from vecenv.learn.settings.run import check_shards
from vecenv.market.bar_form import FormSettings
from vecenv.system.settings import Count, CountFromZero, Items, Positive, Seed, When, Within
from vecenv.worldmodel.network.settings import Architecture, CnnGruSettings, TransformerSettings
from vecenv.worldmodel.training.settings import BarStageSettings, TrainingSettings

NOTHING = "none"
"""Initial weights drawn at random."""

SHARDS = 4
"""Shards of a run that several processes may share, if no number is given. With eight the days that all read before
theirs cost most of the time."""


class Defaults(NamedTuple):
    """Default size of the optimisation: maximum number of updates, and peak learning rate."""

    steps: int
    learning_rate: float


FINE_TUNING, FROM_NOTHING = Defaults(480, 5e-5), Defaults(300, 1e-3)
"""Chosen on ten US stocks of 2009 to 2018 that the shipped weights have not seen."""


@dataclass(frozen=True, kw_only=True)
class ModelTraining(FormSettings):
    """What the settings of all commands that train a neural market have, beside their files of bars."""

    out: Path
    """File to write, ending in .safetensors; until it is whole, what there is of it is kept beside it."""
    embargo: CountFromZero = 20
    """Embargo: last training days that are left out, so that training and validation share no days."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""


@dataclass(frozen=True)
class TrainSettings(ModelTraining, ProcessSettings):
    """Train a neural market on daily bars."""

    market: Annotated[tuple[Path, ...], Items(1)]
    """Files of bars, one named market each, all trained in one network."""
    names: tuple[str, ...] = ()
    """Names of the markets, by default those of the files."""
    train_end: tuple[str, ...] = ()
    """Last date of training of each market, by default after 70% of its days."""
    validation_end: tuple[str, ...] = ()
    """Last date of validation of each market, by default after 80% of its days; later days are not read."""
    resume: bool = False
    """Resume an interrupted run with the same settings."""
    architecture: Architecture = "joint"
    """Architecture: this project's network, the chain conditioned on the day's running mean only, or the published
    networks of independent symbols, as baselines."""
    network: TransformerSettings = field(default_factory=TransformerSettings)
    """Sizes of the transformer, if the architecture has one."""
    cnn_gru: CnnGruSettings = field(default_factory=CnnGruSettings)
    """Sizes of the convolutions and the recurrent unit of cnn-gru."""
    training: Annotated[TrainingSettings, conf.arg(name="")] = field(default_factory=TrainingSettings)
    """Optimisation."""
    bars: BarStageSettings = field(default_factory=BarStageSettings)
    """Second stage, of gap, wicks and volume alone on the trunk as it is."""
    label: str | None = None
    """Word about the weights in their record, such as judged or shipped."""

    def num_shards(self) -> int:
        return self.training.shards or (SHARDS if self.shared() else 1)

    def num_ranks(self) -> int:
        """As the base; ValueError also if the shards cannot be shared evenly by them."""
        count = super().num_ranks()
        check_shards(self.num_shards(), max(world_size(), count), self.training.days, "days")
        return count


@dataclass(frozen=True)
class FitSettings(ModelTraining):
    """Fit a neural market to daily bars of your own, from the weights that are shipped."""

    market: Path
    """File of bars, which becomes the only market of the model."""
    init: str = "shipped"
    """Weights to start from: shipped, judged, a checkpoint, or none for random ones."""
    name: str | None = None
    """Name of the market, by default that of the file."""
    train_end: str | None = None
    """Last date of training, by default that before the last 15% of the days, at least 60."""
    validation_end: str | None = None
    """Last date of validation, by default the last one; later days are not read. No days are kept for a test."""
    steps: Count | None = None
    """Maximum number of updates, by default 480, and 300 from nothing."""
    learning_rate: Positive | None = None
    """Peak learning rate, by default 5e-5, and 1e-3 from nothing."""
    evaluate_every: Count = 40
    """Updates between validations."""
    patience: Count = 8
    """Validations without improvement before training stops."""
    seed: Seed = 0
    """Seed of the draws, and of random weights."""

    def training(self) -> TrainingSettings:
        usual = FROM_NOTHING if self.init == NOTHING else FINE_TUNING
        return TrainingSettings(
            steps=usual.steps if self.steps is None else self.steps,
            learning_rate=usual.learning_rate if self.learning_rate is None else self.learning_rate,
            evaluate_every=self.evaluate_every,
            patience=self.patience,
            seed=self.seed,
        )


@dataclass(frozen=True)
class GenerateSettings(ProcessSettings):
    """Draw days from a neural market, after a history or from nothing."""

    out: Path
    """Folder for the paths, one Parquet file each, with preceding and drawn days: a market for the other commands."""
    model: str = "shipped"
    """Weights by name, shipped or judged, or a checkpoint of ``vecenv worldmodel train`` or ``fit``."""
    history: Path | None = None
    """File of bars that the paths continue; without it they start without history."""
    market: str | None = None
    """Name of one of the model's markets, by default the only one, or without history the first."""
    symbols: tuple[str, ...] = ()
    """Symbols to draw jointly, by default all of the history, or all known to the model."""
    start: str | None = None
    """Last used date of the history, by default its last."""
    paths: Count = 4
    """Number of paths."""
    days: Count = 250
    """Days drawn per path."""
    keep: CountFromZero = 250
    """Days written before the drawn ones, as warm-up of indicators; without history at most 252."""
    drawdown: str | None = None
    """Draw only paths on which the equal-weight market falls as far from its peak, such as 30%, with their weights."""
    temperature: Positive = 1.0
    """Temperature: factor on the size of every move; 1 draws from the model."""
    bf16: bool = False
    """Multiply in bfloat16 in the trunk, for CPUs with AVX512-BF16 or AMX, and GPUs; other paths than in float32."""
    seed: Annotated[int, Within(0, 2**64, below=True)] = 0
    """Seed of the draws."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    form: Annotated[FormSettings, conf.arg(name=""), When("history", told="--history")] = field(
        default_factory=FormSettings
    )
    """Form of the file of the history."""


@dataclass(frozen=True)
class DescribeSettings:
    """Describe a neural market: its weights, and the data that they were trained on."""

    model: str = "shipped"
    """Weights by name, shipped or judged, or a checkpoint."""
