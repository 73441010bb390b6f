"""Discriminator classifiers: boosted trees and recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

LEAF = 20
"""Minimum rows per leaf of the trees, fewer if there are fewer rows than its square."""

GRU_HIDDEN, GRU_LAYERS = 64, 2
GRU_STEPS = 200
"""Gradient steps, independent of the number of windows."""

LSTM_HIDDEN, LSTM_EPOCHS = 32, 20
BATCH = 64
LEARNING_RATE = 2e-3

Classifier = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Trains on inputs (n, ...) and labels (n,), bool, True for generated; predicts labels of other inputs, for a seed."""


class Recurrent(nn.Module):
    """A recurrent network with one logit after the last day."""

    def __init__(self, cell: nn.GRU | nn.LSTM) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.hidden_size, 1)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the logit of being generated. Shape: (n, days, features) -> (n,)."""
        return self.head(self.cell(sequences)[0][:, -1]).squeeze(-1)


def boosting_class() -> type[HistGradientBoostingClassifier]:
    """Return scikit-learn's classifier.

    Raises:
        ImportError: where scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError as error:
        raise ImportError("discriminators need scikit-learn: pip install 'vecenv[validate]'") from error
    return HistGradientBoostingClassifier


def boosting(fit: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify rows by gradient boosting with scikit-learn's settings, with native NaN handling; a `Classifier`."""
    # Early stopping would validate on windows that overlap the training ones; large leaves avoid splits of few rows.
    leaf = min(LEAF, max(1, len(fit) // LEAF))
    classifier = boosting_class()(early_stopping=False, min_samples_leaf=leaf, random_state=seed)
    classifier.fit(fit.numpy(), generated.numpy())
    return torch.from_numpy(classifier.predict(test.numpy()))


def gru(fit: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify sequences by a GRU of two layers with 64 units; a `Classifier`."""
    epochs = -(-GRU_STEPS * BATCH // len(fit))
    return _train_and_classify(
        lambda: nn.GRU(fit.shape[-1], GRU_HIDDEN, GRU_LAYERS, batch_first=True), epochs, fit, generated, test, seed
    )


def lstm(fit: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify sequences by an LSTM with 32 units after 20 epochs; a `Classifier`."""
    return _train_and_classify(
        lambda: nn.LSTM(fit.shape[-1], LSTM_HIDDEN, batch_first=True), LSTM_EPOCHS, fit, generated, test, seed
    )


def _train_and_classify(
    cell: Callable[[], nn.GRU | nn.LSTM], epochs: int, fit: Tensor, generated: Tensor, test: Tensor, seed: int
) -> Tensor:
    target = generated.float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Recurrent(cell())
        order = torch.cat([torch.randperm(len(fit)) for _ in range(epochs)])
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for batch in order.split(BATCH):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(network(fit[batch]), target[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return network(test) > 0
