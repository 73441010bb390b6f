"""Settings of the two stages of training, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vecenv.system.settings import Count, CountFromZero, NotNegative, Positive, Seed, Settings, Share

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """Settings of the optimisation.

    Attributes:
        steps: maximum number of updates.
        days: days per chunk.
        learning_rate: peak rate, after the warm-up; cosine decay to a hundredth.
        warm_up: share of warm-up steps.
        weight_decay: of AdamW.
        alone_weight: loss weight of the densities of returns unconditional on the day's other symbols.
        shape_weight: loss weight of the densities of gap, wicks and volume.
        average_decay: of the exponential moving average of the weights, which is validated and kept.
        evaluate_every: updates between validations.
        patience: validations without improvement before training stops.
        seed: of weights and draws.
        bf16: bfloat16 products in the trunk during training; by default on a GPU only. Validation is in float32.
        shards: equal parts of a chunk's days, each of which one process holds; part of the result. By default 1, and 4
            where several processes train.
    """

    steps: Count = 1500
    days: Count = 128
    learning_rate: Positive = 1e-3
    warm_up: Share = 0.1
    weight_decay: NotNegative = 0.05
    alone_weight: NotNegative = 0.5
    shape_weight: NotNegative = 0.3
    average_decay: Share = 0.99
    evaluate_every: Count = 100
    patience: Count = 5
    seed: Seed = 0
    bf16: bool | None = None
    shards: Count | None = None

    def on(self, device: torch.device) -> TrainingSettings:
        return replace(self, bf16=device.type == "cuda" if self.bf16 is None else self.bf16)


@dataclass(frozen=True)
class BarStageSettings(Settings):
    """Settings of the second stage, of gap, wicks and volume alone.

    Attributes:
        steps: updates; 0 leaves the stage out.
        learning_rate: peak rate; cosine decay to a hundredth.
        stock_days: of an update, drawn from all training days.
        evaluate_every: updates between validations, the best of which is kept.
    """

    steps: CountFromZero = 4000
    learning_rate: Positive = 2e-3
    stock_days: Count = 1200
    evaluate_every: Count = 500
