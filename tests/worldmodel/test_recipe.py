"""Numbers that the shipped weights and the published figures were made with: a change needs new ones of these."""

from dataclasses import asdict
from importlib import import_module

import pytest
import torch

from vecenv.market.bars import Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.commands.training_run import bars_digest
from vecenv.worldmodel.network.checkpoint import SHIPPED, load_network
from vecenv.worldmodel.network.settings import NetworkSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.training.settings import BarStageSettings, TrainingSettings

CONSTANTS = {
    "training.drift": {
        **{"DAYS": 40, "TRIAL": 2e-4, "TRIAL_SHARE": 4, "LIMIT": 0.002},
        "EFFORTS": {1: (1024, 1280), 5: (512, 512), 25: (64, 256), 100: (32, 128)},
    },
    "training.coupling": {"SYMBOLS": 25, "CHOICES": 4, "PATHS": 16, "FEWEST": 5, "TRIAL": 1.05, "LIMITS": (0.8, 1.25)},
    "training.correlations": {
        "HALF_LIVES": (70.0, 100.0, 140.0, 200.0, 300.0, 500.0, 1000.0),
        "SHRINKAGES": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
        **{"CHOICES": 2, "FEWEST": 5, "TOLERANCE": 5e-4},
    },
    "training.correlation_levels": {
        **{"SHARES": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), "HORIZON": 40, "EVERY": 20},
    },
    "data.correlation_level": {
        **{"LEVEL_DECAY": 0.5 ** (1 / 45), "LEVEL_SHARES": (0.4, 0.5, 0.5, 0.2), "LEVEL_STRIDE": 5},
        **{"LEVEL_LIMITS": (0.0, 0.95), "PRIOR_CORRELATION": 0.3, "VALUE_LIMIT": 4.0},
    },
    "training.bar_stage": {
        **{"CHOICES": 8, "CHOICE_STEPS": 100, "READ_BEFORE": 60, "LEAST_DAYS": 16},
        **{"WEIGHT_DECAY": 0.02, "AVERAGE_DECAY": 0.995},
    },
    "training.fit": {"SUBSET_STEPS": 12, "SUBSET_SIZES": {3: 0.1, 10: 0.2, 25: 0.3, 50: 0.25}, "READ_BEFORE": 20},
    "sampling.stationary": {"WARM_UP": 252, "BURN_IN": 120, "PASTS": 32, "LEAST_DAYS": 120, "PRIOR_DAYS": 60},
    "sampling.generator": {"EPISODE": 252, "RANDOM_PASTS": 16, "CANDIDATES": 8},
    "sampling.splitting": {"KEPT": 4, "LEAST_PROBABILITY": 1e-12, "NORMAL_QUANTILE": 1.96},
    "sampling.training_market": {"OFTEN": 0.95, "YEAR": 252, "YEARS": 5, "FIRST_DAY": 60},
    "data.features": {"SLOW_DECAY": 0.99, "MARKET_DECAY": 0.94, "LOWEST_VOLATILITY": 1e-3, "VOLUME_LIMIT": 6.0},
    "network.sinh_arcsinh": {"LARGEST_MOVE": 16.0},
    "network.bar_heads": {"WICK_LOCATION": -1.0, "LEAST_OWN": 1e-3, "MATRICES": (0, 1, 1, 2)},
    "data.correlation": {
        **{"DECAY": 0.995, "SHRINKAGE": 0.1, "SHRINKAGE_SYMBOLS": 25, "LOWEST_EIGENVALUE": 0.02},
        **{"CORRELATION_STRIDE": 10, "BAR_SHRINKAGE": 0.05},
    },
    "network.return_shocks": {
        **{"SCALES": (0.85, 0.925, 1.1, 1.25, 1.5, 2.0), "MOVES": (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)},
    },
    "validation.returns": {
        **{"DRAWDOWN_DAYS": 40, "MEMORY_DAYS": 20, "WORST_DAYS": 0.05, "TAIL_SHARE": 0.01, "WIDE_TAIL_SHARE": 0.025},
        **{"ACF_LAGS": 20, "LEVERAGE_LAGS": 10, "LEVERAGE_MEAN_LAGS": 5},
    },
    "validation.classifiers": {
        **{"TREES": 100, "LEAF": 20, "GRU_HIDDEN": 64, "GRU_LAYERS": 2, "GRU_STEPS": 200, "WEIGHED_BATCH": 256},
        **{"LSTM_HIDDEN": 32, "LSTM_EPOCHS": 20, "BATCH": 64, "LEARNING_RATE": 2e-3},
    },
    "validation.discriminator_features": {"LAGGED_DAYS": 20, "LAGGED_STRIDE": 5, "PANEL_STOCKS": 25},
    "validation.trial": {"HORIZON": 40, "CONTEXT": 60},
    "validation.figures": {"HORIZONS": (1, 5, 20), "NLL_BLOCK": 20, "REAL_DRAWS": 300},
    "validation.picture": {"FAN_LEVELS": (0.05, 0.25, 0.5, 0.75, 0.95), "BAND_DRAWS": 200},
    "baselines.garch": {"FREEDOM_LIMITS": (2.05, 200.0), "FIT_STEPS": 40, "FIT_TOLERANCE": 0.01},
    "baselines.resampled": {"VOLUME_PULL": 0.1, "EIGENVALUE_FLOOR": 0.01, "MEAN_BLOCK": 20},
}


def test_constants_and_settings_are_those_of_the_shipped_weights():
    for name, constants in CONSTANTS.items():
        module = import_module(f"vecenv.worldmodel.{name}")
        assert {constant: getattr(module, constant) for constant in constants} == constants, name
    # But for the length of the training on all days, the seed that was chosen, and shards: one, as it had.
    saved = load_network(SHIPPED)
    record = saved.record["settings"] | {"steps": 1500, "seed": 0, "bf16": None, "shards": None}
    assert asdict(TrainingSettings()) == record and asdict(BarStageSettings()) == saved.record["bars"]
    assert saved.network.settings == NetworkSettings()
    # The digest of data in published records.
    bars = Bars(("A", "B"), business_days(2), torch.arange(1.0, 21.0, dtype=torch.float64).reshape(1, 2, 2, 5))
    assert bars_digest(bars) == "66a4adfb41c5338c"


@pytest.mark.parametrize(
    ("market", "bars", "densities"),
    [
        (
            "india",
            [11.7329, 11.7985, 11.6995, 11.7589, 45.3559],
            [3.39222, 3.44075, -2.32554, 648.481, 650.183, -522.451],
        ),
        ("us", [11.7323, 11.7971, 11.689, 11.7479, 45.3888], [3.19237, 3.25961, -2.14105, 646.155, 648.601, -381.922]),
    ],
)
def test_shipped_weights_say_and_draw_what_they_always_did(market, bars, densities):
    """Logarithms of the bars of the second day after a history, and densities of its last day and of all, summed."""
    model, history = NeuralMarket(load_network(SHIPPED).network, market), synthetic_bars(1, 80, 3, seed=2)
    assert model.generate(history, 1, 2, seed=5)[0, 1].log().sum(0).tolist() == pytest.approx(bars, rel=0, abs=2e-4)
    read = model._densities(history)
    found = [float(part[-1, -1]) for part in read] + [float(part[1:].nansum()) for part in read]
    assert found == pytest.approx(densities, rel=1e-4, abs=1e-3)
