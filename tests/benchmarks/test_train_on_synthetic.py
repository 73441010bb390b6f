"""Train on synthetic, test on real: nothing of the test reaches training, and figures are what they claim to be."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from vecenv.benchmarks.realism import train_on_synthetic
from vecenv.benchmarks.realism import transfer as transfer_module
from vecenv.benchmarks.realism.fixed_policies import (
    ConstantMix,
    InverseVolatility,
    MinimumVariance,
    Trend,
    fixed_policies,
)
from vecenv.benchmarks.realism.simulated_markets import (
    WARM_UP,
    complete_symbols,
    generated,
    real_test,
    replay,
    start_days,
)
from vecenv.benchmarks.realism.train_on_synthetic import TrainOnSyntheticConfig, trial_of
from vecenv.benchmarks.realism.train_on_synthetic_report import interval_json, to_markdown, verdicts
from vecenv.benchmarks.realism.transfer import Arena, Simulator, transfer
from vecenv.benchmarks.realism.transfer_statistics import difference_over_seeds, kendall_tau, rank_agreement
from vecenv.learn.metrics import Interval, Summary
from vecenv.learn.ppo import PPOConfig
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.stock_trading.agents import BuyAndHold, Hold
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.baselines.resampled import StationaryBootstrap
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings

# Whole runs of the command.
pytestmark = pytest.mark.nightly

DAYS, TRAIN, VALIDATION = 520, 360, 400
CONFIG = StockTradingConfig(action="weights", episode_length=6, features=("rsi_30",))
FREE = replace(CONFIG, commission=0.0, whole_shares=False, dtype="float64")


def write_market(path, change=None):
    """Write four symbols, the prices of whose test days are multiplied by random factors of a seed."""
    bars = synthetic_bars(1, DAYS, 4, seed=3)
    table = bars.ohlcv[0].clone()
    if change is not None:
        noise = np.random.default_rng(change).uniform(0.95, 1.05, (DAYS - VALIDATION, 4, 1))
        table[VALIDATION:, :, :4] *= torch.from_numpy(noise)
    frame = pd.DataFrame(table.reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    frame.insert(0, "symbol", np.tile(bars.symbols, DAYS))
    frame.insert(0, "date", np.repeat(bars.dates, 4))
    frame.sort_values(["symbol", "date"]).to_parquet(path, index=False)
    return path, [str(bars.dates[day - 1]) for day in (TRAIN, VALIDATION)]


def tiny(path, ends, **settings):
    values = {
        "train_end": ends[0],
        "validation_end": ends[1],
        "rivals": ("bootstrap", "replay"),
        "paths": 4,
        "starts": 2,
        "days": 80,
        "seeds": 2,
        "num_envs": 8,
        "episodes": 12,
        "compile": False,
        "env": CONFIG,
        "ppo": PPOConfig(num_steps=8, total_frames=64, minibatches=2, epochs=1, hidden=(8,)),
        "output": None,
    }
    return TrainOnSyntheticConfig(path, **(values | settings))


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    return write_market(tmp_path_factory.mktemp("market") / "prices.parquet")


@pytest.fixture(scope="module")
def trial(market):
    return trial_of(tiny(*market))[1]


@pytest.fixture(scope="module")
def run(market, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = tiny(*market, output=folder / "out", runs=folder / "runs")
    return config, train_on_synthetic.main(config)


def test_the_whole_comparison_is_written(run):
    config, result = run
    written = config.output / "train-on-synthetic-prices.json"
    assert json.loads(written.read_text()) == json.loads(json.dumps(result))
    assert written.with_suffix(".md").read_text() == to_markdown(result)
    assert result["judged"] == "bootstrap" and list(result["simulators"]) == ["bootstrap", "replay"]
    assert list(result["differences"]) == ["replay"]
    assert result["train"][1] == config.train_end and result["test"][0] > config.validation_end
    assert len(result["policies"]) >= 20
    for found in result["simulators"].values():
        assert len({each["actor_sha256"] for each in found["runs"]}) == config.seeds
        for place in ("home", "real"):
            means = [each[place]["cumulative_return"] for each in found["runs"]]
            assert math.isclose(found[place]["cumulative_return"]["mean"], sum(means) / len(means))
        home, real, optimism = (found[name]["sharpe"]["mean"] for name in ("home", "real", "optimism"))
        assert math.isclose(optimism, home - real)
    own, other = (result["simulators"][name]["real"]["sharpe"]["mean"] for name in ("bootstrap", "replay"))
    assert math.isclose(result["differences"]["replay"]["sharpe"]["mean"], own - other)


@pytest.fixture
def few_policies(monkeypatch):
    """Score two fixed policies alone, where the others add nothing but time."""
    for module in (train_on_synthetic, transfer_module):
        monkeypatch.setattr(module, "fixed_policies", lambda: {"cash": Hold(), "buy and hold": BuyAndHold()})


def test_test_days_and_order_of_runs_change_no_policy(run, tmp_path, few_policies):
    config, result = run
    path, _ = write_market(tmp_path / "prices.parquet", change=1)
    changed = train_on_synthetic.main(
        replace(config, history=path, rivals=("replay", "bootstrap"), output=None, runs=None)
    )
    for name, found in result["simulators"].items():
        other = changed["simulators"][name]
        assert [each["actor_sha256"] for each in other["runs"]] == [each["actor_sha256"] for each in found["runs"]]
        assert other["home"] == found["home"] and other["real"] != found["real"]


def test_an_interrupted_comparison_goes_on_from_its_checkpoints(run, few_policies):
    config, result = run
    resumed = train_on_synthetic.main(replace(config, rivals=("replay",), output=None))["simulators"]["replay"]
    found = result["simulators"]["replay"]
    for name in ("home", "real", "optimism"):
        assert resumed[name] == found[name]
    digests = [[each["actor_sha256"] for each in one["runs"]] for one in (resumed, found)]
    assert digests[0] == digests[1]
    with pytest.raises(ValueError, match="trained with other hidden"):
        train_on_synthetic.main(replace(config, ppo=replace(config.ppo, hidden=(4,)), output=None))


def test_simulators_are_drawn_from_training_days_alone(trial):
    assert all(day < TRAIN for day in start_days(trial, 20, 0)) and len(set(start_days(trial, 20, 0))) == 20
    assert start_days(trial, 3, 0) != start_days(trial, 3, 1)
    seen = []

    class Recorder(StationaryBootstrap):
        def generate_after(self, bars, days, *rest):
            seen.extend(bars.dates[day] for day in (*days, len(bars.dates) - 1))
            return super().generate_after(bars, days, *rest)

    tape = generated(trial, Recorder.fit(trial.train), CONFIG, 4, 2, 100, 0)
    assert (tape.num_paths, tape.num_days, tape.first_day) == (4, 100, WARM_UP)
    assert seen[:2] == [trial.train.dates[day] for day in start_days(trial, 2, 0)]
    assert len(seen) == 3 and max(seen) == trial.train.dates[-1]
    assert replay(trial, CONFIG).dates[-1] == trial.train.dates[-1]
    with pytest.raises(ValueError, match="111 training days have a bar of every symbol"):
        start_days(trial, 200, 0)


def test_test_episodes_lie_in_the_test_days_and_know_the_days_before(trial):
    tape = real_test(trial, CONFIG)
    assert tape.dates[tape.first_day] == trial.bars.dates[trial.first] and tape.first_day == WARM_UP
    real = Arena(tape, CONFIG, 64, 0)
    assert int(real.env.state.start_day.min()) >= WARM_UP
    real.play(ConstantMix(1.0, 1))
    assert int(real.env.state.day.max()) <= tape.num_days - 1


def test_a_simulator_that_is_the_real_market_ranks_as_it_does(trial, market):
    tape = real_test(trial, CONFIG)
    real = Arena(tape, CONFIG, 24, 0)
    found = transfer(tiny(*market, seeds=1, episodes=24), "real", Simulator(tape, tape), real)
    scores = torch.stack([played.returns for played in found.fixed.values()])
    again = torch.stack([real.play(policy).returns for policy in fixed_policies().values()])
    assert torch.equal(scores, again)
    assert rank_agreement(scores, found.blocks, again, real.blocks).mean == pytest.approx(1.0)
    assert rank_agreement(scores, found.blocks, -again, real.blocks).mean == pytest.approx(-1.0)
    assert found.home[0].returns.tolist() == found.real[0].returns.tolist()


def test_a_score_is_what_the_account_earned(trial):
    """Without costs, buy-and-hold earns the mean growth of the closes."""
    arena = Arena(generated(trial, StationaryBootstrap.fit(trial.train), FREE, 4, 2, 100, 0), FREE, 16, 0)
    state, close = arena.env.state.clone(), arena.env.scenario.tape.ohlcv[..., CLOSE].double()
    growth = close[state.path, state.end_day] / close[state.path, state.start_day]
    played = arena.play(BuyAndHold())
    torch.testing.assert_close(played.returns, growth.mean(-1) - 1.0, atol=1e-5, rtol=0)
    assert math.isclose(played.summary.mean["cumulative_return"], float(played.returns.mean()))


def test_costs_lower_scores(trial):
    tape = real_test(trial, FREE)
    free, paid = (Arena(tape, replace(FREE, commission=rate), 16, 0).play(ConstantMix(1.0, 1)) for rate in (0.0, 0.01))
    assert float((free.returns - paid.returns).min()) > 0.005


def test_fixed_policies_know_no_later_day(trial):
    """The orders of the first day are the same whatever comes after it."""
    bars = trial.bars
    day = trial.first
    later = bars.ohlcv.clone()
    later[:, day + 1 :, :, :4] *= torch.linspace(0.5, 2.0, 4, dtype=torch.float64)[:, None]
    config = replace(CONFIG, random_start=False)
    first, second = (
        Arena(real_test(replace(trial, bars=Bars(bars.symbols, bars.dates, ohlcv)), config), config, 2, 0)
        for ohlcv in (bars.ohlcv, later)
    )
    assert int(first.env.state.day[0]) == WARM_UP
    for name, policy in fixed_policies().items():
        assert torch.equal(policy.act(first.env), policy.act(second.env)), name


def returns_of(*symbols):
    """Three returns of each symbol. Shape: (1, 3, K)."""
    return torch.tensor(symbols, dtype=torch.float64).mT[None]


def test_target_weights_follow_their_definitions():
    env = None
    rising, falling = [0.01, 0.02, 0.01], [-0.01, -0.02, -0.01]
    assert Trend(1, 3).weights(env, returns_of(rising, falling)).tolist() == [[0.5, 0.0]]
    calm = InverseVolatility(1, 3).weights(env, returns_of([0.01, -0.01, 0.0], [0.03, -0.03, 0.0]))
    torch.testing.assert_close(calm, torch.tensor([[0.75, 0.25]], dtype=torch.float64))
    returns = torch.randn(1, 60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    returns = returns * torch.tensor([1.0, 2.0, 4.0])
    weights = MinimumVariance(1, 60).weights(env, returns)
    assert math.isclose(float(weights.sum()), 1.0) and weights[0].diff().max() < 0
    assert ConstantMix(0.5, 1).weights(env, returns).tolist() == [[0.5 / 3] * 3]


def summary(mean, without):
    return Summary({"m": mean}, {"m": torch.tensor(without, dtype=torch.float64)})


def test_an_interval_knows_seeds_and_days():
    """Against the formulas: with G = 4 days and S = 2 seeds, and Student's t at Satterthwaite's degrees of freedom."""
    first = [summary(1.0, [1.0, 1.2, 0.8, 1.0]), summary(2.0, [2.0, 2.2, 1.8, 2.0])]
    found = difference_over_seeds(first, None, "m")
    days, seeds = 3 / 4 * 0.08, 0.5 / 2
    freedom = (days + seeds) ** 2 / (days**2 / 3 + seeds**2 / 1)
    margin = stats.t.ppf(0.975, freedom) * math.sqrt(days + seeds)
    # The quantile is an approximation, of few degrees of freedom here.
    assert found == pytest.approx((1.5, 1.5 - margin, 1.5 + margin), rel=0.1)
    assert difference_over_seeds(first, first, "m") == (0.0, 0.0, 0.0)
    unpaired = difference_over_seeds(first, first, "m", paired=False)
    assert unpaired.high > 0.0 and unpaired.high == -unpaired.low
    assert math.isnan(difference_over_seeds([summary(1.0, [1.0, 2.0])], None, "m").low)


def test_a_ranking_is_as_uncertain_as_its_episodes():
    generator = torch.Generator().manual_seed(0)
    quality = torch.arange(20.0)[:, None]
    few, many = (quality + 5 * torch.randn(20, count, generator=generator) for count in (8, 300))
    unsure, sure = (rank_agreement(*2 * (scores, torch.arange(scores.shape[1]))) for scores in (few, many))
    assert unsure.mean == pytest.approx(1.0) and sure.mean == pytest.approx(1.0)
    assert unsure.low < 0.8 < sure.low
    assert math.isnan(rank_agreement(few, torch.zeros(8, dtype=torch.int64), few, torch.arange(8)).low)


def test_kendall_tau_is_that_of_scipy_with_ties():
    first, second = torch.randint(0, 6, (2, 5, 24), generator=torch.Generator().manual_seed(0))
    expected = [stats.kendalltau(one, other).statistic for one, other in zip(first, second, strict=True)]
    assert kendall_tau(first, second).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "met"),
    [(-0.02, 0.01, [True, False]), (0.01, 0.02, [True, True]), (-0.02, -0.01, [False, False])],
)
def test_verdicts_follow_the_interval(low, high, met):
    change = interval_json(Interval((low + high) / 2, low, high))
    tau = {"kendall_tau": interval_json(Interval(0.69, 0.5, 0.8))}
    result = {"judged": "neural", "differences": {"FHS": {"cumulative_return": change}}, "simulators": {"neural": tau}}
    assert [found for _, _, found in verdicts(result)] == [*met, False]


def test_symbols_with_gaps_are_left_out(trial):
    gaps = trial.bars.ohlcv.clone()
    gaps[0, 5, 0] = math.nan
    bars = Bars(trial.bars.symbols, trial.bars.dates, gaps)
    assert complete_symbols(bars, 30).symbols == bars.symbols[1:]
    assert complete_symbols(bars, 2).symbols == bars.symbols[1:3]
    gaps[0, 6] = math.nan
    with pytest.raises(ValueError, match="0 symbols have a bar on every day"):
        complete_symbols(bars, 30)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"paths": 5}, "paths 5 must be a multiple of starts 2"),
        ({"days": 66}, "days 66 must be more than the warm-up of 60 days and an episode of 6"),
        ({"rivals": ("GBM",)}, "rivals must be different ones of FHS, bootstrap, replay, got GBM"),
        ({"rivals": ()}, "rivals must be"),
        ({"seeds": 0}, "seeds must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(market, settings, words):
    with pytest.raises(ValueError, match=words):
        tiny(*market, **settings)


def test_a_neural_market_is_compared_with_the_others(market, tmp_path, few_policies):
    path, ends = market
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    network = MarketNetwork(NetworkSettings(trunk=trunk, markets=("nse",)))
    source = {"train_end": ends[0], "validation_end": ends[1]}
    save_network(tmp_path / "m.safetensors", network, {"sources": {"nse": source}}, {})
    config = tiny(path, (None, None), model=tmp_path / "m.safetensors", rivals=("FHS", "bootstrap", "replay"))
    result = train_on_synthetic.main(config)
    assert result["judged"] == "neural" and list(result["differences"]) == ["FHS", "bootstrap", "replay"]
    assert result["train"][1] == ends[0]
    with pytest.raises(ValueError, match="the test cannot start after"):
        train_on_synthetic.main(replace(config, train_end=ends[0], validation_end=ends[0]))
