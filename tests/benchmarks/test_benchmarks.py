"""The benchmarks: what they step, count and write."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.figures import _curve
from vecenv.benchmarks.learning import reward_presets
from vecenv.benchmarks.learning.reward_presets import RewardPresetsConfig, reward_parts, rollout_record
from vecenv.benchmarks.throughput import curve as throughput
from vecenv.benchmarks.throughput import grpo_rollouts, neural_sampling, worldmodel_rollouts
from vecenv.benchmarks.throughput.curve import BenchConfig
from vecenv.benchmarks.throughput.grpo_rollouts import GrpoRolloutsConfig
from vecenv.benchmarks.throughput.neural_sampling import NeuralSamplingConfig
from vecenv.benchmarks.throughput.text import typical_texts
from vecenv.benchmarks.throughput.worldmodel_rollouts import RolloutsConfig
from vecenv.benchmarks.workloads import fill_given_actions, market_numbers, necessary_bytes
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.registry import make
from vecenv.tasks.tiers.reward_components import COMPONENTS
from vecenv.text.door import TextDoor
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings

MARKET = {"num_paths": 2, "num_days": 330}
DAYS = 25


def tier_env(num_envs: int = 4, task: str = "multi_stock_3", **rules) -> VecEnv:
    return make(task, num_envs, market_options=MARKET, compile=False, **rules)


def given(env: VecEnv, num_steps: int, observed: bool = True) -> FusedCollector:
    return FusedCollector(env, "given", num_steps, store_observations=observed)


@pytest.mark.parametrize("task", ["multi_stock_3", "curriculum"])
def test_given_orders_are_valid_and_different(task):
    collector = given(tier_env(task=task, action="orders"), 3)
    fill_given_actions(collector)
    collector.rollout()
    components = collector.rows().state.components
    assert components[..., COMPONENTS.index("valid")].all()
    kind, symbol, fraction = collector.actions.unbind(-1)
    assert set(kind.flatten().tolist()) == {0.0, 1.0, 2.0}
    torch.testing.assert_close(fraction * 10, (fraction * 10).round())
    assert float(fraction.min()) >= 0.1 and float(fraction.max()) <= 1.0
    assert set(symbol.flatten().tolist()) == ({0.0, 1.0, 2.0} if task == "multi_stock_3" else {0.0})


def test_given_actions_of_other_spaces_are_drawn_from_the_spec():
    env = make("stock_trading", 4, market_options=MARKET, compile=False)
    collector = given(env, 2)
    fill_given_actions(collector)
    assert -1 <= float(collector.actions.min()) < -0.9 and 0.9 < float(collector.actions.max()) <= 1
    assert not torch.equal(*collector.actions)


def test_necessary_bytes_of_a_tier():
    """Twice the state, the action and the reward; and the observation with what of the market it shows."""
    env = tier_env(action="orders")
    seen, unseen = (necessary_bytes(given(env, 2, observed)) for observed in (True, False))
    state = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(env.rows))
    assert unseen == 2 * state + 4 * 8 * 3 + 4 + 4 * (3 * 4 + 3)
    assert seen - unseen == 4 * (16 + 17 * 3) + 4 * 3 * (12 + 1 - 2)


def test_necessary_bytes_of_observations_by_reference():
    """The own part and the day instead of the whole, and a row of the table instead of the features."""
    env = make("stock_trading", 2, market_options=MARKET, compile=False)
    config = PPOConfig(num_steps=2, minibatches=1, hidden=(8,))
    whole, parts = (PPO(env, replace(config, by_reference=by)).collector for by in (False, True))
    symbols, features = env.scenario.tape.num_symbols, len(env.scenario.tape.feature_names)
    fewer_written = 4 * symbols * (1 + features) - 8
    fewer_read = 4 * (symbols * features - 8)
    assert necessary_bytes(whole) - necessary_bytes(parts) == fewer_written + fewer_read


def test_market_numbers_of_stock_trading():
    env = make("stock_trading", 1, market_options=MARKET, compile=False)
    symbols, features = env.scenario.tape.num_symbols, len(env.scenario.tape.feature_names)
    assert market_numbers(env.scenario, observed=True) == symbols * (2 + features)
    assert market_numbers(env.scenario, observed=False) == symbols * 2


@pytest.mark.nightly
def test_a_tier_is_measured_and_filed_under_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "COPY_BYTES", 2**16)
    config = BenchConfig(
        task="multi_stock_3",
        num_envs=(4,),
        columns=("environment", "without_observations", "policy", "training", "text"),
        modes=("eager",),
        num_steps=2,
        repeats=5,
        num_days=330,
        text_envs=8,
        text_rows=(2, 6),
        output=tmp_path,
    )
    result = throughput.main(config)
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("throughput-multi-stock-3-") and path.with_suffix(".png").exists()
    assert json.loads(path.read_text()) == json.loads(json.dumps(result))
    assert [figure["column"] for figure in result["figures"]] == list(config.columns[:-1])
    assert result["market"]["symbols"] == 3 and result["published"] == []
    assert result["scalar_oracle_steps_per_second"] > 0
    kinds = [(figure["what"], figure["style"], figure["rows"]) for figure in result["text"]]
    rendered = [("render", style, rows) for style in ("full", "compact") for rows in (2, 6)]
    assert kinds == [*rendered, ("parse", None, 6)]
    for figure in result["text"]:
        assert math.isclose(figure["texts_per_second"] * figure["milliseconds"], 1e3 * figure["rows"])
    assert "render compact" in capsys.readouterr().out


@pytest.mark.assembly
def test_a_market_of_agents_is_measured_beside_published_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "COPY_BYTES", 2**16)
    config = BenchConfig(
        task="market_making",
        num_envs=(4, 2**40),
        columns=("environment", "text"),
        modes=("eager",),
        num_steps=2,
        repeats=5,
        text_envs=4,
        text_rows=(2,),
        output=tmp_path,
    )
    result = throughput.main(config)
    (figure,) = result["figures"]
    # Five ticks a step, of one to four messages each.
    assert 5 < figure["messages_per_second"] / figure["steps_per_second"] < 20
    assert [(text["what"], text["style"], text["rows"]) for text in result["text"]] == [
        ("render", None, 2),
        ("parse", None, 2),
    ]
    told = capsys.readouterr().out
    assert "N=1099511627776 does not fit the memory" in told
    assert "published, not measured here: 21,969 steps/s, 2,196,900 messages/s at N=4,000: JaxMARL-HFT" in told
    assert len(result["published"]) == 3 and list(tmp_path.glob("throughput-market-making-*.png"))


def test_typical_texts_are_mostly_valid():
    env = tier_env(12, action="orders")
    actions, valid = TextDoor(env).parse(typical_texts(env.scenario.tape.symbols, 12), range(12))
    assert valid.tolist() == 2 * [True, True, True, True, False, True]
    assert actions[:, :, 0].count_nonzero(-1).tolist() == 2 * [0, 1, 1, 2, 1, 2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "portfolio", "rationing": "by_size"}, "rationing is a setting of stock_trading, not of portfolio"),
        ({"task": "portfolio", "preset": "figure3"}, "preset is a setting of stock_trading"),
        ({"text_envs": 4}, "cannot render 2048 of 4"),
        ({"repeats": 1}, "at least 5"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        BenchConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "stock_trading"}, "unknown tier 'stock_trading'; there are single_stock"),
        ({"presets": ("signal", "rich")}, "unknown reward presets rich; there are signal"),
        ({"num_updates": 0}, "num_updates must be at least 1"),
    ],
)
def test_presets_that_do_not_exist_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        RewardPresetsConfig(**settings)


@pytest.mark.parametrize("preset", ["aligned", "signal", "grade_potential"])
def test_the_parts_of_a_reward_add_up_to_it(preset):
    env = tier_env(8, reward=preset, grader="seed", max_orders=2)
    collector = FusedCollector(env, None, DAYS + 2)
    collector.rollout()
    torch.testing.assert_close(reward_parts(collector).sum(-1).float(), collector.reward, atol=1e-6, rtol=1e-5)
    assert bool(reward_parts(collector)[..., COMPONENTS.index("episode")].any()) == (preset == "aligned")


@pytest.mark.assembly
def test_a_record_of_an_agent_that_holds():
    collector = given(tier_env(reward="multi_component", max_orders=2), DAYS)
    collector.rollout()
    record = rollout_record(collector)
    assert (record["hold"], record["traded"], record["invalid"], record["exposure"]) == (1.0, 0.0, 0.0, 0.0)
    assert record["grades"]["calibrated"] == 0.0 and record["return_percent"] == 0.0
    assert "patience" not in record["components"] and record["components"]["valid"] > 0.5
    assert math.isclose(sum(record["components"].values()), 1.0)
    collector.actions[:, :, 1, 0] = 1
    collector.rollout()
    assert rollout_record(collector)["hold"] == 0.0


@pytest.mark.nightly
def test_presets_are_compared_in_a_picture(tmp_path):
    config = RewardPresetsConfig(
        task="single_stock_costs",
        presets=("counterfactual", "aligned"),
        num_seeds=2,
        num_envs=4,
        num_updates=2,
        num_paths=2,
        num_days=330,
        compile=False,
        ppo=PPOConfig(minibatches=2, epochs=1, hidden=(8,)),
        output=tmp_path,
    )
    result = reward_presets.main(config)
    assert {path.name for path in tmp_path.iterdir()} == {"reward-presets.json", "reward-presets.png"}
    assert json.loads((tmp_path / "reward-presets.json").read_text()) == json.loads(json.dumps(result))
    for histories in result["runs"].values():
        assert [[update["frames"] for update in history] for history in histories] == 2 * [[80, 160]]
    first, second = result["runs"]["aligned"]
    assert first != second


def test_a_curve_goes_through_the_fastest_mode_of_each_size():
    """Whichever order they were measured in."""
    rates = [(64, "environment", 5.0), (8, "environment", 2.0), (8, "environment", 3.0), (8, "environment", 1.0)]
    measured = [
        {"num_envs": count, "column": column, "steps_per_second": rate}
        for count, column, rate in [*rates, (8, "policy", 9.0)]
    ]
    assert _curve(measured, "environment") == [(8, 3.0), (64, 5.0)]


@pytest.mark.nightly
@pytest.mark.parametrize("bf16", [False, True])
def test_rollouts_of_a_neural_market_are_measured_beside_the_limit(tmp_path, monkeypatch, bf16):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    result = worldmodel_rollouts.main(
        RolloutsConfig(batches=(4, 8), symbols=2, days=3, context=5, repeats=5, bf16=bf16, output=tmp_path)
    )
    (file,) = tmp_path.glob("worldmodel-rollouts-*.json")
    assert file.stem.endswith("-bf16") == bf16
    assert result["limit"]["cache_bytes"] == 2 * 4 * 60 * 48 * (2 if bf16 else 4)
    written = json.loads(file.read_text())
    assert written == json.loads(json.dumps(result))
    assert [figure["batch"] for figure in result["figures"]] == [4, 8]
    for figure in result["figures"]:
        assert figure["stock_days_per_second"] == pytest.approx(figure["batch"] * 3 / figure["seconds"])
        share = figure["stock_days_per_second"] / result["limit"]["stock_days_per_second"]
        assert figure["share_of_limit"] == pytest.approx(share)
    with pytest.raises(ValueError, match="batch 5 is not a multiple of 2 symbols"):
        RolloutsConfig(batches=(5,), symbols=2)


@pytest.mark.assembly
def test_turns_of_groups_are_measured_by_their_parts(tmp_path, monkeypatch):
    """An episode of every size: each turn renders, reads and steps all agents."""
    played = []
    advance = VecEnv.advance
    monkeypatch.setattr(VecEnv, "advance", lambda self, action: played.append(len(action)) or advance(self, action))
    config = GrpoRolloutsConfig(
        task="single_stock", groups=(2, 3), group_sizes=(2,), num_days=400, compile=False, output=tmp_path
    )
    result = grpo_rollouts.main(config)
    assert json.loads(next(tmp_path.glob("grpo-rollouts-*.json")).read_text()) == json.loads(json.dumps(result))
    assert played == [4] * 20 + [6] * 20
    for figure, agents in zip(result["figures"], (4, 6), strict=True):
        assert figure["environment"] + figure["rendering"] + figure["parsing"] == pytest.approx(1.0)
        assert figure["agent_turns_per_second"] == pytest.approx(agents / figure["seconds"])
        assert 300 < figure["characters"] < 1000 and figure["own_memory_bytes"] <= figure["peak_memory_bytes"]
        assert figure["generation"] == figure["update"] == figure["answer_tokens"] == 0.0
    with pytest.raises(ValueError, match="task 'stock_trading' has no text"):
        grpo_rollouts.main(GrpoRolloutsConfig(task="stock_trading", output=None))


@pytest.mark.nightly
def test_turns_of_a_model_are_split_into_what_they_are_spent_on(tmp_path):
    pytest.importorskip("transformers", reason="language models need vecenv[language]")
    config = GrpoRolloutsConfig(
        task="single_stock", groups=(2,), group_sizes=(4,), model="tiny", num_days=330, compile=False,
        output=tmp_path,
    )  # fmt: skip
    result = grpo_rollouts.main(config)
    assert json.loads(next(tmp_path.glob("grpo-rollouts-tiny-*.json")).read_text()) == json.loads(json.dumps(result))
    (figure,) = result["figures"]
    shares = [figure[name] for name in ("environment", "rendering", "parsing", "generation", "update")]
    assert min(shares) > 0 and 0.8 < sum(shares) <= 1.0
    assert figure["agent_turns_per_second"] == pytest.approx(8 / figure["seconds"])
    assert 1 <= figure["answer_tokens"] <= 8


@pytest.mark.assembly
def test_sampling_on_new_paths_is_measured_beside_paths_that_stay(tmp_path, monkeypatch):
    """Every round trades other paths, and the reuse counts agent-steps per path-day of training."""
    traded = []
    rollout = FusedCollector.rollout
    monkeypatch.setattr(
        FusedCollector,
        "rollout",
        lambda self: traded.append(float(self.env.scenario.shared["features"].double().sum())) or rollout(self),
    )
    config = NeuralSamplingConfig(
        num_envs=8, num_steps=5, market="synthetic", num_paths=5, num_days=330, refresh_every=(1, 3), rounds=2,
        threads=1, device="cpu", compile=False, output=tmp_path,
    )  # fmt: skip
    result = neural_sampling.main(config)
    assert json.loads(next(tmp_path.glob("neural-sampling-*.json")).read_text()) == json.loads(json.dumps(result))
    assert result["training_paths"] == 4 and result["path_days"] == 4 * (330 - 59)
    assert [each["reuse"] for each in result["rounds"]] == [pytest.approx(count * 40 / 1084) for count in (1, 3)]
    for each in result["rounds"]:
        assert 0 < each["share"] < 1 and each["steps_per_second"] < each["kept_paths_steps_per_second"]
    last = result["rounds"][-1]
    needed = 4 * last["renewal_seconds"] * last["kept_paths_steps_per_second"] / result["path_days"]
    assert result["reuse_for_kept_share"] == pytest.approx(needed)
    # Two rollouts that warm up, and the rounds.
    assert len(traded) == 2 + 2 * 1 + 2 * 3
    assert len(set(traded)) == 2 + 2 + 2 and len(set(traded[-3:])) == 1


def test_operations_and_bytes_of_a_stock_day():
    """A layer of width 8 with two heads: counted by hand."""
    trunk = TransformerSettings(layers=1, width=8, heads=2, hidden=16, window=10)
    network = MarketNetwork(NetworkSettings(trunk, head=4, markets=("one",)))
    features = network.trunk.embed.in_features
    weights = features * 8 + 8 * (8 + 2 * 4) + 8 * 8 + 8 * 16 + 16 * 8
    # Each of two heads multiplies its query with ten keys, and ten weights with values, of four numbers.
    attention = 2 * (10 * 4 + 10 * 4)
    assert worldmodel_rollouts.operations_per_stock_day(network) == 2 * (weights + attention)
    assert worldmodel_rollouts.bytes_per_stock_day(network) == 10 * (4 + 4) * 4
