"""The study of scores: its figures by hand, the mean of its members, and a small run from a file to its table."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from vecenv.benchmarks.learning.signals.price_scores import (
    WINDOW,
    fifths,
    log_returns,
    volatility_of_month,
    with_scores_of_prices,
)
from vecenv.benchmarks.learning.signals.report import COLUMNS, cell, study_page
from vecenv.benchmarks.learning.signals.study import MeanOfMembers, StudyConfig, _without_nan, main
from vecenv.benchmarks.learning.signals.tails import figures_of, over_days, over_seeds
from vecenv.benchmarks.learning.signals.variants import BATCHES, STRENGTHS
from vecenv.market.bars import Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape


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


def test_the_page_has_a_row_for_every_variant_and_a_cell_for_every_figure():
    figure, alone = {"mean": 1.5, "low": -1.0, "high": 4.0}, {"mean": 2.0, "low": None, "high": None}
    told = dict.fromkeys(COLUMNS, figure) | {"excess": alone}
    market = {"source": "a.parquet", "symbols": 3, "training": ["a", "b"], "test": ["c", "d"], "scored": 0.5}
    config = {"seeds": 2, "total_frames": 10_000, "num_envs": 4}
    page = study_page({"market": market, "config": config, "variants": {"one": told, "other": told}})
    heading, _, *rows = [line for line in page.splitlines() if line.startswith("|")]
    assert [row.split(" | ")[0] for row in rows] == ["| one", "| other"]
    assert all(row.count("|") == heading.count("|") == len(COLUMNS) + 2 for row in rows)
    assert "10,000 steps" in page and "50% of its days" in page
    assert rows[0] == "| one | 1.50 (-1.00 … 4.00) | 1.50 | 1.50 | 1.50 | 1.5 | 1.5 | 2.0 | 1.5 (-1.0 … 4.0) |"


@pytest.mark.parametrize("score", BATCHES)
def test_every_variant_has_a_name_of_its_own_and_a_control(score):
    names = [name for batch in BATCHES[score] for name in batch.variants()]
    assert len(set(names)) == len(names)
    for name in names:
        told = name.partition(", ")[2]
        if told != "no scores" and not told.endswith(("shuffled", "published")):
            assert f"{name}, shuffled" in names
    assert {f"PPO, rule {100 * strength:g}%" for strength in STRENGTHS} < set(names)


def tape_of_changes(changes: list[list[float]]) -> MarketTape:
    """A market of the given log-returns per day and symbol, all tradable."""
    close = 100 * torch.cat([torch.zeros(1, len(changes[0])), torch.tensor(changes)]).cumsum(0).exp()
    ohlcv = torch.stack([close] * 4 + [torch.full_like(close, 1e6)], -1)[None]
    days = np.busday_offset("2020-01-01", np.arange(len(close)), roll="forward")
    names = tuple(f"S{place}" for place in range(len(changes[0])))
    return MarketTape.from_bars(Bars(names, days, ohlcv), features=(), tick_size=1e-4)


def test_the_risk_of_prices_is_the_fifth_by_volatility_of_the_month_before_or_ahead():
    """Five symbols whose returns grow by their place, until the order turns after forty days."""
    sizes = [0.001, 0.002, 0.003, 0.004, 0.005]
    changes = [[(-1) ** day * size for size in sizes] for day in range(40)]
    changes += [[(-1) ** day * size for size in reversed(sizes)] for day in range(40)]
    tape = tape_of_changes(changes)
    past, ahead = (with_scores_of_prices(tape, "risk", span).panels for span in ("past", "ahead"))
    rising, falling = torch.arange(1.0, 6.0), torch.arange(5.0, 0.0, -1.0)
    assert torch.equal(past.scores[0, WINDOW, :, 1], rising) and torch.equal(past.scores[0, 40, :, 1], rising)
    assert torch.equal(past.scores[0, 40 + WINDOW, :, 1], falling) and torch.equal(past.scores[0, -1, :, 1], falling)
    assert torch.equal(ahead.scores[0, 40 - WINDOW, :, 1], rising) and torch.equal(ahead.scores[0, 40, :, 1], falling)
    # Without a whole month there is none, and of sentiment there is none at all.
    for panels, whole in ((past, slice(WINDOW, None)), (ahead, slice(0, 81 - WINDOW))):
        expected = torch.zeros(81, 5, dtype=torch.bool)
        expected[whole] = True
        assert torch.equal(panels.known[0, ..., 1], expected) and not panels.known[..., 0].any()
        assert bool((panels.scores[~panels.known] == 3).all())
    # A month's volatility is the root mean square of 21 returns.
    half = (WINDOW // 2 * 0.001**2 + (WINDOW - WINDOW // 2) * 0.005**2) / WINDOW
    assert float(volatility_of_month(log_returns(tape))[0, 40 + WINDOW - WINDOW // 2, 0]) == pytest.approx(
        half**0.5, rel=1e-3
    )


def test_sentiment_of_prices_is_the_fifth_by_the_return_of_the_month_before_or_of_the_day_ahead():
    """Five symbols of steady returns, the better the later, but for one day on which the first one gains most."""
    changes = [[0.001 * place for place in range(5)] for _ in range(50)]
    changes[30][0] = 0.01
    tape = tape_of_changes(changes)
    past, ahead = (with_scores_of_prices(tape, "sentiment", span).panels for span in ("past", "ahead"))
    rising = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert past.scores[0, WINDOW, :, 0].tolist() == rising and not past.known[0, :WINDOW].any()
    # The gain of day 31 is 0.01 / 21 a day of its month: the first symbol is above the first steady rise alone.
    assert past.scores[0, 31, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert (
        ahead.scores[0, 30, :, 0].tolist() == [5.0, 1.0, 2.0, 3.0, 4.0] and ahead.scores[0, 31, :, 0].tolist() == rising
    )
    assert not ahead.known[0, -1].any() and bool(ahead.known[0, :-1, :, 0].all()) and not ahead.known[..., 1].any()


@pytest.mark.parametrize(("score", "reach"), [("sentiment", 1), ("risk", WINDOW)])
def test_past_scores_know_no_later_price_and_those_ahead_no_earlier(score, reach):
    changes = (0.01 * torch.randn(90, 4, generator=torch.Generator().manual_seed(3))).tolist()
    other = [[-2 * value for value in row] if 45 <= day < 60 else row for day, row in enumerate(changes)]
    other[50][0] = 0.3
    past, ahead = (
        [with_scores_of_prices(tape_of_changes(each), score, span).panels.scores for each in (changes, other)]
        for span in ("past", "ahead")
    )
    # Returns of days 46 to 60 differ.
    assert torch.equal(past[0][:, :46], past[1][:, :46]) and not torch.equal(*past)
    same = [*range(45 + 1 - reach), *range(60, 91)]
    assert torch.equal(ahead[0][:, same], ahead[1][:, same]) and not torch.equal(*ahead)


def test_fifths_are_of_the_symbols_that_have_a_value():
    nan = math.nan
    values = torch.tensor([[[0.4, 0.1, nan, 0.3, 0.2], [nan] * 5, [0.2, 0.1, nan, nan, nan]]], dtype=torch.float64)
    assert fifths(values)[0].tolist() == [[5, 1, 3, 4, 2], [3, 3, 3, 3, 3], [4, 2, 3, 3, 3]]


def test_a_market_without_the_score_is_named(tmp_path):
    config = small(tmp_path, score="risk")
    with pytest.raises(ValueError, match="no day of the training has a score of risk; --scores-of past"):
        main(config)


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


def small(folder: Path, **settings: object) -> StudyConfig:
    """Settings of a small study; its market, written into the folder, has sentiment that tells the next return."""
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
    table.to_parquet(folder / "scored.parquet")
    return StudyConfig(
        folder / "scored.parquet", start=date(2019, 3, 1), train_end=date(2020, 3, 2), end=date(2020, 8, 1),
        seeds=2, num_envs=4, total_frames=256, compile=False, output=folder, **settings,
    )  # fmt: skip


def check_told(told: dict[str, Any], score: str) -> None:
    """Every variant has its seeds, and what learns from scores learns something else from shuffled ones."""
    assert told["buy and hold"]["excess"]["mean"] == 0.0
    names = {name for batch in BATCHES[score] for name in batch.variants()}
    assert names < set(told) and all(len(told[name]["by_seed"]) == 2 for name in names)
    assert len(told["PPO, no scores: mean of all"]["by_seed"]) == 1
    for learner in ("PPO", "CPPO"):
        shown = f"{learner}, {score} shown, rule 10%"
        assert told[shown]["by_seed"] != told[f"{shown}, shuffled"]["by_seed"]


@pytest.mark.nightly
def test_a_small_study(tmp_path):
    """Scores that tell the next day's return: who follows them earns, shuffled or not they are told apart."""
    result = main(small(tmp_path))
    told = result["variants"]
    # Every day up to the split trains.
    assert result["market"]["training"][1] == "2020-03-02" < result["market"]["test"][0]
    assert told == json.loads((tmp_path / "signals-study-sentiment-documents.json").read_text())["variants"]
    assert (tmp_path / "signals-study-sentiment-documents.md").read_text() == study_page(result)
    followed, control = (told[f"follow sentiment{end}"]["excess"]["mean"] for end in ("", ", shuffled"))
    assert followed > 20 and followed > control + 10
    moved, control = (told[f"equal weight, rule 10%{end}"]["excess"]["mean"] for end in ("", ", shuffled"))
    assert moved > control and moved > told["equal weight"]["excess"]["mean"]
    check_told(told, "sentiment")


@pytest.mark.nightly
def test_a_small_study_of_risk(tmp_path):
    """Each rule of risk reaches what is learned: rewards, rewards as published, and trajectories."""
    told = main(small(tmp_path, score="risk", scores_of="ahead"))["variants"]
    assert told == json.loads((tmp_path / "signals-study-risk-ahead.json").read_text())["variants"]
    check_told(told, "risk")
    learned = [
        told[name]["by_seed"]
        for name in ("PPO, no scores", "PPO, rule 10%", "PPO, rule 10%, published", "CPPO, no scores", "CPPO, rule 10%")
    ]
    assert all(one != other for place, one in enumerate(learned) for other in learned[:place])
    assert "avoid risk" in told and "avoid risk, shuffled" in told and "equal weight, rule 10%" not in told
