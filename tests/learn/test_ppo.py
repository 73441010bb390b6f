"""PPO and A2C: losses by hand, the right values, updates as set, masks, references; several members in one batch."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vecenv
from tests.learn.small_tasks import SMALL_PPO, planted_env
from tests.small_env import make_env, same_bits, small_tape
from vecenv import VecEnv
from vecenv.learn import train
from vecenv.learn.a2c import a2c_losses
from vecenv.learn.cppo import CPPO, CVAR_METRICS, CPPOConfig
from vecenv.learn.members import ensemble_of, means_of_members, member_metric, metrics_of_member, row_seeds
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig, ppo_losses
from vecenv.learn.runs import update_seed
from vecenv.learn.settings.run import CHECKPOINT


def test_losses_by_hand() -> None:
    """Ratios of 2, 1/2 and 1, clipped at 1 ± 0.3; and those of A2C."""
    old, advantage = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([3.0, -2.0, 1.0])
    log_prob, entropy = old + torch.tensor([2.0, 0.5, 1.0]).log(), torch.tensor([1.0, 2.0, 6.0])
    value, target = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.0, 5.0])
    found = ppo_losses(log_prob, entropy, value, old, advantage, target, 0.3)
    # min(6, 1.3 x 3), min(-1, -0.7 x 2) and 1.
    told = [-(3.9 - 1.4 + 1.0) / 3, (1 + 0 + 4) / 3, 3.0, (2 - 1 - 0.693147 + 0.5 - 1 + 0.693147) / 3, 2 / 3]
    assert [float(term) for term in found] == pytest.approx(told, rel=1e-5)
    losses = a2c_losses(torch.tensor([-1.0, -2.0, 0.0]), entropy, value, advantage, target)
    assert [float(term) for term in losses] == pytest.approx([(3.0 - 4.0) / 3, (1 + 0 + 4) / 3, 3.0])


def test_the_seed_of_the_shuffles_is_that_of_the_update() -> None:
    assert [update_seed(3, update) for update in (0, 1, 2)] == [3, 3 + 0x9E3779B9, (3 + 2 * 0x9E3779B9) % 2**32]
    learner = PPO(planted_env(), replace(SMALL_PPO, seed=3))
    learner.update_number = 2
    learner.seed_shuffles()
    order = torch.randperm(128, generator=torch.Generator().manual_seed(update_seed(3, 2))).view(2, 64)
    assert torch.equal(*learner.shuffled(), order)


def test_no_further_epoch_once_the_divergence_is_too_large() -> None:
    for target_kl, steps in ((None, 6), (1e3, 6), (1e-12, 2)):
        learner = PPO(planted_env(), replace(SMALL_PPO, epochs=3, target_kl=target_kl))
        learner.update()
        assert {int(state["step"]) for state in learner.optimiser.state.values()} == {steps}


def test_gradients_are_scaled_down_and_never_up() -> None:
    """To the largest norm from above it; below it they are as they are."""
    gradients, once = {}, replace(SMALL_PPO, epochs=1, minibatches=1, total_frames=8 * 16)
    for largest in (1e-3, 1e6, 1e9):
        learner = PPO(planted_env(), replace(once, max_grad_norm=largest))
        learner.update()
        gradients[largest] = torch.cat([parameter.grad.flatten() for parameter in learner.parameters])
    assert float(gradients[1e-3].norm()) == pytest.approx(1e-3, rel=1e-2)
    assert torch.equal(gradients[1e6], gradients[1e9]) and 1e-3 < float(gradients[1e6].norm()) < 1e3
    torch.testing.assert_close(gradients[1e-3] / gradients[1e-3].norm(), gradients[1e6] / gradients[1e6].norm())


def test_next_values_see_the_observation_before_the_reset_and_first_ratios_are_one() -> None:
    learner = PPO(planted_env(4, episode_length=3, seed=2), replace(SMALL_PPO, normalise_rewards=False, gae_lambda=0.0))
    learner.update()
    collector = learner.collector
    values, _, targets = learner.advantages()
    rows = collector.rows()
    for step in range(8):
        after = learner.env.observe_rows(rows[step], torch.arange(4))
        expected = collector.reward[step] + learner.config.gamma * learner._values(after)
        torch.testing.assert_close(targets[step], expected, rtol=0, atol=1e-5)
    # With the values of the next episodes' first observations they would not.
    cut = collector.truncated[:-1]
    assert 0 < cut.sum() < cut.numel()
    wrong = collector.reward[:-1] + learner.config.gamma * values[1:]
    assert not torch.isclose(targets[:-1][cut], wrong[cut], rtol=0, atol=1e-5).any()
    for precision in ("float32", "bfloat16"):
        config = replace(SMALL_PPO, epochs=1, minibatches=1, precision=precision, target_kl=1.0)
        metrics = PPO(planted_env(), config).update()
        assert metrics["approx_kl"] < 1e-6 and metrics["clip_fraction"] == metrics["benchmark_kl"] == 0.0


def test_the_divergence_from_the_benchmark_and_the_explained_variance() -> None:
    learner = PPO(planted_env(), replace(SMALL_PPO, benchmark_kl=0.3))
    learner.collect()
    seen, actions = (part.flatten(0, 1) for part in (learner.collector.seen[0], learner.collector.actions))
    log_prob = learner.collector.extras["log_prob"].flatten()
    given = (learner.parameters, seen, None, actions, log_prob, 0 * log_prob, 0 * log_prob)
    loss, metrics = learner.objective(*given)
    learner.config = replace(learner.config, benchmark_kl=0.0)
    without, others = learner.objective(*given)
    means, own = learner.network.outputs(learner.actor, seen, None)
    expected = float(learner.network.head.divergence_from_centre(means, own).mean())
    told = dict(zip(learner.loss_metrics, metrics, strict=True))
    assert float(told["benchmark_kl"]) == pytest.approx(expected, rel=1e-5) and expected > 0
    assert float(loss - without) == pytest.approx(0.3 * expected, rel=1e-4)
    assert torch.equal(metrics[:-1], others[:-1]) and others[-1] == 0
    # Values that are half of their targets leave a quarter of the variance.
    learner.seed_shuffles()
    targets = torch.arange(128.0).view(8, 16)
    learner.advantages = lambda: (targets / 2, torch.zeros(8, 16), targets)
    assert learner.learn()["explained_variance"] == pytest.approx(0.75)


def test_several_masked_choices_are_taken_and_valued_as_allowed() -> None:
    market = {"num_paths": 2, "num_days": 400}
    env = vecenv.make("multi_stock_3", 64, action="discrete", market_options=market, compile=False)
    learner = PPO(env, PPOConfig(num_steps=8, total_frames=64 * 8, epochs=1, minibatches=1, hidden=(16,)))
    assert learner.update()["approx_kl"] < 1e-6
    collector, head = learner.collector, learner.network.head
    observation, action = collector.observation.flatten(0, 1), collector.actions.flatten(0, 1)
    allowed = learner.network.mask(observation)
    parts = allowed.split(head.choices, dim=-1)
    taken = [part.gather(1, choice[:, None]) for part, choice in zip(parts, action.flatten(1).unbind(-1), strict=True)]
    assert not allowed.all() and torch.cat(taken, dim=-1).all()
    outputs, own = learner.network.outputs([torch.zeros_like(tensor) for tensor in learner.actor], observation, allowed)
    entropy = head.evaluate(outputs, own, action)[1]
    torch.testing.assert_close(entropy, sum(part.sum(-1).log() for part in parts), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"an action mask must have shape \(5, "):
        learner.network.outputs(learner.actor, observation[:5], torch.ones(5, 1, dtype=torch.bool))


def rating_env(num_envs: int, **market: Any) -> VecEnv:
    """News and returns of the day are all that is seen: no block is a row's own."""
    options = {"num_paths": 1, "num_days": 60, **market}
    return vecenv.make("news_signals", num_envs, market="news", market_options=options, compile=False)


@pytest.mark.parametrize(
    ("made", "other", "minibatches"),
    [
        (make_env, {"tape": small_tape(seed=5)}, 2),
        (make_env, {"tape": small_tape(seed=5)}, 1),
        (rating_env, {"seed": 5}, 2),
    ],
    ids=["blocks", "blocks, days twice in a minibatch", "none"],
)
def test_observations_by_reference_teach_the_same_up_to_rounding(
    made: Any, other: dict[str, Any], minibatches: int
) -> None:
    """Whatever becomes of weights, moments and market, from which the first layer's table is made."""
    config = replace(SMALL_PPO, total_frames=4 * 8 * 16, minibatches=minibatches)
    whole, parts = (PPO(made(16), replace(config, by_reference=by)) for by in (False, True))
    assert whole.collector.references is None and parts.collector.references is not None
    for update in range(3):
        if update == 2:
            for one in (whole, parts):
                one.env.write_shared(made(16, **other).scenario.shared)
        told = [one.update() for one in (whole, parts)]
        for name in ("policy_loss", "value_loss", "entropy", "reward", "explained_variance"):
            assert told[1][name] == pytest.approx(told[0][name], rel=1e-3, abs=1e-4), name
    for one, other in zip(whole.parameters, parts.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    for one, other in zip(whole.moments, parts.moments, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.assembly
@pytest.mark.parametrize("by", [False, True])
def test_compiled_values_read_critic_moments_and_market_as_they_are_now(by: bool) -> None:
    """Those of two parts of each of two shards, beside the critic's of whole observations, eagerly."""
    learner = PPO(make_env(8, compiled=True), replace(SMALL_PPO, shards=2, by_reference=by))
    generator = torch.Generator().manual_seed(0)
    own, *reference = learner.collector.seen
    own.copy_(torch.randn(own.shape, generator=generator))
    for days in reference:
        days.copy_(torch.randint(learner.collector.references.count, days.shape, generator=generator))
    former = torch.zeros(8, 8)
    for changed in ([], learner.critic[:1], learner.critic[-1:], learner.moments, None):
        if changed is None:
            learner.env.write_shared(make_env(8, tape=small_tape(seed=5)).scenario.shared)
        for tensor in changed or []:
            tensor.mul_(1.5).add_(0.1)
        found, whole = learner.values_of_rollout(), learner.collector.observation.flatten(0, 1)
        torch.testing.assert_close(found.flatten(), learner._values(whole), rtol=1e-4, atol=1e-5)
        # What is kept whole does not refer to the market.
        assert torch.equal(found, former) == (changed is None and not by)
        former = found


@pytest.mark.assembly
@pytest.mark.parametrize("policy", ["flat", "symbol"])
def test_compiled_moments_are_those_of_all_samples_so_far(policy: str) -> None:
    settings = {"shards": 2, "policy": policy, "by_reference": False}
    learner = PPO(make_env(8, compiled=True), replace(SMALL_PPO, **settings))
    generator, given = torch.Generator().manual_seed(0), []
    for rollout in range(2):
        (seen,) = learner.collector.seen
        seen.copy_(torch.rand(seen.shape, generator=generator) + 10 * rollout + 1)
        learner.update_moments()
        given.append(learner.network.samples(seen.flatten(0, 1)).double())
        every, found = torch.cat(given), learner.observation_moments
        torch.testing.assert_close(found.mean, every.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.squares, every.var(0, correction=0) * len(every), rtol=1e-4, atol=1e-6)


def test_references_are_used_where_a_batch_has_twice_as_many_steps_as_the_market_has_days() -> None:
    def by_default(env: VecEnv, **settings: Any) -> bool:
        made = PPO(env, replace(SMALL_PPO, **({"minibatches": 1} | settings)))
        return made.collector.references is not None

    # 40 days, rollouts of 8 steps.
    assert by_default(make_env(10)) and not by_default(make_env(9))
    tier = vecenv.make("single_stock", 16, market="synthetic", market_options={"num_paths": 1}, compile=False)
    for env, settings, told in (
        (make_env(10), {"policy": "symbol"}, "they need a flat policy with a hidden layer"),
        (make_env(10), {"hidden": ()}, "they need a flat policy with a hidden layer"),
        (tier, {}, "those of single_stock are not made of shared tensors"),
    ):
        assert not by_default(env, **settings)
        with pytest.raises(ValueError, match=f"no observations by reference: {told}"):
            by_default(env, by_reference=True, **settings)


def test_what_does_not_fit_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(planted_env(), SMALL_PPO, tmp_path, resume=True)
    assert not list(tmp_path.iterdir())
    short = replace(SMALL_PPO, total_frames=1, epochs=1)
    train(planted_env(), short, tmp_path)
    with pytest.raises(
        ValueError, match=r"checkpoint\.pt: the checkpoint was trained with other gamma \(\S+, not 0.5\)$"
    ):
        train(planted_env(), replace(short, gamma=0.5), tmp_path, resume=True)
    with pytest.raises(ValueError, match="resume needs the folder of the run"):
        train(planted_env(), short, resume=True)
    with pytest.raises(ValueError, match="cannot be split into 7 equal minibatches"):
        PPO(planted_env(), replace(SMALL_PPO, minibatches=7))
    with pytest.raises(ValueError, match="other sizes"):
        load_policy(tmp_path / CHECKPOINT, planted_env(2, num_symbols=3))


SEEDS, ROWS = (3, 7, 5), 12
BATCH = {"num_steps": 8, "total_frames": 4 * 8 * ROWS, "epochs": 2, "minibatches": 2, "hidden": (8, 8)}
MEMBER = PPOConfig(**BATCH, by_reference=False, learning_rate=1e-2, gamma=0.95)
# Active penalties of very different size from the first update on.
PENALTIES = {"beta": 5.0, "nu_start": 3.0, "lam_start": 0.5, "lam_lr": 0.1, "cvar_clip_ratio": 0.5}
TAILS = CPPOConfig(**asdict(MEMBER), **PENALTIES, reward_unit=100.0, cvar_clip_of="advantage")
UNSCALED = {"normalise_rewards": False, "normalise_observations": False, "normalise_advantages": False}
TRADING = {"task": "stock_trading", "action": "tilt", "episode_length": 12, "min_episode_length": 3}
TRADING |= {"cash_scale": 1e-6, "price_scale": 1e-2, "holdings_scale": 1e-3, "feature_scale": 1e-2}
CASES = {
    "flat": (TRADING, MEMBER),
    "tails": (TRADING, TAILS),
    "symbol": (TRADING, replace(MEMBER, policy="symbol", gamma=0.0, benchmark_kl=0.01, entropy_coef=0.01)),
    "raw": (TRADING, replace(MEMBER, **UNSCALED)),
    "masked": ({"task": "multi_stock_3", "days": 6}, replace(MEMBER, gamma=0.99)),
}

TOLD = {
    "reward", "episodes", "market_rows", "grade", "return_percent", "policy_loss", "value_loss", "entropy",
    "approx_kl", "clip_fraction", "benchmark_kl", "explained_variance", *CVAR_METRICS,
}  # fmt: skip
"""Metrics of a single run that each member has too."""


def make(rules, num_envs, **identity):
    market = {"market": "synthetic", "market_options": {"num_paths": 3, "num_days": 300}}
    return vecenv.make(num_envs=num_envs, compile=False, **market, **rules, **identity)


def ensemble(case="flat", seeds=SEEDS, **settings):
    rules, config = CASES[case]
    env = make(rules, ROWS * len(seeds), **row_seeds(seeds, ROWS))
    return ensemble_of(CPPO if case == "tails" else PPO)(env, replace(config, **settings), seeds)


def single(case, seed):
    rules, config = CASES[case]
    return (CPPO if case == "tails" else PPO)(make(rules, ROWS, seed=seed), replace(config, seed=seed))


@pytest.mark.parametrize(
    "case", [name if name in ("flat", "tails") else pytest.param(name, marks=pytest.mark.assembly) for name in CASES]
)
def test_a_member_learns_what_a_single_run_of_its_seed_does_and_goes_on_as_one(case):
    together, alone = ensemble(case), [single(case, seed) for seed in SEEDS]
    start = [parameter.clone() for parameter in together.parameters]
    for update in range(3):
        if update == 2:
            resumed, rows = single(case, SEEDS[1]), slice(ROWS, 2 * ROWS)
            resumed.load_state_dict(together.member_state(1))
            assert resumed.update_number == 2 and same_bits(resumed.actor[0], together.actor[0][1])
            discounted = resumed.reward_scale.discounted_return
            assert same_bits(discounted, together.reward_scale.discounted_return[rows])
        metrics = together.update()
        for seed, learner in zip(SEEDS, alone, strict=True):
            own = learner.update()
            told = {name: metrics[member_metric(name, seed)] for name in own if name in TOLD}
            assert told == pytest.approx({name: own[name] for name in told}, rel=2e-3, abs=1e-5, nan_ok=True)
    assert metrics["entropy"] == pytest.approx(sum(metrics[member_metric("entropy", seed)] for seed in SEEDS) / 3)
    assert metrics["frames"] == 3 * 8 * ROWS
    resumed.update()
    for number, learner in (*enumerate(alone), (1, resumed)):
        pairs = zip([*together.parameters, *together.moments], [*learner.parameters, *learner.moments], strict=True)
        for stacked, own in pairs:
            torch.testing.assert_close(stacked[number], own, rtol=1e-4, atol=2e-5)
        elapsed = together.env.rows[number * ROWS : (number + 1) * ROWS].elapsed
        torch.testing.assert_close(elapsed, learner.env.rows.elapsed)
    moved = max(float((now - before).abs().max()) for now, before in zip(together.parameters, start, strict=True))
    assert moved > 100 * 2e-5
    if case == "tails":
        assert told["penalised_fraction"] > 0.2 and len({float(nu) for nu in together.nu}) == len(SEEDS)
        assert together.multiplier[1] == alone[1].multiplier == resumed.multiplier
        torch.testing.assert_close(together.carried_return[rows], alone[1].carried_return, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_one_batch_is_refused():
    with pytest.raises(ValueError, match="needs at least two members, got 1"):
        ensemble(seeds=(1,))
    with pytest.raises(ValueError, match="35 sub-environments cannot be shared evenly by 3 members"):
        ensemble_of(PPO)(make(TRADING, 35), MEMBER, SEEDS)
    with pytest.raises(ValueError, match="target_kl stops one learner's epochs"):
        ensemble(target_kl=0.01)
    with pytest.raises(ValueError, match="by_reference keeps one table for one policy"):
        ensemble(by_reference=True)
    with pytest.raises(ValueError, match="curriculum follows a schedule by its results, which members cannot share"):
        ensemble_of(PPO)(make({"task": "curriculum", "tiers": ("single_stock",)}, 36), MEMBER, SEEDS)
    with pytest.raises(ValueError, match=r"the checkpoint has the members \[3, 7, 5\], not \[3, 7, 6\]"):
        ensemble(seeds=(3, 7, 6)).load_state_dict({"members": [3, 7, 5]})


def test_rows_and_metrics_of_members_by_hand():
    told = row_seeds((3, 7), 2)
    assert told["seed"].tolist() == [3, 3, 7, 7] and told["env_ids"].tolist() == [0, 1, 0, 1]
    row = {"update": 2.0, "loss": 3.0, "loss.seed_3": 2.0, "loss.seed_7": 4.0, "grade.seed_3": math.nan}
    row |= {"grade.seed_7": 1.0}
    assert means_of_members(row, (3, 7)) == {"loss": 3.0, "grade": 1.0}
    assert metrics_of_member(row, 7) == {"update": 2.0, "loss": 4.0}
