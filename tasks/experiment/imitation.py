"""Language models that imitate conversations: those of files, or of the agents of a task, to start a training from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from vecenv.language.config import AnswerConfig
from vecenv.language.supervised import Messages, SupervisedConfig
from vecenv.language.tiny_config import TINY, TINY_RATE, TinyConfig
from vecenv.learn.conversations import recorded_conversations
from vecenv.learn.shards import ranks
from vecenv.system.files import why_unwritten
from vecenv.tasks.experiment.comparison import chosen_agents
from vecenv.tasks.experiment.kinds import ImitatedStart
from vecenv.tasks.experiment.language_training import NEEDED, model_place
from vecenv.tasks.experiment.progress import StepBar, working
from vecenv.tasks.experiment.splits import FIRST
from vecenv.text.interaction import Episode, Interaction

if TYPE_CHECKING:
    from vecenv.language.supervised_checkpoint import SupervisedCheckpoint


def imitate(
    conversations: Sequence[Messages],
    folder: Path,
    console: Console,
    training: SupervisedConfig,
    language: AnswerConfig,
    tiny: TinyConfig,
    seed: int,
    device: torch.device,
    model: str = TINY,
    lora_rank: int = 0,
    shards: int = 1,
    kept: SupervisedCheckpoint | None = None,
) -> dict[str, Any]:
    """Train a model on conversations, write it and ``training.json`` into a folder, and return the latter's content.

    Of several ranks all train it, and the first writes.

    Args:
        conversations: at least one.
        folder: exists.
        console: shows the data, the model and the progress.
        training: settings of the training.
        language: answer settings, by which conversations are cut into contexts.
        tiny: sizes of the model if it is `TINY`.
        seed: of the shuffling, and of a tiny model's initial weights.
        device: of the model.
        model: folder of a model, a name on the Hugging Face hub, or `TINY`.
        lora_rank: rank of the trained adapters of a model that is loaded; 0 trains the full model.
        shards: parts of each batch that ranks share.
        kept: checkpoint of the training, which is removed when the model is written.

    Raises:
        ImportError: ``transformers`` is missing.
        ValueError: a conversation does not fit into the context, or there is no such model.
        OSError: the model could not be written.
    """
    try:
        from vecenv.language.models import chat_format, load_model, longest_context, save_model
        from vecenv.language.supervised_training import fine_tune, segments_of
        from vecenv.language.tiny_model import tiny_model
    except ImportError as error:
        raise ImportError(NEEDED) from error
    if model == TINY:
        if training.learning_rate is None:
            training = replace(training, learning_rate=TINY_RATE)
        with working(console, "Building the tiny model …"):
            texts = (said["content"] for one in conversations for said in one)
            loaded, tokenizer = tiny_model(texts, tiny, seed, device)
    else:
        with working(console, f"Loading {model} …"):
            loaded, tokenizer = load_model(model_place(model), device, lora_rank, seed)
    longest = longest_context(loaded)
    if longest is not None and language.context_tokens > longest:
        raise ValueError(f"context_tokens {language.context_tokens} are more than the model's {longest}")
    chat = chat_format(loaded, tokenizer, language.thinking)
    with working(console, "Reading the conversations …"):
        segments = segments_of(conversations, chat, language)
    contexts = [segment for own in segments for segment in own]
    size = sum(parameter.numel() for parameter in loaded.parameters())
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
    console.print(f"Model     {model}, {size:,} parameters, {len(tokenizer):,} tokens", soft_wrap=True)
    with StepBar(console, "loss") as bar:
        losses = fine_tune(loaded, segments, chat.pad, training, seed, bar.show, shards, kept)

    def write() -> str:
        try:
            save_model(loaded, tokenizer, folder)
        except OSError as error:
            raise OSError(f"{folder}: {why_unwritten(error)}; no model has been written") from error
        (folder / "training.json").write_text(json.dumps(told | losses, indent=2) + "\n")
        if kept is not None:
            kept.path.unlink(missing_ok=True)
        return ""

    ranks().done_by_first(write)
    tested = losses["test_loss"]
    of_test = "" if math.isnan(tested) else f", {tested:.3f} on conversations of the test"
    console.print(f"Loss      {losses['loss']:.3f} nats a token in the last epoch{of_test}")
    return told | losses


def check_start(task: str, start: ImitatedStart) -> None:
    """Raise ValueError, before any work, of teachers that a task does not have."""
    if not chosen_agents(task, start.teachers):
        raise ValueError(f"task {task!r} names no teachers to imitate: give --teachers or --model")


def imitated_start(
    world: Interaction,
    start: ImitatedStart,
    folder: Path,
    console: Console,
    language: AnswerConfig,
    seed: int,
    device: torch.device,
) -> None:
    """Make the model that a run starts from: a tiny one that imitates the task's teachers on training episodes."""
    names = chosen_agents(world.task.name, start.teachers)
    episodes = [Episode(seed, FIRST["train"] + row) for row in range(world.num_rows)]
    told = f"{', '.join(names)} in {len(episodes):,} training episodes each"
    console.print(f"Start     a tiny model imitates {told}, and learns from there", soft_wrap=True)
    agents = {name: world.task.agents[name]() for name in names}
    with working(console, f"{', '.join(names)} play …"):
        said = dict(recorded_conversations(world, agents, episodes, language.in_training.turn_rules))
    conversations = [record.messages() for records in said.values() for record in records]
    if not conversations:
        raise ValueError(f"the world failed in all {len(episodes):,} episodes of each teacher")
    # Mixed, so that the test of the imitation has conversations of every teacher.
    order = torch.randperm(len(conversations), generator=torch.Generator().manual_seed(seed)).tolist()
    mixed = [conversations[place] for place in order]
    folder.mkdir(exist_ok=True)
    imitate(mixed, folder, console, start.imitation, language, start.tiny, seed, device)
