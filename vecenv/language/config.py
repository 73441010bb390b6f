"""Settings of language-model agents and of their GRPO training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

from vecenv.learn.settings.grpo import GroupConfig
from vecenv.learn.settings.run import Frames
from vecenv.system.settings import Count, CountFromZero, NotNegative, Positive, Settings, When, Within
from vecenv.text.dialogue import TextRules
from vecenv.text.tool_calls import Form


@dataclass(frozen=True)
class AnswerConfig(Settings):
    """Context, sampling and tool settings of a language-model agent."""

    context_tokens: Annotated[int, Within(2)] = 2048
    """Context length in tokens, the answer included. When a day no longer fits, the oldest days are dropped until half
    of it is free."""
    history_days: CountFromZero | None = None
    """Maximum number of earlier days kept in the conversation, by default all that fit; 0 keeps none."""
    answer_tokens: Count = 32
    """Maximum length of an answer, in tokens."""
    temperature: NotNegative = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    thinking: bool = False
    """Enable reasoning in models whose chat template can switch it off."""
    tools: tuple[str, ...] = ()
    """Tools that may be called before a day's answer: names, families, or all, by default none; further words choose,
    draw, hold out or fail them, see the page of the tools."""
    tool_form: Annotated[Form, When("tools")] = "json"
    """Tool-call format: json or react."""
    turns: Annotated[Count, When("tools")] = 4
    """With tools: maximum turns per day, the answer included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer_tokens >= self.context_tokens:
            raise ValueError(
                f"answer_tokens {self.answer_tokens} must be fewer than context_tokens {self.context_tokens}"
            )

    @property
    def in_training(self) -> Self:
        """These settings without the tools that are held out of training."""
        from vecenv.tools.offers import in_training

        return replace(self, tools=in_training(self.tools))

    @property
    def turn_rules(self) -> TextRules:
        """Rules of turns for an agent that weighs rewards and grades itself."""
        return TextRules(grade=0.0, steps=1.0, tools=self.tools, tool_form=self.tool_form, turns=self.turns)


@dataclass(frozen=True)
class LanguageConfig(AnswerConfig, GroupConfig):
    """Settings of GRPO for language models."""

    total_frames: Frames = 50_000
    """Environment steps of all language agents together; rounded up to whole rollouts."""
    epochs: Count = 1
    """Epochs over each batch."""
    minibatches: Count = 4
    """Minibatches per batch, of equal numbers of episodes; one optimiser step each."""
    learning_rate: Positive = 1e-6
    """Learning rate of AdamW. Pre-trained models need about a thousandth of a tiny model's."""
    max_grad_norm: Positive = 1.0
    """Gradient clipping norm."""
    tokens_at_once: Count = 16_384
    """Tokens per forward pass in training, at least one episode; gradients accumulate over a minibatch."""
    lora_rank: CountFromZero = 0
    """Rank of the trained low-rank adapters (LoRA); 0 trains the full model."""
    groups: Count | None = None
    """Number of groups that the language model plays, the first ones; by default all."""
    others: Annotated[str, When("groups", told="a number of groups that the model plays")] = "random"
    """Agent of the remaining groups: a baseline of the task, or the folder or checkpoint of a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            raise ValueError("temperature must be positive, got 0")
        if self.groups is not None and self.shards > 1:
            raise ValueError(f"groups needs shards 1, got {self.shards}: in several shards the model plays all groups")
        if self.renew_reference and self.lora_rank:
            raise ValueError("renew_reference needs lora_rank 0: with adapters the reference is the model without them")
