"""Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from vecenv.distributed.settings import ProcessSettings
from vecenv.language.config import AnswerConfig
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.tiny_config import TINY, TinyConfig
from vecenv.learn.settings.run import check_shards
from vecenv.system.settings import Count, CountFromZero, Seed, When
from vecenv.tasks.experiment.options import early_options
from vecenv.tasks.experiment.settings import SHARDS


@dataclass(frozen=True)
class SftOptions:
    """The option that determines which settings apply."""

    model: str = TINY
    """Folder of a model, a name on the Hugging Face hub, or tiny for a new small model."""


@dataclass(frozen=True)
class SftSettings(ProcessSettings, SftOptions):
    """Settings of ``vecenv sft``."""

    data: tuple[Path, ...] = field(kw_only=True)
    """Files of conversations, JSON Lines with messages."""
    folder: Path | None = None
    """Folder for the model, runs/sft-TIME by default. With the checkpoint of this training it goes on from there."""
    checkpoint_every: CountFromZero = 0
    """Optimiser steps between checkpoints; 0 for none."""
    shards: Count | None = None
    """Equal parts of each batch, whose gradients are added in their order: what is learned is the same on any number of
    processes that divides it. 1 for one process, 8 by default for several."""
    seed: Seed = 0
    """Seed of the shuffling, and of a tiny model's initial weights."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    lora_rank: Annotated[CountFromZero, When("model", unlike=TINY, told="a model that is loaded")] = 0
    """Rank of the trained low-rank adapters (LoRA), merged afterwards; 0 trains the full model."""
    training: Annotated[SupervisedConfig, tyro.conf.arg(name="")] = field(default_factory=SupervisedConfig)
    """Settings of the training."""
    language: AnswerConfig = field(default_factory=AnswerConfig)
    """Answer settings: conversations are cut into the contexts that the agent will see."""
    tiny: Annotated[TinyConfig, When("model", TINY, told="--model tiny")] = field(default_factory=TinyConfig)
    """Sizes of a tiny model."""

    def __post_init__(self) -> None:
        # The defaults of the command line lack the files.
        if self.data is not tyro.MISSING:
            super().__post_init__()

    @property
    def all_shards(self) -> int:
        return self.shards or (SHARDS if self.shared() else 1)

    def num_ranks(self) -> int:
        count = super().num_ranks()
        check_shards(self.all_shards, max(count, 1), self.all_shards, "shards")
        return count

    @classmethod
    def defaults(cls, args: Sequence[str]) -> SftSettings:
        """Return the defaults of the command line, without data files."""
        return cls(data=tyro.MISSING, model=early_options(SftOptions, args).model)


def main(settings: SftSettings) -> dict[str, Any] | None:
    """Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.commands.fine_tuning import fine_tuned

    return fine_tuned(settings)
