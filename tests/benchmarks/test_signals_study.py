"""The study of scores: its figures by hand, the mean of its members, and a small run from a file to its table."""

from __future__ import annotations

import json
import math
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from vecenv.benchmarks.learning.signals.report import cell
from vecenv.benchmarks.learning.signals.study import MeanOfMembers, StudyConfig, _without_nan, main
from vecenv.benchmarks.learning.signals.tails import figures_of, over_days, over_seeds
from vecenv.benchmarks.learning.signals.variants import BATCHES, STRENGTHS
from vecenv.market.synthetic import synthetic_bars


def test_figures_by_hand():
    """Forty days: the best and the worst two days are the tails of 5%."""
    generator = torch.Generator().manual_seed(0)
    returns = 0.01 * torch.randn(40, generator=generator, dtype=torch.float64)
    equal, held = returns * 0.5, torch.full((40,), 0.001, dtype=torch.float64)
    told, values = figures_of(returns, equal, held), sorted(returns.tolist())
    worst, best = sum(values[:2]) / 2, sum(values[-2:]) / 2
    assert told.cvar == pytest.approx(100 * worst) and told.rachev == pytest.approx(best / abs(worst))
    above = (returns - equal).numpy()
    assert told.information == pytest.approx(math.sqrt(252) * above.mean() / above.std(ddof=1))
    growth = 100 * 252 / 40 * np.log1p(returns.numpy()).sum()
    assert told.growth == pytest.approx(growth)
    assert told.excess == pytest.approx(growth - 100 * 252 * math.log(1.001))
    wealth = np.cumprod(np.r_[1.0, 1 + returns.numpy()])
    assert told.drawdown == pytest.approx(100 * (1 - wealth / np.maximum.accumulate(wealth)).max())


def test_an_account_like_equal_weights_has_no_information_ratio():
    returns = torch.tensor([0.01, -0.02, 0.005], dtype=torch.float64)
    assert figures_of(returns, returns, returns).information == 0.0


def test_intervals_over_seeds_are_student_s():
    """Of 1, 2, 3 the mean is 2 and the margin 4.303 / sqrt(3)."""
    told = over_seeds([1.0, 2.0, 3.0])
    assert told.mean == 2.0 and told.high - 2.0 == pytest.approx(4.303 / math.sqrt(3), rel=0.02)
    alone = over_seeds([1.5])
    assert alone.mean == 1.5 and math.isnan(alone.low)
    assert cell(_without_nan(alone), 1, bounds=True) == "1.5" and cell(told._asdict(), 0, bounds=False) == "2"


def test_intervals_over_days_hold_the_mean_of_a_year():
    excess = torch.full((210,), 0.0001, dtype=torch.float64)
    told = over_days(excess)
    assert told.mean == pytest.approx(2.52) and told.low == pytest.approx(2.52) and told.high == pytest.approx(2.52)


def test_every_variant_has_a_name_of_its_own_and_a_control():
    names = [name for batch in BATCHES for name in batch.variants()]
    assert len(set(names)) == len(names)
    for name in names:
        if name.startswith("PPO") and ("rule" in name or "shown" in name) and "shuffled" not in name:
            assert f"{name}, shuffled" in names
    assert {f"PPO, rule {100 * strength:g}%" for strength in STRENGTHS} < set(names)


def test_the_mean_of_members_is_of_those_of_one_rule_within_the_bounds():
    options = {"num_paths": 1, "num_days": 40, "symbols": 1}
    env = vecenv.make(
        "signals", 2, market_options=options, features=(), action="shares", episode_length=5, compile=False
    )

    class Members:
        parameters = ()

        def act(self, parameters, observation, key, elapsed):
            assert torch.equal(observation[0], observation[1]) and len(observation) == len(key[0]) == len(elapsed) == 4
            return (torch.tensor([[0.2], [0.6], [-3.0], [0.0]]),)

    assert MeanOfMembers(Members(), 2).act(env)[:, 0].tolist() == pytest.approx([0.4, -0.5])


@pytest.mark.long
def test_a_small_study(tmp_path):
    """Scores that tell the next day's return: who follows them earns, shuffled or not they are told apart."""
    bars = synthetic_bars(1, 420, ("AA", "BB", "CC"), seed=1).ohlcv[0].numpy()
    dates = np.busday_offset(np.datetime64("2019-01-01"), np.arange(420), roll="forward")
    close = bars[..., 3]
    ahead = np.zeros_like(close)
    # From a file with dates alone a score counts on the next day, for the return after it.
    ahead[:-2] = close[2:] / close[1:-1] - 1
    table = pd.DataFrame(bars.reshape(-1, 5), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "date", np.repeat(dates, 3))
    table.insert(1, "symbol", np.tile(np.array(["AA", "BB", "CC"], dtype=object), 420))
    table["sentiment"] = np.clip(3 + 200 * ahead, 1, 5).reshape(-1)
    table.to_parquet(tmp_path / "scored.parquet")
    config = StudyConfig(
        tmp_path / "scored.parquet", start=date(2019, 3, 1), train_end=date(2020, 3, 2), end=date(2020, 8, 1),
        seeds=2, num_envs=4, total_frames=256, compile=False, output=tmp_path,
    )  # fmt: skip
    told = main(config)["variants"]
    assert told == json.loads((tmp_path / "signals-study.json").read_text())["variants"]
    assert told["follow sentiment"]["excess"]["mean"] > 20
    moved, control = (told[f"equal weight, rule 10%{end}"]["excess"]["mean"] for end in ("", ", shuffled"))
    assert moved > control and moved > told["equal weight"]["excess"]["mean"]
    assert told["buy and hold"]["excess"]["mean"] == 0.0
    names = {name for batch in BATCHES for name in batch.variants()}
    assert names < set(told) and all(len(told[name]["by_seed"]) == 2 for name in names)
    assert len(told["PPO, no scores: mean of all"]["by_seed"]) == 1
    for learner in ("PPO", "CPPO"):
        shown = f"{learner}, sentiment shown, rule 10%"
        assert told[shown]["by_seed"] != told[f"{shown}, shuffled"]["by_seed"]
