"""Supervised fine-tuning on conversations, in the contexts that the agent sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, Segment, ask_all
from vecenv.language.log_probs import flattened, packed, segment_log_probs
from vecenv.language.supervised import Messages, SupervisedConfig

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
) -> dict[str, float]:
    """Train a model on the answers of conversations, in place, parameters with ``requires_grad`` only.

    ``on_step`` is called after every optimiser step with its number, the total number, and its mean loss.

    Returns:
        ``loss``, the mean over the last epoch, and ``test_loss``, NaN where there is no test: mean negative
        log-likelihood of the answers, in nats per token.

    Raises:
        ValueError: there are no training conversations.
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
    steps, step = config.epochs * each, 0
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.epochs):
        losses: list[float] = []
        for batch in torch.randperm(len(learned), generator=generator).split(config.batch_size):
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 - step / steps)
            loss = _loss(model, [learned[place] for place in batch.tolist()], pad, config.tokens_at_once, True)
            if not math.isfinite(loss):
                raise FloatingPointError(f"step {step + 1}: the loss is not finite")
            torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            losses.append(loss)
            if on_step:
                on_step(step, steps, loss)
    with torch.no_grad():
        measured = _loss(model, kept, pad, config.tokens_at_once, False) if kept else math.nan
    return {"loss": sum(losses) / len(losses), "test_loss": measured}


def _loss(model: PreTrainedModel, segments: Sequence[Segment], pad: int, most: int, learn: bool) -> float:
    """Return the mean loss over all answer tokens, and optionally accumulate its gradient."""
    count, total = sum(len(segment.drawn) for segment in segments), 0.0
    for part in packed([len(segment.tokens) for segment in segments], most):
        loss: Tensor = -segment_log_probs(model, [segments[place] for place in part], pad, 1.0).sum() / count
        if learn:
            loss.backward()
        total += float(loss.detach())
    return total
