"""Training paths that are drawn anew at fixed updates, and random subsets of their symbols."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import settings_on
from vecenv.core.env import VecEnv
from vecenv.market import load
from vecenv.market.bars import VOLUME
from vecenv.market.load import generator_of
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.tasks.commands.fresh_paths import HEADROOM, SEED_STRIDE, FreshPaths, first_round
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.stock_trading.config import StockTradingConfig

CONFIG = StockTradingConfig(features=("rsi_30",), episode_length=10, hmax=10)
MARKET = MarketSettings(market="random_walk", symbols=("A", "B"), num_paths=5, num_days=120, device="cpu")


def made(num_envs: int = 16, every: int = 2, config=CONFIG, task: str = "stock_trading") -> tuple[VecEnv, FreshPaths]:
    settings, tape = first_round(MARKET, config)
    env = vecenv.make(task, num_envs, market=settings.training(tape), compile=False, config=config)
    return env, FreshPaths(settings, config, env, every)


def closes(settings: MarketSettings) -> torch.Tensor:
    return settings.training(settings.tape(CONFIG)).price_ticks().flatten(0, 1)


@pytest.mark.parametrize("num_envs", [4, 16])
def test_rounds_of_paths_begin_at_fixed_updates(num_envs):
    env, fresh = made(num_envs)
    first = env.scenario.shared["close"].clone()
    rounds = []
    for update in range(5):
        env.rollout(3, break_when_any_done=False)
        running = env.rows.elapsed.clone()
        places = {name: tensor.data_ptr() for name, tensor in env.scenario.shared.items()}
        fresh.before_update(update)
        # In place, so that nothing is compiled anew.
        assert places == {name: tensor.data_ptr() for name, tensor in env.scenario.shared.items()}
        rounds.append(env.scenario.shared["close"].clone())
        assert bool((env.rows.elapsed == 0).all()) == (update in (2, 4))
        assert update in (2, 4) or torch.equal(env.rows.elapsed, running)
    expected = [closes(replace(fresh.settings, market_seed=number * SEED_STRIDE)) for number in range(3)]
    assert torch.equal(rounds[0], first) and torch.equal(first, expected[0])
    for update, close in enumerate(rounds):
        assert torch.equal(close, expected[update // 2])
    assert not torch.equal(expected[0], expected[1]) and not torch.equal(expected[1], expected[2])


def test_a_run_that_resumes_within_a_round_or_at_its_start_has_its_paths():
    """In the middle of a round nothing restarts: the episodes are those of the checkpoint."""
    env, fresh = made()
    for update in range(5):
        fresh.before_update(update)
    for update, restarted in ((4, True), (5, False)):
        resumed, again = made()
        resumed.rollout(3, break_when_any_done=False)
        assert again.due(update) and not again.due(1)
        again.before_update(update)
        assert torch.equal(resumed.scenario.shared["close"], env.scenario.shared["close"]) and again.round == 2
        assert bool((resumed.rows.elapsed == 0).all()) == restarted


def test_later_rounds_may_have_higher_prices(monkeypatch):
    """All rounds count in one tick; prices up to `HEADROOM` times those of the first fit, higher ones are refused."""
    settings, tape = first_round(MARKET, CONFIG)
    assert settings.tick_size == tape.tick_size == MARKET.tape(CONFIG).tick_size == 1e-4
    assert first_round(replace(MARKET, tick_size=0.01), CONFIG)[0].tick_size == 0.01
    random_walk, factor = generator_of("random_walk"), [1.0]

    @functools.wraps(random_walk)
    def dearer(**arguments):
        bars = random_walk(**arguments | {"seed": 0})
        return replace(bars, ohlcv=torch.cat([bars.ohlcv[..., :VOLUME] * factor[0], bars.ohlcv[..., VOLUME:]], dim=-1))

    monkeypatch.setitem(load.GENERATORS, "random_walk", dearer)
    env, fresh = made(every=1)
    bits = env.scenario.tape.price_bits
    highest = float(env.scenario.tape.ohlcv[..., :VOLUME].max()) / env.scenario.tape.tick_size
    factor[0] = 0.99 * 2 ** (bits - 1) / highest
    assert factor[0] >= HEADROOM / 2
    fresh.before_update(1)
    assert float(env.scenario.shared["close"].max()) > 0.5 * 2 ** (bits - 1)
    factor[0] *= 1.1
    with pytest.raises(ValueError, match=r"round 2 .* 2\^\d+ ticks .* tick_size"):
        fresh.before_update(2)


def test_what_cannot_be_refreshed_is_refused():
    env, fresh = made()
    with pytest.raises(ValueError, match="refresh_every must be at least 1, got 0"):
        FreshPaths(fresh.settings, CONFIG, env, 0)
    with pytest.raises(ValueError, match=r"bars.parquet: only the paths of a generated market can be refreshed"):
        FreshPaths(replace(fresh.settings, market="bars.parquet"), CONFIG, env, 1)
    with pytest.raises(ValueError, match="the shared tensors: close must be"):
        env.write_shared({**env.scenario.shared, "close": torch.zeros(3)})


RULES = StockTradingConfig(features=("rsi_30",), episode_length=10, action="tilt")
GENERATED = TrainSettings(
    market="random_walk", num_paths=5, num_days=120, device="cpu", symbols=("A", "B", "C", "D"), compile=False,
    symbols_per_path=2, subsets_per_path=3, seed=6, validation_fraction=0.25, env=RULES,
)  # fmt: skip


def test_new_paths_are_subsets_too():
    settings, tape = first_round(GENERATED, RULES)
    whole = settings.training(tape)
    env = vecenv.make("stock_trading", 8, market=settings.subsets(whole), compile=False, config=RULES)
    assert env.scenario.tape.fingerprint() == symbol_subsets(whole, 2, 3, 6).fingerprint()
    assert (whole.num_paths, env.scenario.tape.num_paths, env.scenario.tape.num_symbols) == (3, 9, 2)
    assert settings.validation(tape).num_symbols == settings.test(tape).num_symbols == 4
    FreshPaths(settings, RULES, env, 1).before_update(1)
    other = replace(settings, symbols_per_path=None, market_seed=settings.market_seed + (1 << 40))
    expected = symbol_subsets(other.training_alone(RULES), 2, 3, 6)
    assert torch.equal(env.scenario.shared["close"], expected.price_ticks().flatten(0, 1))


def test_runs_without_subsets_train_on_the_whole_tape(place):
    settings = replace(GENERATED, symbols_per_path=None)
    whole = settings.training(settings.tape(RULES))
    assert settings.subsets(whole) is whole
    few = settings_on(place, symbols_per_path=4)
    with pytest.raises(ValueError, match="subsets of 4 symbols cannot be drawn: 3 of 3 trade on the training days"):
        few.subsets(few.training(few.tape(few.env)))
