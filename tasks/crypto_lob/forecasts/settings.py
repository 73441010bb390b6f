"""Settings of a forecasting network and its training, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vecenv.system.settings import Count, CountFromZero, Fraction, NotNegative, Positive, Seed, Settings

Kind = Literal["gru", "convolution"]


@dataclass(frozen=True)
class FitSettings(Settings):
    """Network and its training."""

    network: Kind = "gru"
    """A gated recurrent unit, or causal convolutions."""
    hidden: Count = 32
    """Width of the network."""
    dropout: Fraction = 0.1
    """Share of numbers that are dropped in training."""
    epochs: CountFromZero = 20
    """Passes over the rows at most."""
    patience: Count = 3
    """Passes without a better error on the rows to judge by, after which training ends."""
    batch: Count = 32
    """Windows of 256 rows of an update."""
    learning_rate: Positive = 1e-3
    """Learning rate of AdamW."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    seed: Seed = 0
    """Seed of weights, windows and dropout."""
