"""Settings of language models as agents, and of learning."""

from __future__ import annotations

from dataclasses import dataclass

from vecenv.learn.grpo_config import GroupConfig
from vecenv.text.tool_calls import Form


@dataclass(frozen=True)
class AnswerConfig:
    """How a language model is asked, and how it answers."""

    context_tokens: int = 2048
    """Tokens that a conversation may hold, the answer included. When a day no longer fits, the oldest leave until half
    of them are free."""
    history_days: int | None = None
    """Earlier days that stay in the conversation at most, by default all that fit; with 0 every day is asked alone."""
    answer_tokens: int = 32
    """Longest answer."""
    temperature: float = 1.0
    """Of the draws; 0 takes the likeliest token."""
    thinking: bool = False
    """Let models think first whose chat template can turn that off."""
    tools: tuple[str, ...] = ()
    """Tools that may be called before a day's answer, families of them, or all; by default none."""
    tool_form: Form = "json"
    """How tools are called: json or react."""
    turns: int = 4
    """With tools: turns of a day, the answer among them."""

    def __post_init__(self) -> None:
        for name, least in (
            ("context_tokens", 2),
            ("answer_tokens", 1),
            ("history_days", 0),
            ("temperature", 0),
            ("turns", 1),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.answer_tokens >= self.context_tokens:
            raise ValueError(
                f"answer_tokens {self.answer_tokens} must be fewer than context_tokens {self.context_tokens}"
            )

    def inapplicable(self) -> dict[str, str]:
        """Return what each setting belongs to that does nothing beside the others."""
        return {} if self.tools else dict.fromkeys(("tool_form", "turns"), "tools")


@dataclass(frozen=True)
class LanguageConfig(AnswerConfig, GroupConfig):
    """Settings of GRPO for language models."""

    total_frames: int = 50_000
    """Days of all language agents together; rounded up to whole rollouts."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 4
    """Parts of a batch, of equal numbers of episodes; one optimiser step each."""
    learning_rate: float = 1e-6
    """Step size of AdamW. A thousandth of what suits a tiny model suits a pre-trained one."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    tokens_at_once: int = 16_384
    """Tokens of a forward pass in training, but at least one episode; gradients of a minibatch are added up."""
    lora_rank: int = 0
    """Rank of low-rank adapters (LoRA) that are trained in the place of the model; 0 trains the model."""
    groups: int | None = None
    """Groups that the language model plays, the first ones; by default all."""
    others: str = "random"
    """Who plays the other groups: a baseline of the task, or the folder or checkpoint of a run."""

    def __post_init__(self) -> None:
        AnswerConfig.__post_init__(self)
        GroupConfig.__post_init__(self)
        self._check_least(1, "tokens_at_once")
        self._check_least(0, "lora_rank")
        if self.groups is not None:
            self._check_least(1, "groups")
        self._check_positive("temperature")

    def inapplicable(self) -> dict[str, str]:
        """Return what each setting belongs to that does nothing beside the others."""
        names = AnswerConfig.inapplicable(self) | GroupConfig.inapplicable(self)
        return names | ({"others": "a number of groups that the model plays"} if self.groups is None else {})
