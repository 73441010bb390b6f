"""Policies that a run starts from, keeps as its best and writes, and states of other forms, refused in a sentence."""

import copy
import math
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import torch

import vecenv
from tests.learn.small_tasks import same
from tests.small_env import assert_same_bits, snapshot
from vecenv.core.env import VecEnv
from vecenv.learn import train
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.policies import ActorPolicy, check_same_network, load_policy, start_from
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.returns import RunningMoments
from vecenv.learn.runs import load_run, run
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.learn.shards import Shards
from vecenv.learn.validation import METRICS, ValidatedEnsemble, ValidatedLearner, Validation
from vecenv.registry import task_of
from vecenv.tasks.stock_trading.agents import BestRule
from vecenv.testing import learner_case

CONFIG = PPOConfig(num_steps=4, total_frames=3 * 4 * 8, minibatches=2, epochs=1, policy="symbol", hidden=(8,))
RULES = {"action": "tilt", "features": ("daily_change", "momentum_10"), "episode_length": 20}
SIX = replace(CONFIG, total_frames=6 * 4 * 8, checkpoint_every=1)


def market_env(num_symbols: int, seed: int = 0, **rules: object) -> VecEnv:
    options = {"num_paths": 3, "num_days": 90, "symbols": [f"S{k}" for k in range(num_symbols)], "seed": seed}
    rules = {"market": "synthetic", "market_options": options, "compile": False, "seed": seed} | RULES | rules
    return vecenv.make("stock_trading", 8, **rules)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    train(market_env(3), CONFIG, folder)
    return folder / CHECKPOINT


def read(path: Path) -> dict:
    return load_checkpoint(path, torch.device("cpu"))


@pytest.mark.parametrize("num_symbols", [3, 5])
def test_it_starts_with_that_policy_and_its_critic_and_all_else_is_new(source, num_symbols):
    learner, fresh = (PPO(market_env(num_symbols, 1), replace(CONFIG, seed=9)) for _ in range(2))
    start_from(learner, source)
    state = read(source)
    assert same(learner.actor, state["actor"]) and same(learner.critic, state["critic"])
    assert same(learner.moments, state["moments"]) and not same(learner.actor, fresh.actor)
    running = learner.observation_moments.state_dict()
    assert all(torch.equal(running[name], value) for name, value in state["observation_moments"].items())
    assert learner.update_number == 0 and learner.optimiser.state_dict()["state"] == {}
    assert float(learner.reward_scale.return_moments.count) == 0 and learner.num_updates == 3
    env = market_env(num_symbols, 2)
    started = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
    assert torch.equal(PolicyAgent(started).act(env), PolicyAgent(load_policy(source, env)).act(env))
    # Its first rollout is added to the moments of that run, as if it followed that run's last one.
    learner.prepare()
    expected = RunningMoments((learner.network.moments_size,), torch.device("cpu"))
    expected.load_state_dict(state["observation_moments"])
    # Three symbols, four steps of eight rows, three updates and the rollout before them.
    assert float(expected.count) == 3 * 4 * 8 * 4
    expected.update([learner.network.samples(learner.collector.observation.flatten(0, 1))], Shards())
    assert float(learner.observation_moments.count) == 3 * 4 * 8 * 4 + num_symbols * 4 * 8
    # Summed in another order.
    torch.testing.assert_close(learner.moments, [expected.mean.float(), expected.deviation().float()])


def test_best_policies_critics_that_do_not_fit_and_other_learners(source, tmp_path):
    """Of a validated run it is the best policy; a critic of another form starts new; groups take it as reference."""
    state, path = read(source), tmp_path / "other.pt"
    best = {"actor": [tensor + 1 for tensor in state["actor"]], "moments": [tensor + 2 for tensor in state["moments"]]}
    save_checkpoint(state | {"best": best}, path)
    started = PPO(market_env(4), CONFIG)
    start_from(started, path)
    assert same(started.actor, best["actor"]) and same(started.moments, best["moments"])
    assert torch.equal(started.observation_moments.mean, state["observation_moments"]["mean"])
    for critic in ([torch.zeros(3, 3), *state["critic"][1:]], []):
        save_checkpoint(state | {"critic": critic}, path)
        learner, fresh = (PPO(market_env(3), CONFIG) for _ in range(2))
        start_from(learner, path)
        assert same(learner.critic, fresh.critic) and same(learner.actor, state["actor"])
    exact = Exact(market_env(3, whole_shares=False), ExactConfig(num_steps=4, policy="symbol", hidden=(8,)))
    start_from(exact, source)
    assert same(exact.actor, state["actor"]) and exact.critic == []
    config = GRPOConfig(total_frames=8 * 20, epochs=1, minibatches=2, policy="symbol", hidden=(8,), kl_coef=0.1)
    groups = GRPO(market_env(4), config, 4)
    start_from(groups, source)
    assert same(groups.reference, groups.actor) and same(groups.actor, state["actor"])
    groups.update()
    assert same(groups.reference, state["actor"]) and not same(groups.actor, state["actor"])


def test_what_cannot_start_a_run_is_refused(source, tmp_path):
    learner, path, state = PPO(market_env(3), CONFIG), tmp_path / "other.pt", read(source)
    before, running = [tensor.clone() for tensor in learner.actor], state["observation_moments"]
    for changes, told in (({"hidden": (16,)}, r"hidden \(8,\)"), ({"policy": "attention"}, "policy symbol")):
        with pytest.raises(ValueError, match=f"{CHECKPOINT}: trained with {told}, which cannot start a run with "):
            start_from(PPO(market_env(3), replace(CONFIG, **changes)), source)
    # A checkpoint without the name of its head has normal actions.
    saved = {"policy": "symbol", "hidden": (8,), "normalise_observations": True}
    check_same_network(saved, CONFIG, "a.pt")
    for change, told in (({"head": "dirichlet"}, "head dir"), ({"normalise_observations": False}, "normalise_obs")):
        with pytest.raises(ValueError, match=rf"a\.pt: trained with {told}.*, which cannot start a run with"):
            check_same_network(saved | change, CONFIG, "a.pt")
    for fault, told in (
        ({"observation_moments": None}, "its observation_moments is nothing instead of dict"),
        ({"observation_moments": running | {"count": torch.zeros(2)}}, r"its observation_moments\.count is float32"),
        ({"scenario": state["scenario"] | {"task": "portfolio"}}, r"trained for \{'task': 'portfolio', .*, not for"),
        ({"actor": [tensor.double() for tensor in state["actor"]]}, r"its actor\.0 is float64"),
    ):
        save_checkpoint(state | fault, path)
        with pytest.raises(ValueError, match=rf"other\.pt: {told}"):
            start_from(learner, path)
    with pytest.raises(FileNotFoundError):
        start_from(learner, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="layers have shapes"):
        start_from(PPO(market_env(3, features=("daily_change",)), CONFIG), source)
    assert same(learner.actor, before)


def test_a_state_of_other_forms_is_refused_and_nothing_of_it_loaded(tmp_path, source):
    own, state = PPO(market_env(3), CONFIG), read(source)
    before = snapshot(own.env.rows) + [parameter.clone() for parameter in own.parameters]
    for place, value, words in (
        (("actor", 1), torch.zeros(8).double(), r"state\.actor\.1 is float64 of shape \(8,\) instead of float32 of "),
        (("actor", 1), "weights", r"state\.actor\.1 is str instead of float32"),
        (("actor",), [], r"state\.actor has 0 entries instead of"),
        (("momenta",), [], "state also has momenta"),
        (("observation_moments",), {}, r"state\.observation_moments lacks "),
        (("environment", "env_ids"), torch.arange(9), r"state\.environment\.env_ids is int64"),
        (("update",), "three", r"state\.update is str instead of a number"),
        (("optimiser",), None, "optimiser is nothing instead of dict"),
        (("optimiser", "state", 99), {}, r"optimiser\.state also has 99"),
        (("optimiser", "param_groups", 0, "params"), [], r"param_groups\.0\.params has 0 entries instead of"),
        (("scenario",), {"task": "other"}, "another task, other rules or another market"),
        (("config",), None, "not a checkpoint of a run"),
    ):
        changed = copy.deepcopy(state)
        *path, last = place
        reduce(getitem, path, changed)[last] = value
        save_checkpoint(changed, tmp_path / CHECKPOINT)
        with pytest.raises(ValueError, match=rf"checkpoint\.pt: .*{words}"):
            load_run(own, tmp_path / CHECKPOINT)
        assert_same_bits(snapshot(own.env.rows) + list(own.parameters), before, f"after {words}")
    # Of policies that are loaded too.
    path, env = tmp_path / CHECKPOINT, market_env(3)
    for fault, words in (
        ({"moments": [torch.zeros(2), torch.ones(2)]}, r"its moments\.0 is float32 of shape \(2,\)"),
        ({"actor": None}, "layers"),
        ({"scenario": {}}, "trained for"),
        ({"config": {}}, "its config lacks hidden, initial_std, policy, precision"),
        ({"members": [1, 2]}, "members of an ensemble in one batch; each is in a folder seed_K beside it"),
        *(
            ({"config": state["config"] | {"hidden": odd}}, "its config has hidden")
            for odd in ((10**9,), (-8,), "8", None)
        ),
        ({"config": state["config"] | {"initial_std": "x"}}, r"checkpoint\.pt: "),
    ):
        save_checkpoint(state | fault, path)
        with pytest.raises(ValueError, match=words):
            load_policy(path, env)
    save_checkpoint({"config": {}}, path)
    with pytest.raises(ValueError, match="holds no policy; of a language model's run, the folder is its model"):
        load_policy(path, env)


def test_the_precision_of_a_run_is_kept_and_read_in_checkpoints_of_before_it_had_a_name(tmp_path, source):
    path, state = tmp_path / CHECKPOINT, read(source)
    config = {name: value for name, value in state["config"].items() if name != "precision"}
    assert config | {"precision": "float32"} == state["config"] and replace(CONFIG, precision="auto") == CONFIG
    for bf16, precision in ((False, "float32"), (True, "bfloat16")):
        own = PPO(market_env(3), replace(CONFIG, precision=precision))
        assert own.state_dict()["config"]["precision"] == precision
        save_checkpoint(state | {"config": config | {"bf16": bf16}}, path)
        load_run(own, path)
        assert load_policy(path, market_env(3)).network.kind == own.network.kind == getattr(torch, precision)
    with pytest.raises(ValueError, match=r"the checkpoint was trained with other precision \(bfloat16, not float32\)"):
        load_run(PPO(market_env(3), CONFIG), path)


def test_every_rollout_is_taken_into_the_moments_once() -> None:
    """After each update they are those of all observations so far, the rollout before the first update among them."""
    own, seen = PPO(market_env(3), replace(CONFIG, policy="flat")), []
    collect = own.collect
    own.collect = lambda: collect() or seen.append(own.collector.observation.flatten(0, 1).double().clone())
    for update in range(1, 3):
        own.update()
        samples = torch.cat(seen)
        assert own.observation_moments.count == len(samples) == (update + 1) * own.batch_size
        torch.testing.assert_close(own.observation_moments.mean, samples.mean(0), rtol=1e-6, atol=1e-7)
        # What scales the next rollout.
        torch.testing.assert_close(own.moments[0], own.observation_moments.mean.float())
        torch.testing.assert_close(own.moments[1], own.observation_moments.deviation().float())
        assert own.reward_scale.return_moments.count == (update + 1) * own.batch_size


class Scripted(Validation):
    def __init__(self, scores: list[float], episodes: int = 4) -> None:
        self.scores, self.seed, self.identity = list(scores), 0, {"episodes": episodes, "seed": 0}
        self.metric_names = METRICS

    def __call__(self, policy: ActorPolicy) -> dict[str, float]:
        return dict.fromkeys(METRICS, 0.0) | {"validation_reward": self.scores.pop(0)}


def validated(scores: list[float], patience: int | None = None, evaluations: int = 6) -> ValidatedLearner:
    return ValidatedLearner(PPO(market_env(3), SIX), Scripted(scores), evaluations, patience)


def test_the_best_policy_is_kept_and_loaded(tmp_path):
    learner, actors = validated([0.1, 0.4, 0.2, 0.5, 0.3, 0.0]), []
    history = run(learner, tmp_path, on_update=lambda _: actors.append([p.clone() for p in learner.learner.actor]))
    assert len(history) == 6 and learner.best["update"] == 4 and learner.best["score"] == 0.5
    kept = load_policy(tmp_path / "checkpoint.pt", market_env(3)).parameters[2:]
    assert same(kept, actors[3]) and not same(kept, actors[5])
    # A resumed run knows it.
    again = validated([])
    again.load_state_dict(learner.state_dict())
    assert again.update_number == 6 and again.best["update"] == 4 and again.failures == 2
    assert same(again.best["actor"], learner.best["actor"])
    # Those of other episodes are no scores beside which another may be the best; older checkpoints do not tell.
    for evaluations, episodes, told in ((2, 4, r"evaluations \(6, not 2\)"), (6, 8, r"episodes \(4, not 8\)")):
        other = ValidatedLearner(PPO(market_env(3), SIX), Scripted([], episodes), evaluations, 1)
        with pytest.raises(ValueError, match=f"was validated with other {told}"):
            other.load_state_dict(learner.state_dict())
        older = {name: value for name, value in learner.state_dict().items() if name != "validation"}
        other.load_state_dict(older)
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(again.learner.state_dict())
    for name, values in (("evaluations", (0, None)), ("patience", (1, 0))):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            ValidatedLearner(learner.learner, Scripted([]), *values)


def test_training_stops_when_the_patience_is_at_its_end():
    """An equal policy is no better one; between validations there are no figures."""
    learner = validated([0.1, 0.5, 0.5, 0.3, 0.6, 0.7], patience=2)
    assert [row["validation_reward"] for row in run(learner)] == [0.1, 0.5, 0.5, 0.3]
    assert learner.best["update"] == 2 and learner.num_updates == 4
    learner = validated([1.0, 2.0, 3.0], evaluations=2)
    rows = run(learner)
    told = [math.isnan(row["validation_reward"]) for row in rows]
    assert learner.every == 3 and told == [False, True, False, True, True, False]
    assert all(set(METRICS) <= row.keys() for row in rows)


def test_a_validation_is_an_evaluation_of_the_same_episodes():
    """Beside the best rule, where it is known: without costs."""
    options = {"num_paths": 4, "num_days": 40, "symbols": ["A", "B"], "generator": {"kind": "momentum"}}
    for commission in (0.0, 0.001):
        env = market_env(2, market="planted", market_options=options, commission=commission)
        learner = PPO(env, CONFIG)
        policy = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
        validation = Validation(env, 5)
        first, again = validation(policy), validation(policy)
        assert first == pytest.approx(again, abs=0.0, rel=0.0, nan_ok=True)
        agents = {"policy": PolicyAgent(policy), "buy_and_hold": task_of(env).agents["buy_and_hold"]()}
        evaluation = evaluate(env, agents | {"best_rule": BestRule()}, 5)
        record, above = evaluation.records["policy"], evaluation.excess_log_returns
        assert first["validation_reward"] == float(record.reward.mean())
        assert first["validation_reference_reward"] == float(evaluation.records["buy_and_hold"].reward.mean())
        assert first["validation_grade"] == pytest.approx(evaluation.grades["policy"]["grade"].mean)
        bounds = [first[f"validation_{name}_{end}"] for name in ("reward", "grade") for end in ("low", "high")]
        assert bounds == pytest.approx(
            [*evaluation.interval(record.reward, "policy")[1:], *evaluation.grades["policy"]["grade"][1:]]
        )
        assert first["validation_sharpe"] == pytest.approx(evaluation.summaries["policy"].mean["sharpe"])
        names = ("excess_percent", "excess_low", "excess_high")
        told = [first[f"validation_{name}"] for name in names]
        assert told == [100 * value for value in above["policy"]]
        if commission:
            assert math.isnan(first["validation_attainable_percent"])
        else:
            assert first["validation_attainable_percent"] == 100 * above["best_rule"].mean != 0


def test_each_member_of_an_ensemble_keeps_its_best_policy_and_its_patience():
    """Scores of the two members in turn: the first is best at once and done after two more, the second at its last."""
    scores = [0.5, 0.1, 0.4, 0.2, 0.5, 0.1, 0.9, 0.3]
    case = learner_case("ppo", ensemble=True, total_frames=5 * 24)
    learner = ValidatedEnsemble(case.new(), Scripted(scores), evaluations=5, patience=2)
    rows = [learner.update() for _ in range(4)]
    assert [(best["update"], best["score"]) for best in learner.bests] == [(1, 0.5), (4, 0.3)]
    assert learner.counts == [2, 0] and learner.num_updates == 5
    own = f"validation_reward.seed_{learner.learner.seeds[1]}"
    assert rows[0]["validation_reward"] == pytest.approx(0.3) and rows[3][own] == 0.3
    assert set(learner.metric_names()) <= rows[0].keys() and len(learner.metric_names()) == 3 * len(METRICS)
    kept = learner.member_state(1)
    assert kept["best"]["update"] == 4 and kept["failures"] == 0 and kept["validation"] == learner.identity
    assert torch.equal(kept["best"]["actor"][0], kept["actor"][0])
    assert not torch.equal(learner.bests[0]["actor"][0], learner.learner.actor[0][0])
    again = ValidatedEnsemble(case.new(), Scripted([0.0, 0.0]), evaluations=5, patience=1)
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(learner.learner.state_dict())
    again.load_state_dict(learner.state_dict())
    assert again.counts == [2, 0] and again.bests[1]["score"] == 0.3 and again.num_updates == 5
    again.counts[1] = 1
    assert again.num_updates == again.update_number == 4
