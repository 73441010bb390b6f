"""Discriminator classifiers: boosted trees and recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

TREES = 100
"""Boosted trees, scikit-learn's default."""

LEAF = 20
"""Minimum rows per leaf of the trees, fewer if there are fewer rows than its square."""

GRU_HIDDEN, GRU_LAYERS = 64, 2
GRU_STEPS = 200
"""Gradient steps, independent of the number of windows."""

WEIGHED_BATCH = 256
"""Sequences per gradient step of classes of different sizes, half of either."""

LSTM_HIDDEN, LSTM_EPOCHS = 32, 20
BATCH = 64
LEARNING_RATE = 2e-3

_TEST_BATCH = 4096

Classifier = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Trains on inputs (n, ...) and labels (n,), bool, True for generated; returns logits of being generated of other
inputs, for a seed."""


class Recurrent(nn.Module):
    """A recurrent network with one logit after the last day."""

    def __init__(self, cell: nn.GRU | nn.LSTM) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.hidden_size, 1)

    def forward(self, sequences: Tensor) -> Tensor:
        return self.head(self.cell(sequences)[0][:, -1]).squeeze(-1)


def boosting_class() -> type[HistGradientBoostingClassifier]:
    """Return scikit-learn's classifier; raise ImportError where that is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError as error:
        raise ImportError("discriminators need scikit-learn: pip install 'vecenv[validate]'") from error
    return HistGradientBoostingClassifier


def boosting(inputs: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify rows by gradient boosting with scikit-learn's settings, with native NaN handling; a `Classifier`.

    The logit less the logarithm of the classes' odds is that of classes of the same size.
    """
    # Early stopping would validate on windows that overlap the training ones; large leaves avoid splits of few rows.
    leaf = min(LEAF, max(1, len(inputs) // LEAF))
    trees = boosting_class()(max_iter=TREES, early_stopping=False, min_samples_leaf=leaf, random_state=seed)
    trees.fit(inputs.numpy(), generated.numpy())
    drawn = int(generated.sum())
    return torch.from_numpy(trees.decision_function(test.numpy())) - math.log(drawn / (len(generated) - drawn))


def gru(inputs: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify sequences by a GRU of two layers with 64 units; a `Classifier`."""
    return _in_epochs(_gru_cell, -(-GRU_STEPS * BATCH // len(inputs)), inputs, generated, test, seed)


def lstm(inputs: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify sequences by an LSTM with 32 units after 20 epochs; a `Classifier`."""
    return _in_epochs(
        lambda features: nn.LSTM(features, LSTM_HIDDEN, batch_first=True), LSTM_EPOCHS, inputs, generated, test, seed
    )


def balanced_gru(inputs: Tensor, generated: Tensor, test: Tensor, seed: int) -> Tensor:
    """Classify sequences by the network of `gru`, in batches of both classes that show each sequence of the larger."""
    classes, half = (inputs[~generated], inputs[generated]), WEIGHED_BATCH // 2
    steps = max(GRU_STEPS, -(-len(classes[1]) // half))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Recurrent(_gru_cell(inputs.shape[-1]))
        drawn = [torch.cat([torch.randperm(len(side)) for _ in range(-(-steps * half // len(side)))])
                 for side in classes]  # fmt: skip
    batches = zip(*(order.split(half) for order in drawn), strict=False)
    target = (torch.arange(2 * half) >= half).float()
    _train(
        network,
        ((torch.cat([side[at] for side, at in zip(classes, places, strict=True)]), target)
         for places in islice(batches, steps)),
    )  # fmt: skip
    with torch.no_grad():
        return torch.cat([network(part) for part in test.split(_TEST_BATCH)])


def _in_epochs(
    cell: Callable[[int], nn.GRU | nn.LSTM], epochs: int, inputs: Tensor, generated: Tensor, test: Tensor, seed: int
) -> Tensor:
    target = generated.float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Recurrent(cell(inputs.shape[-1]))
        order = torch.cat([torch.randperm(len(inputs)) for _ in range(epochs)])
    _train(network, ((inputs[batch], target[batch]) for batch in order.split(BATCH)))
    with torch.no_grad():
        return network(test)


def _gru_cell(features: int) -> nn.GRU:
    return nn.GRU(features, GRU_HIDDEN, GRU_LAYERS, batch_first=True)


def _train(network: Recurrent, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for sequences, target in batches:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(network(sequences), target).backward()
        optimizer.step()
