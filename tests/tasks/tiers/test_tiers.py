"""The tiers as environments: what they are, what is refused, what is known when, and how symbols are shown."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import vecenv
from tests.small_env import assert_same_bits, same_bits
from tests.tasks.tiers.random_tiers import random_orders, tier_tape
from vecenv.core.capabilities import Items
from vecenv.core.engine import Engine
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.market.bars import Bars
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.registry import make
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.checkpoints import trained_config
from vecenv.tasks.tiers.config import TEN, TIERS, TWENTY_FIVE, CurriculumConfig, TierConfig, tier_config
from vecenv.tasks.tiers.observation import OWN_FEATURES, RSI, SHARED_FEATURES, Account, market_breadth
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.task import CURRICULUM, SINGLE_STOCK
from vecenv.text.recording import recorded_config

NUM_DAYS, FULL = 70, tier_config("full_autonomous")


def nse_tape(seed: int = 0, num_paths: int = 2, num_days: int = NUM_DAYS) -> MarketTape:
    """Return a random market whose symbols are those of the largest tier."""
    rng = np.random.default_rng(seed)
    tape = tier_tape(rng, len(FULL.symbols), num_days, num_paths, highest=3_000_000)
    return replace(tape, symbols=FULL.symbols)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"days": 0}, "days must be at least 1, got 0"),
        ({"max_exposure": math.nan}, r"max_exposure must be in \[0.0001, 1\], got nan"),
        ({"max_position": 1.5}, r"max_position must be in \[0.0001, 1\], got 1.5"),
        ({"commission": 0.6, "slippage": 0.4}, "commission 0.6 and slippage 0.4 must be below 1 together"),
        ({"commission": -0.1}, r"commission must be in \[0, 1\)"),
        ({"slippage": -0.1}, r"slippage must be in \[0, 1\)"),
        ({"symbols": ()}, r"symbols must have at least 1, got \(\)"),
        ({"symbols": ("A", "A")}, "symbols must be different, got"),
        ({"symbols": ("A", "random")}, "'random' must be the only symbol, got A, random"),
        ({"grader": "kind"}, "unknown grader 'kind'; there are calibrated, seed"),
        ({"reward": "rich"}, "unknown reward preset 'rich'; there are signal, counterfactual"),
        ({"reward_weights": {"luck": 1.0}}, "unknown reward components luck; there are profit, loss_hold"),
        ({"tilt_gain": 0.0}, r"tilt_gain must be in \(0, 8\], got"),
        ({"tilt_gain": 8.1}, r"tilt_gain must be in \(0, 8\], got"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(FULL, **changes)


def test_the_tiers_are_those_of_the_page():
    """Days, cash, costs, trades a day, limits, gate, symbols and grader of each; the rest is shared."""
    names = ("days", "initial_cash", "commission", "slippage", "max_trades", "max_position", "max_exposure", "gate")
    rows = [(*(getattr(t, n) for n in names), len(t.symbols), t.seed_grader) for t in TIERS.values()]
    assert rows == [
        (20, 100_000.0, 0.0, 0.0, 100, 1.0, 1.0, False, 1, "single"),
        (20, 100_000.0, 0.001, 0.001, 20, 1.0, 1.0, False, 1, "single"),
        (25, 150_000.0, 0.001, 0.001, 15, 0.5, 0.6, False, 3, "portfolio"),
        (30, 200_000.0, 0.001, 0.001, 10, 0.3, 0.4, False, 10, "portfolio"),
        (40, 500_000.0, 0.001, 0.002, 5, 0.15, 0.8, True, 25, "full"),
    ]
    shared = ("action", "max_orders", "tilt_gain", "reward", "reward_weights", "grader", "context", "currency")
    assert [getattr(FULL, name) for name in shared] == ["discrete", 8, 1.0, "signal", {}, "calibrated", (), None]
    assert (FULL.text_style, FULL.dtype) == ("full", "float32")
    # At their bounds.
    replace(FULL, tilt_gain=8.0, max_position=1.0, max_exposure=1.0, commission=0.0, slippage=0.999)
    assert FULL.inapplicable() == {"tilt_gain": "action limit_weights"}
    assert replace(FULL, action="limit_weights").inapplicable() == {}


def test_unknown_names_and_markets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"'hard'.*full_autonomous.*single_stock"):
        make("hard")
    with pytest.raises(ValueError, match="'hard'; there are single_stock, single_stock_costs, multi_stock_3, port"):
        tier_config("hard")
    with pytest.raises(ValueError, match=r"unknown symbols \['NOPE'\]; it has RELIANCE, INFY"):
        make("single_stock", market=nse_tape(), symbols=("NOPE",), compile=False)
    with pytest.raises(ValueError, match=r"no series vvix; it has .*vix"):
        TierTrading(nse_tape(), replace(FULL, context=("vvix",)))
    with pytest.raises(ValueError, match=r"initial_cash 1e\+12 is 1e\+1. ticks .* exact orders need fewer than 2\^36"):
        TierTrading(nse_tape(), replace(FULL, initial_cash=1e12))
    with pytest.raises(ValueError, match=r"20 days are fewer than .* an episode of 40"):
        TierTrading(nse_tape(num_days=20), FULL)
    with pytest.raises(ValueError, match="the tiers need the features daily_change"):
        TierTrading(replace(nse_tape(), feature_names=("rsi_14",)), FULL)
    mixed = TierTrading(nse_tape(), FULL, list(TIERS.values()))
    for rule in (-1, 5):
        with pytest.raises(ValueError, match=r"parameter 'rule' must be in \[0, 5\), got \[(-1, 0|0, 5)\]"):
            mixed.randomise({"rule": torch.tensor([0, rule])}, 2)


def test_starts_are_on_days_on_which_every_symbol_of_the_tier_has_traded():
    """A random symbol is another path, and never one that was listed too short ago."""
    tape, config = nse_tape(), replace(tier_config("single_stock"), symbols=("random",))
    tape.tradable[1, : NUM_DAYS - 15, 7] = False
    env = VecEnv(SINGLE_STOCK.build(tape, config), 2_000, 3, "cpu", False)
    drawn = env.state.path
    assert set(drawn.tolist()) == set(range(2 * 25)) - {25 + 7}
    close = tape.price_ticks()[drawn // 25, env.state.day, drawn % 25]
    shown = env.observe_rows(env.rows, torch.arange(2_000))
    assert shown.shape == (2_000, len(Account._fields) + 14 + 3) and bool((close > 0).all())
    shown = env.scenario.unscaled(shown)
    torch.testing.assert_close(shown[:, len(Account._fields)], close * tape.tick_size / 1024)
    tape.tradable[1, :, 7], tape.tradable[1, :12, 3] = True, False
    state = VecEnv(TierTrading(tape, FULL), 2_000, 3, "cpu", False).state
    days = state.day[state.path == 1]
    assert (int(days.min()), int(days.max())) == (12, NUM_DAYS - 1 - 40)


def play(tape: MarketTape, reward: str) -> list[tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]]:
    """Play random orders; per step the day, what was seen and paid on it, and what it brought."""
    bound = Engine(TierTrading(tape, replace(FULL, action="orders", reward=reward, days=12)), 96).bound()
    ids, played = torch.arange(96), []
    rows = bound.start(torch.tensor(4), ids, torch.zeros_like(ids))
    rng = np.random.default_rng(4)
    for action in torch.from_numpy(random_orders(rng, 12, 96, 8, num_symbols=25)):
        seen = bound.observation(rows)
        outcome = bound.step(rows, action)
        after = outcome.rows.state
        paid = [after.cash, after.holdings, after.average_price, after.costs, after.fills, after.losing_sells]
        played.append((rows.state.day, [seen, *paid], outcome.reward))
        rows = outcome.rows
    return played


@pytest.mark.parametrize("reward", ["signal", "grade_potential"])
def test_nothing_is_known_of_the_next_day(reward):
    """Another market after day 45: all that is seen and paid up to it is the same, and what it brings is not."""
    cut, one, other = 45, nse_tape(0), nse_tape(1)
    spliced = {
        name: torch.cat([getattr(one, name)[:, : cut + 1], getattr(other, name)[:, cut + 1 :]], dim=1)
        for name in ("ohlcv", "tradable", "features", "context")
    }
    compared, differ = 0, False
    both = zip(play(one, reward), play(replace(one, **spliced), reward), strict=True)
    for (day, left, gain), (_, right, other_gain) in both:
        known = day <= cut
        compared += int(known.sum())
        assert_same_bits([part[known] for part in left], [part[known] for part in right])
        assert same_bits(gain[day < cut], other_gain[day < cut])
        differ |= not same_bits(gain[day == cut], other_gain[day == cut])
    assert compared > 400 and differ


def test_weights_of_symbols_that_are_not_the_tiers_own_count_as_zero():
    config = replace(FULL, action="weights", gate=False)
    scenario = TierTrading(nse_tape(), config, [config, replace(config, symbols=TEN)])
    scenario.randomise({"rule": torch.tensor([0, 1, 1])}, 3)
    bound, ids = Engine(scenario, 3).bound(), torch.arange(3)
    target = torch.full((3, 25), 0.03)
    target[2, 20] = torch.nan
    state = bound.step(bound.start(torch.tensor(0), ids, torch.zeros_like(ids)), target).rows.state
    assert state.totals[:, COMPONENTS.index("invalid")].tolist() == [0, 0, 1]
    assert float(state.holdings[1, 10:].sum()) == 0 < float(state.holdings[1].sum())


@pytest.mark.parametrize(
    ("closes", "closed"),
    [([99] * 7 + [150] * 3, 0), ([99] * 3 + [150], 1), ([99.02] * 5 + [100] * 5, 0), ([98.98] * 5 + [100] * 5, 1)],
)
def test_the_gate_closes_beyond_seven_tenths_or_half_a_percent(closes, closed):
    """Seven of ten lower are not too many, three of four are; so is a mean change of -0.51% but not of -0.49%."""
    days = torch.tensor([[[100.0] * len(closes), closes]], dtype=torch.float64)
    assert market_breadth(days * 100, torch.zeros_like(days, dtype=torch.bool))[0, :, 0].tolist() == [0, closed]


def test_slippage_that_differs_by_row_is_rounded_like_that_of_the_settings():
    scenario = TierTrading(nse_tape(), FULL)
    own = scenario.params["slippage"]
    scenario.randomise({"slippage": torch.full((4, 1), FULL.slippage, dtype=torch.float64)}, 4)
    assert torch.equal(scenario.params["slippage"][0], own)


def test_an_opportunity_is_missed_where_cash_pays_for_a_share_and_its_costs():
    """A share of 100 costs 125 with slippage and 156.25 with the commission."""
    tape = tier_tape(np.random.default_rng(0), 1, ragged=False)
    tape.features[..., RSI] = 20.0
    tape = replace(tape, ohlcv=torch.full_like(tape.ohlcv, 100.0))
    config = replace(FULL, symbols=tape.symbols, days=5, gate=False, slippage=0.25, commission=0.25, max_position=1.0)
    env = VecEnv(TierTrading(tape, replace(config, max_exposure=1.0, action="orders")), 2, compiled=False)
    env.rows.state.get("cash").copy_(torch.tensor([156_240.0, 156_260.0]))
    env.advance(torch.zeros(2, 8, 3))
    assert env.info()["reward/missed_opportunity"].tolist() == [0, 1]
    # An account ends when nothing is left of it.
    env.rows.state.get("portfolio_value").copy_(torch.tensor([0.0, 1.0]))
    assert env.scenario.terminated(env.state, {}, {}).tolist() == [True, False]


NUM_ENVS = 4


@cache
def bars(symbols: tuple[str, ...] = TEN) -> Bars:
    return replace(synthetic_bars(num_paths=2, num_days=330, symbols=len(symbols), seed=5), symbols=symbols)


def tier_env(data: Bars, config: TierConfig, tick_size: float = 0.01) -> VecEnv:
    tape = MarketTape.from_bars(data, TIER_FEATURES, config.context, tick_size)
    return VecEnv(SINGLE_STOCK.build(tape, replace(config, action="limit_weights", max_orders=2)), NUM_ENVS, 3, "cpu")


def after_days(env: VecEnv, action: torch.Tensor | None = None) -> Items:
    """Play three days, by default tilts that differ by symbol, and return the items."""
    tilts = torch.linspace(-1.0, 1.0, env.action_spec.shape[-1]) if action is None else action
    for _ in range(3):
        env.advance(tilts.expand(NUM_ENVS, -1).contiguous(), eager=True)
    return env.scenario.items(env.observations())


def test_symbols_show_their_position_and_the_account_its_room():
    series = torch.linspace(10.0, 30.0, bars().ohlcv.shape[1], dtype=torch.float64)
    rules = replace(TIERS["multi_stock_3"], symbols=TEN[:4], context=("vix",))
    env = tier_env(replace(bars(), context={"vix": series.expand(2, -1)}), rules)
    items = after_days(env)
    state, tape = env.state, env.scenario.tape
    price = tape.ohlcv[state.path, state.day][..., 3].double()
    share = state.holdings * price / env.info()["portfolio_value"].unsqueeze(-1)
    # Within 60% of the account, four symbols aim at 15% each, less the 2% that stays in cash.
    expected = {
        "tradable": torch.ones_like(share),
        "weight": share / (0.98 * 0.6 / 4),
        "of_limit": share / 0.5,
        "profit": torch.where(state.holdings > 0, price / (state.average_price * tape.tick_size) - 1.0, 0.0),
        "held": state.days_held / 25,
    }
    assert env.scenario.item_features == (*TIER_FEATURES, *expected) and tuple(expected) == OWN_FEATURES
    own = torch.stack([values.float() for values in expected.values()], -1)
    torch.testing.assert_close(items.features[..., len(TIER_FEATURES) :], own, rtol=1e-4, atol=1e-5)
    assert float(share.max() / share.min()) > 2 and float(expected["profit"].abs().max()) > 0
    told = dict(zip((*SHARED_FEATURES, "vix"), items.shared.double().unbind(-1), strict=True))
    for name, values in {
        "vix": series[state.day],
        "room": 1 - share.sum(-1) / 0.6,
        "elapsed": torch.full((NUM_ENVS,), 3 / 25),
        "cash": 1 - share.sum(-1),
    }.items():
        torch.testing.assert_close(told[name], values.double(), rtol=1e-4, atol=1e-5)


def test_a_tier_in_a_mixed_batch_shows_the_symbols_that_it_shows_alone():
    """The others show the mean, so that the mean over all symbols is the tier's own; the breadth is the market's."""
    alone = tier_env(bars(TWENTY_FIVE), TIERS["multi_stock_3"])
    config = CurriculumConfig(action="limit_weights", max_orders=2)
    tape = MarketTape.from_bars(bars(TWENTY_FIVE), TIER_FEATURES, tick_size=0.01)
    mixed = VecEnv(CURRICULUM.build(tape, config), NUM_ENVS, 3, "cpu", False)
    mixed.scenario.params["rule"].fill_(config.tiers.index("multi_stock_3"))
    mixed.reset()
    own = after_days(alone, torch.tensor([0.7, -0.4, 0.1, -0.3]))
    padded = after_days(mixed, torch.tensor([0.7, -0.4, 0.1, *[0.9] * 22, -0.3]))
    assert torch.equal(alone.state.day, mixed.state.day)
    torch.testing.assert_close(padded.features[:, :3], own.features)
    mean = own.features.mean(1, keepdim=True)
    torch.testing.assert_close(padded.features[:, 3:], mean.expand(-1, 22, -1))
    others = [place for place, name in enumerate(SHARED_FEATURES) if name not in ("share_down", "mean_change")]
    torch.testing.assert_close(padded.shared[:, others], own.shared[:, others])


@pytest.mark.parametrize("task", ["multi_stock_3", "agent_market"])
def test_scaled_observations_are_the_raw_ones_to_the_bit_when_read_back(task):
    """So texts, items and masks are the same; what was stored before there was a choice is raw."""
    own = {"market_options": {"num_paths": 1, "num_days": 260}} if task == "multi_stock_3" else {"depth": True}
    scaled, raw = (vecenv.make(task, 3, compile=False, observation=name, **own) for name in ("scaled", "raw"))
    for _ in range(3):
        seen, plain = scaled.observations(), raw.observations()
        assert not torch.equal(seen, plain) and torch.equal(scaled.scenario.unscaled(seen), plain)
        assert scaled.scenario.text.render(seen, scaled.state) == raw.scenario.text.render(plain, raw.state)
        if task == "agent_market":
            # Levels are shown as distances, which are scaled, and then as logarithms of shares.
            assert (seen == plain)[:, -40:].all(0).tolist() == [False] * 20 + [True] * 20
        if task == "multi_stock_3":
            assert torch.equal(scaled.scenario.action_mask(seen), raw.scenario.action_mask(plain))
            assert all(map(torch.equal, scaled.scenario.items(seen), raw.scenario.items(plain)))
        for env in (scaled, raw):
            env.advance(random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed))
    assert trained_config({"task": task, "config": {}}, "old.pt").observation == "raw"
    rules = as_values(scaled.scenario.config, ("observation",))
    assert recorded_config(scaled.scenario.task.config(), rules).observation == "raw"
