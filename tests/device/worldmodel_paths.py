"""The neural market as paths that run on a device: a day, a rollout, a step of training, a tape."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device.trial import Path, Trial
from tests.worldmodel.neural_market import history_of, small_network
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network import return_chain
from vecenv.worldmodel.network.settings import NetworkSettings, TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.rollout import FEWEST_REPEATED
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.training_market import TrainingMarket, split_by_date
from vecenv.worldmodel.training.fit import new_state, train_network
from vecenv.worldmodel.training.settings import TrainingSettings

PATHS, DAYS, SEED = 4, 7, 3
"""Days enough for a new level of correlations."""

# Each device draws what it drops out in its own way.
NETWORK = NetworkSettings(
    TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.0), head=16, markets=("test",)
)
QUICK = TrainingSettings(steps=2, days=32, evaluate_every=2, learning_rate=3e-3, bf16=False)


class _InParts(TorchDispatchMode):
    """Computes a gradient of a CPU's own from the parts that a device's is computed from."""

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        whole = torch.ops.aten.silu_backward.default
        return (whole.decompose if operation is whole else operation)(*arguments, **(keywords or {}))


@contextmanager
def alike(trial: Trial) -> Iterator[None]:
    """Let each device compute as the other does what it rounds in a way of its own.

    A CPU has an attention and a gradient of its own, and draws the numbers of a chain's step with NumPy, whose
    exponential differs from PyTorch's in the last bit. Gradients of many tensors are measured together only where they
    are of PyTorch's own class.
    """
    separately = patch.object(clip_grad, "_has_foreach_support", lambda *_: False)
    without_numpy = patch.object(return_chain, "_light", lambda tensor: tensor)
    in_parts = _InParts() if trial.device == "cpu" else nullcontext()
    with separately, without_numpy, sdpa_kernel(SDPBackend.MATH), in_parts:
        yield


def rollout(trial: Trial) -> None:
    """Draw days one after the other, and days of which the first is drawn as it is, the others by a graph of it."""
    market = NeuralMarket(small_network().to(trial.device), "india")
    with alike(trial):
        with trial.part("starts"):
            starts = market.starts(history_of(3))
        for name, days in (("short rollout", FEWEST_REPEATED - 1), ("rollout", DAYS)):
            with trial.part(name):
                trial.keep(name, market.draw_after(starts, PATHS, days, SEED))


def densities(trial: Trial) -> None:
    market = NeuralMarket(small_network().to(trial.device), "india")
    with alike(trial), trial.part("densities"):
        trial.keep("densities", [market.log_density(history_of(3)), market.joint_log_density(history_of(3))])


def training(trial: Trial) -> None:
    bars = synthetic_bars(1, 120, 4, seed=4)
    dates = bars.dates
    split = split_by_date(dates, str(dates[79]), str(dates[109]), 5, bars.source)
    market = TrainingMarket.from_bars("test", bars, split, trial.device)
    state = new_state(NETWORK, QUICK, trial.device)
    for group in state.optimizer.param_groups:
        # On a GPU the default, whose sums are rounded in another order.
        group["foreach"] = True

    def kept(state, loss):
        trial.keep(f"loss {state.step}", loss)

    with alike(trial), trial.part("training"):
        train_network(state, [market], QUICK, kept, lambda *_: None)
    trial.keep("trained", [dict(state.network.state_dict()), state.average, state.history])


def shipped_tape(trial: Trial) -> None:
    """Make the market that an environment trades on, as each device does."""
    options = MarketOptions(symbols=("AAPL", "MSFT", "JPM"), num_paths=2, num_days=WARM_UP + DAYS, seed=1)
    with trial.part("tape"):
        made = load_market("neural", options, device=trial.device)
    trial.keep("ohlcv", made.ohlcv)
    trial.keep("others", [made.features, made.tradable])


def tape(trial: Trial) -> None:
    with alike(trial):
        shipped_tape(trial)


WORLDMODEL_PATHS: dict[str, Path] = {
    "worldmodel rollout": rollout,
    "worldmodel densities": densities,
    "worldmodel training": training,
    "worldmodel tape": tape,
}
