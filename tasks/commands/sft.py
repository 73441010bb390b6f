"""Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from vecenv.core.checks import device_named
from vecenv.language.config import AnswerConfig
from vecenv.language.supervised import Messages, SupervisedConfig, checked_messages
from vecenv.language.tiny_config import TINY_RATE, TinyConfig
from vecenv.system.files import WriteLock, why_unwritten
from vecenv.system.settings import CountFromZero, Seed, Settings, When
from vecenv.tasks.experiment.language_training import NEEDED, model_place
from vecenv.tasks.experiment.options import early_options
from vecenv.tasks.experiment.progress import StepBar, wide_console, working

TINY = "tiny"
"""Name of the model that is built without downloads."""


@dataclass(frozen=True)
class SftOptions:
    """The option that determines which settings apply."""

    model: str = TINY
    """Folder of a model, a name on the Hugging Face hub, or tiny for a new small model."""


@dataclass(frozen=True)
class SftSettings(Settings, SftOptions):
    """Settings of ``vecenv sft``."""

    data: tuple[Path, ...] = field(kw_only=True)
    """Files of conversations, JSON Lines with messages."""
    folder: Path | None = None
    """Folder for the model, runs/sft-TIME by default."""
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

    @classmethod
    def defaults(cls, args: Sequence[str]) -> SftSettings:
        """Return the defaults of the command line, without data files."""
        return cls(data=tyro.MISSING, model=early_options(SftOptions, args).model)


def main(settings: SftSettings) -> dict[str, Any]:
    """Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""
    folder = settings.folder or Path("runs") / f"sft-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} exists already and is no folder")
    with WriteLock(folder) as lock:
        if any(path != lock.file for path in folder.iterdir()):
            raise ValueError(f"{folder} exists already and is not empty")
        return _run(settings, folder)


def _run(settings: SftSettings, folder: Path) -> dict[str, Any]:
    device = device_named(settings.device)
    conversations = read_conversations(settings.data)
    try:
        from vecenv.language.models import chat_format, load_model, longest_context, save_model
        from vecenv.language.supervised_training import fine_tune, segments_of
        from vecenv.language.tiny_model import tiny_model
    except ImportError as error:
        raise ImportError(NEEDED) from error
    console, training = wide_console(), settings.training
    if settings.model == TINY:
        if training.learning_rate is None:
            training = replace(training, learning_rate=TINY_RATE)
        with working(console, "Building the tiny model …"):
            texts = (said["content"] for one in conversations for said in one)
            model, tokenizer = tiny_model(texts, settings.tiny, settings.seed, device)
    else:
        with working(console, f"Loading {settings.model} …"):
            model, tokenizer = load_model(model_place(settings.model), device, settings.lora_rank)
    longest = longest_context(model)
    if longest is not None and settings.language.context_tokens > longest:
        raise ValueError(f"context_tokens {settings.language.context_tokens} are more than the model's {longest}")
    chat = chat_format(model, tokenizer, settings.language.thinking)
    with working(console, "Reading the conversations …"):
        segments = segments_of(conversations, chat, settings.language)
    contexts = [segment for own in segments for segment in own]
    size = sum(parameter.numel() for parameter in model.parameters())
    told = {
        "conversations": len(conversations),
        "contexts": len(contexts),
        "answers": sum(len(set(segment.turn)) for segment in contexts),
        "tokens": sum(len(segment.tokens) for segment in contexts),
        "longest_context": max(len(segment.tokens) for segment in contexts),
        "parameters": size,
    }
    console.print(
        f"Data      {told['conversations']:,} conversations, {told['answers']:,} answers, {told['tokens']:,} tokens in "
        f"{told['contexts']:,} contexts, the longest of {told['longest_context']:,}",
        soft_wrap=True,
    )
    console.print(f"Model     {settings.model}, {size:,} parameters, {len(tokenizer):,} tokens", soft_wrap=True)
    with StepBar(console, "loss") as bar:
        losses = fine_tune(model, segments, chat.pad, training, settings.seed, bar.show)
    try:
        save_model(model, tokenizer, folder)
    except OSError as error:
        raise OSError(f"{folder}: {why_unwritten(error)}; no model has been written") from error
    (folder / "training.json").write_text(json.dumps(told | losses, indent=2) + "\n")
    console.print(
        f"Loss      {losses['loss']:.3f} nats a token in the last epoch, {losses['test_loss']:.3f} on "
        f"conversations of the test"
    )
    console.print(f"Written to {folder}", soft_wrap=True)
    return {"folder": str(folder), **told, **losses}


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
