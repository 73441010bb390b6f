"""Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.distributed.command import as_started, identity
from vecenv.distributed.settings import ProcessSettings
from vecenv.language.config import AnswerConfig
from vecenv.language.supervised import Messages, SupervisedConfig, checked_messages
from vecenv.language.supervised_checkpoint import SupervisedCheckpoint
from vecenv.language.tiny_config import TinyConfig
from vecenv.learn.settings.run import CHECKPOINT, check_shards
from vecenv.learn.shards import Ranks
from vecenv.system.files import WriteLock
from vecenv.system.settings import Count, CountFromZero, Seed, When
from vecenv.tasks.experiment.imitation import TINY, imitate
from vecenv.tasks.experiment.options import early_options
from vecenv.tasks.experiment.progress import wide_console
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
    with as_started(settings, device_named(settings.device), settings.all_shards) as own:
        folder = Path(own.told_by_first(str(settings.folder or f"runs/sft-{datetime.now():%Y%m%d-%H%M%S}")))
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} exists already and is no folder")
        with WriteLock(folder) if own.number == 0 else nullcontext() as lock:
            checkpoint = folder / CHECKPOINT
            ours = (checkpoint, checkpoint.with_name(f"{CHECKPOINT}.partial"))
            if lock and any(path not in (lock.file, *ours) for path in folder.iterdir()):
                raise ValueError(f"{folder} exists already and is not empty")
            return _run(settings, folder, own)


def _run(settings: SftSettings, folder: Path, own: Ranks) -> dict[str, Any] | None:
    console = wide_console() if own.number == 0 else Console(quiet=True)
    conversations = read_conversations(settings.data)
    data = hashlib.sha256(json.dumps(conversations).encode()).hexdigest()
    without = ("folder", "data", "shards", "checkpoint_every")
    origin = identity(settings, without, data=data, shards=settings.all_shards)
    # Also that the others wait until the first has the folder.
    own.same(origin)
    kept = SupervisedCheckpoint(folder / CHECKPOINT, settings.checkpoint_every, origin)
    told = imitate(
        conversations, folder, console, settings.training, settings.language, settings.tiny, settings.seed,
        device_named(settings.device), settings.model, settings.lora_rank, settings.all_shards, kept,
    )  # fmt: skip
    console.print(f"Written to {folder}", soft_wrap=True)
    return {"folder": str(folder), **told} if own.number == 0 else None


def read_conversations(files: Sequence[Path]) -> list[Messages]:
    """Return the messages of all lines of the files; a line that is none, or no line, is a ValueError."""
    found: list[Messages] = []
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            name = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{name}: not JSON: {error.msg}") from error
            found.append(checked_messages(value.get("messages") if isinstance(value, dict) else None, name))
    if not found:
        raise ValueError(f"{', '.join(map(str, files)) or 'no file'}: there is no conversation")
    return found
