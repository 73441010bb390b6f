"""Supervised fine-tuning on conversations, in the contexts that the agent sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, Segment, ask_all
from vecenv.language.log_probs import flattened, packed, segment_log_probs
from vecenv.language.shard_gradients import add_gradients
from vecenv.language.supervised import Messages, SupervisedConfig
from vecenv.language.supervised_checkpoint import SupervisedCheckpoint
from vecenv.learn.checkpoints import digest_of
from vecenv.learn.shards import Shards

RATE = 1e-5
"""Default learning rate of pre-trained models."""


def segments_of(conversations: Sequence[Messages], chat: ChatFormat, config: AnswerConfig) -> list[list[Segment]]:
    """Return conversations as the contexts of an agent, with answers marked as sampled.

    Raises:
        ValueError: a question does not fit into the budget, or an answer is longer than ``answer_tokens``.
    """
    systems = [said[0]["content"] if said[0]["role"] == "system" else "" for said in conversations]
    turns = [said[1:] if said[0]["role"] == "system" else said for said in conversations]
    grown = [Conversation(chat, config, system) for system in systems]
    for number in range(0, max(map(len, turns)), 2):
        going_on = [place for place, said in enumerate(turns) if number < len(said)]
        asked = [turns[place][number]["content"] for place in going_on]
        ask_all([grown[place] for place in going_on], asked, [number // 2] * len(asked))
        answers = chat.answers([turns[place][number + 1]["content"] for place in going_on])
        for place, answer in zip(going_on, answers, strict=True):
            if len(answer) > config.answer_tokens:
                raise ValueError(f"an answer has {len(answer)} tokens, more than answer_tokens {config.answer_tokens}")
            grown[place].answered(answer, [0.0] * len(answer))
    return [conversation.segments for conversation in grown]


def fine_tune(
    model: PreTrainedModel,
    segments: Sequence[Sequence[Segment]],
    pad: int,
    config: SupervisedConfig,
    seed: int = 0,
    on_step: Callable[[int, int, float], None] | None = None,
    shards: int = 1,
    checkpoint: SupervisedCheckpoint | None = None,
) -> dict[str, float]:
    """Train a model on the answers of conversations, in place, parameters with ``requires_grad`` only.

    Args:
        model: of several ranks the same on all.
        segments: of each conversation, on all ranks those of all.
        pad: token.
        config: settings.
        seed: of the order.
        on_step: called after every optimiser step with its number, the total number, and its mean loss.
        shards: parts of each batch, of which each rank takes as many, and whose gradients are added in their order.
        checkpoint: to go on from, and to write.

    Returns:
        ``loss``, the mean over the last epoch, and ``test_loss``, NaN where there is no test: mean negative
        log-likelihood of the answers, in nats per token.

    Raises:
        ValueError: there are no training conversations, ranks have other weights, or the checkpoint does not fit.
        FloatingPointError: a loss is not finite.
    """
    tested = round(config.test_fraction * len(segments))
    learned, kept = flattened(segments[: len(segments) - tested]), flattened(segments[len(segments) - tested :])
    if not learned:
        raise ValueError("there is no conversation to learn from")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = RATE if config.learning_rate is None else config.learning_rate
    optimiser = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    each = -(-len(learned) // config.batch_size)
    steps, step, together = config.epochs * each, 0, Shards(shards)
    losses: list[float] = []
    if checkpoint is not None:
        step, losses = checkpoint.load(model, optimiser)
    if together.ranks.count > 1:
        together.ranks.same({"step": str(step), "model": digest_of(dict(model.named_parameters()))})
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(config.epochs):
        order = torch.randperm(len(learned), generator=generator)
        # Without those that the checkpoint is after.
        for batch in order.split(config.batch_size)[max(step - epoch * each, 0) :]:
            if step == epoch * each:
                losses = []
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 - step / steps)
            chosen = [learned[place] for place in batch.tolist()]
            made = add_gradients(
                parameters, together, _losses(model, chosen, pad, config.tokens_at_once, together, True)
            )
            loss = _added(made, together)
            if not math.isfinite(loss):
                raise FloatingPointError(f"step {step + 1}: the loss is not finite")
            torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            losses.append(loss)
            if checkpoint is not None:
                checkpoint.after_step(step, losses, model, optimiser)
            if on_step:
                on_step(step, steps, loss)
    measured = math.nan
    if kept:
        with torch.no_grad():
            measured = _added([*_losses(model, kept, pad, config.tokens_at_once, together, False)], together)
    return {"loss": sum(losses) / len(losses), "test_loss": measured}


def _losses(
    model: PreTrainedModel, segments: Sequence[Segment], pad: int, most: int, shards: Shards, learn: bool
) -> Iterator[float]:
    """Yield each own shard's part of the mean loss over all answer tokens, and optionally accumulate its gradient."""
    count = sum(len(segment.drawn) for segment in segments)
    places = torch.arange(len(segments)).tensor_split(shards.count)[shards.first : shards.first + shards.own]
    for own in ([segments[place] for place in part.tolist()] for part in places):
        total = 0.0
        for part in packed([len(segment.tokens) for segment in own], most):
            shards.ranks.watch()
            loss: Tensor = -segment_log_probs(model, [own[place] for place in part], pad, 1.0).sum() / count
            if learn:
                loss.backward()
            total += float(loss.detach())
        yield total


def _added(losses: Sequence[float], shards: Shards) -> float:
    """Return the sum of the losses of all shards, given those of the own ones."""
    (total,) = shards.total([[torch.tensor(loss, dtype=torch.float64)] for loss in losses])
    return float(total)
