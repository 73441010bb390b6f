"""Loading of checkpoints for evaluation, with their market and the dates of their training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vecenv.market.dates import day_of
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import model_file
from vecenv.worldmodel.sampling.neural import NeuralMarket


def judged_model(
    model: str | Path | None,
    market: str | None,
    temperature: float,
    train_end: str | None,
    validation_end: str | None,
    device: torch.device | str = "cpu",
) -> tuple[NeuralMarket | None, str, str]:
    """Return a model to evaluate, None if none is named, and the last dates of training and validation.

    By default the market is the model's only one, and the dates are the model's.

    Raises:
        ValueError: the market is unknown, the model was trained on later days, or no dates are known.
        FileNotFoundError: there is no such checkpoint.
    """
    if bool(train_end) != bool(validation_end):
        raise ValueError("give both train_end and validation_end, or neither")
    if model is None:
        if not train_end or not validation_end:
            raise ValueError("without a model, train_end and validation_end are needed")
        return None, train_end, validation_end
    path = model_file(model)
    saved = load_network(path, device)
    neural = NeuralMarket.of_file(path, saved.network, market, temperature)
    trained = saved.record.get("sources", {}).get(neural.market, {})
    if "validation_end" not in trained and not train_end:
        raise ValueError(f"{path} does not say when its training ended; give train_end and validation_end")
    train_end, validation_end = train_end or trained["train_end"], validation_end or trained["validation_end"]
    last = day_of(validation_end, "validation_end")
    if "validation_end" in trained and last < np.datetime64(trained["validation_end"]):
        raise ValueError(
            f"{path} was chosen on days up to {trained['validation_end']}: the test cannot start after {validation_end}"
        )
    return neural, train_end, validation_end
