"""CVaR-PPO: penalised advantages, lambda and nu by hand, equal to PPO where nothing binds, and thinner tails."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.learn.small_tasks import same
from tests.learn.tails_task import SAFE, RatedTails, Tails, tails_env
from vecenv import VecEnv
from vecenv.core.capabilities import Donating, WarmUp
from vecenv.learn.cppo import CPPO, CPPOConfig, mean_return, shortfall_penalty, trajectory_returns
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.shards import Shards

PLAIN = {"num_steps": 5, "total_frames": 4 * 5 * 16, "epochs": 2, "minibatches": 2, "hidden": (8,)}
SMALL = CPPOConfig(**PLAIN, beta=6.0, lam_start=0.2, lam_lr=0.01, cvar_clip_ratio=0.5)
NEVER = {"beta": -1e9, "lam_low_bound": 0.0}
"""Settings by which lambda is 0 from the first update."""


class Watched(CPPO):
    """A learner that keeps rewards, ends and choices of all rollouts, and what the last one made of the advantages."""

    def __init__(self, env: VecEnv, config: CPPOConfig) -> None:
        super().__init__(env, config)
        self.history: list[list[tuple[float, bool, int]]] = [[] for _ in range(env.num_envs)]

    def collect(self) -> None:
        super().collect()
        collector = self.collector
        done = collector.terminated | collector.truncated
        for row, seen in enumerate(self.history):
            columns = (tensor[:, row].tolist() for tensor in (collector.reward, done, collector.actions))
            seen.extend(zip(*columns, strict=True))

    def learned_advantages(self, advantages: Tensor, values: Tensor, next_values: Tensor) -> Tensor:
        judged = float(self.nu), float(self.multiplier), self.reward_scale.deviation().item()
        learned = super().learned_advantages(advantages, values, next_values)
        self.seen = (advantages.clone(), values, next_values, learned, judged)
        return learned


def episodes_of(seen: list[tuple[float, bool, int]]) -> list[tuple[int, int, bool]]:
    """Return first and last step of each episode of a row, and whether it ended."""
    found, first = [], 0
    for step, (_, done, _) in enumerate(seen):
        if done:
            found.append((first, step, True))
            first = step + 1
    return found + ([(first, len(seen) - 1, False)] if first < len(seen) else [])


def expected(learner: Watched, lengths: Tensor | None) -> tuple[list[list[float]], list[float]]:
    """Return the learned advantages of the last rollout, row by row, and the returns of its trajectories, by hand."""
    config, (advantages, values, next_values, _, (nu, multiplier, deviation)) = learner.config, learner.seen
    steps, unit = config.num_steps, config.reward_unit * deviation
    learned, returns = advantages.T.tolist(), []
    for row, seen in enumerate(learner.history):
        before = len(seen) - steps
        for number, (first, last, ended) in enumerate(episodes_of(seen)):
            if last < before:
                continue
            total = 0.0
            for step in range(first, last + 1):
                reward, _, choice = seen[step]
                if lengths is not None:
                    # The risk levels of `RatedTails`.
                    level = 1 + (step - first + 1) / int(lengths[row, number]) if choice == SAFE else 2.0
                    reward = reward / level if reward > 0 else reward * level
                total += config.reward_unit * reward
            if not ended:
                total += unit * float(next_values[-1, row])
            returns.append(total)
            for step in range(max(first, before) - before, last - before + 1):
                of = values if config.cvar_clip_of == "value" else advantages
                cap = config.cvar_clip_ratio * abs(float(of[step, row]))
                learned[row][step] -= min(multiplier / (1 - config.alpha) * max(nu - total, 0.0) / unit, cap)
    return learned, returns


class DonatedTails(Donating, RatedTails):
    donated = frozenset({"pays"})


@pytest.mark.parametrize(
    ("gamma", "ends", "cap", "risk"),
    [
        (0.0, "truncated", ("value", 0.5), False),
        (0.9, "terminated", ("advantage", 0.9), False),
        (0.9, "truncated", ("value", 1e6), False),
        (0.99, "terminated", ("value", 1e6), True),
    ],
)
def test_each_step_is_charged_with_its_own_trajectory(gamma, ends, cap, risk) -> None:
    """And rewards are weighed by the risk of what was held, if asked for."""
    env, lengths = tails_env(16, 0, DonatedTails(7, 1, ends)), None
    if risk:
        started = env.engine.bound().of_rows(torch.arange(16).repeat_interleave(20))
        rows = started.start(env.seed_tensor, env.start_ids.repeat_interleave(20), torch.arange(20).repeat(16))
        lengths = rows.state.length.view(16, 20)
    config = replace(SMALL, gamma=gamma, cvar_clip_of=cap[0], cvar_clip_ratio=cap[1], reward_unit=2.0, weigh_risk=risk)
    learner = Watched(env, config)
    for number in range(3):
        metrics = learner.update()
        learned, returns = expected(learner, lengths)
        torch.testing.assert_close(learner.seen[3].T, torch.tensor(learned), rtol=1e-4, atol=1e-5)
        assert metrics["trajectory_return"] == pytest.approx(sum(returns) / len(returns), rel=1e-4)
        short = [value < learner.seen[4][0] for value in returns]
        assert number == 0 or 0 < sum(short) < len(short)
    # Several episodes of a row in one rollout, some of which began in an earlier one, and some that it cuts.
    ends_of_last = (learner.collector.terminated | learner.collector.truncated).sum(0)
    assert ends_of_last.max() > 1 and not learner.collector.rows().done[-1].all()
    assert 0 < metrics["penalised_fraction"] < 1 and (metrics["capped_fraction"] > 0) == (cap[1] < 1)
    # Targets of the critic are not penalised.
    values, _, targets = learner.advantages()
    assert torch.equal(targets, values + learner.seen[0]) and not torch.equal(learner.seen[0], learner.seen[3])


def test_the_penalty_lambda_and_nu_by_hand() -> None:
    """Returns below, at and above a threshold of 1, with the second capped."""
    returns, nu, multiplier = torch.tensor([[0.5, -3.0, 1.0, 2.0]]), torch.tensor(1.0), torch.tensor(0.3)
    found = shortfall_penalty(returns, nu, multiplier, 0.4, torch.tensor(2.0), torch.full((1, 4), 0.9))
    assert found.amount[0].tolist() == pytest.approx([0.125, 0.9, 0.0, 0.0])
    assert found.short[0].tolist() == [True, True, False, False]
    assert found.capped[0].tolist() == [False, True, False, False]
    so_far, done = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[True, False], [False, False]])
    whole = trajectory_returns(so_far, done, torch.tensor([10.0, 20.0]))
    assert whole.tolist() == [[1.0, 25.0], [13.0, 25.0]]
    assert float(mean_return([whole], [done], Shards())) == pytest.approx((1 + 13 + 25) / 3)
    learner = CPPO(tails_env(16, 0, Tails(3)), replace(SMALL, nu_delay=0.5))
    nu, multiplier = SMALL.nu_start, SMALL.lam_start
    for _ in range(3):
        metrics = learner.update()
        multiplier += 0.01 * (6.0 - nu)
        assert metrics["cvar_lambda"] == pytest.approx(multiplier) and metrics["cvar_nu"] == pytest.approx(nu)
        nu = 0.5 * metrics["trajectory_return"]
        assert float(learner.nu) == pytest.approx(nu)
    # It falls to its bound and rises from it.
    learner = CPPO(tails_env(16, 0, Tails(3)), replace(SMALL, beta=-30.0, lam_low_bound=0.001))
    assert learner.update()["cvar_lambda"] == pytest.approx(0.001)
    learner.nu.fill_(-31.0)
    assert learner.update()["cvar_lambda"] == pytest.approx(0.001 + 0.01)


def test_without_an_active_constraint_it_is_ppo_and_the_unit_of_rewards_does_not_matter() -> None:
    config = CPPOConfig(**PLAIN, **NEVER)
    learned, plain = CPPO(tails_env(16, 3, Tails(7)), config), PPO(tails_env(16, 3, Tails(7)), PPOConfig(**PLAIN))
    for _ in range(2):
        one, other = learned.update(), plain.update()
        shared = {name: value for name, value in one.items() if name in other and name != "samples_per_second"}
        assert str(shared) == str({name: other[name] for name in shared})
    assert same(learned.parameters, plain.parameters)
    # Rewards that count fourfold, with a constraint that is as much larger, are the same problem.
    other = replace(SMALL, reward_unit=4.0, beta=4 * SMALL.beta, nu_start=4 * SMALL.nu_start, lam_lr=SMALL.lam_lr / 4)
    learners = [CPPO(tails_env(16, 0, Tails(7)), config) for config in (SMALL, other)]
    for learner in learners:
        learner.update(), learner.update()
    assert same(learners[0].parameters, learners[1].parameters)
    assert float(learners[1].nu) == 4 * float(learners[0].nu)
    # A reset between rollouts begins new sums.
    learner = Watched(tails_env(16, 0, Tails(7, 7)), SMALL)
    learner.update()
    assert learner.carried_return.abs().min() > 0
    learner.env.reset()
    learner.collect()
    torch.testing.assert_close(learner.so_far, learner.collector.reward.cumsum(0))


def test_risk_that_the_task_does_not_have_is_refused() -> None:
    warm = type("Warm", (WarmUp, RatedTails), {"warm_up": 1, "warmed": lambda self, state, params, shared: state})()
    for scenario, told in (
        (Tails(), "weigh_risk needs the risk level of what is held, which task 'tails' "),
        (warm, "weigh_risk is for tasks without a warm-up, which task 'rated_tails' has"),
    ):
        with pytest.raises(ValueError, match=told):
            CPPO(tails_env(16, 0, scenario), replace(SMALL, weigh_risk=True))


TOY = {
    "num_steps": 8, "total_frames": 8 * 256 * 60, "epochs": 2, "minibatches": 4, "hidden": (8,), "learning_rate": 3e-3,
    "anneal": False,
}  # fmt: skip
SEEDS = range(5)


def safe_shares(kind: type[PPO], config: PPOConfig, longest: int) -> list[float]:
    """Return for each seed how often the last rollout chose the thinner tail."""
    shares = []
    for seed in SEEDS:
        learner = kind(tails_env(256, seed, Tails(longest, longest)), replace(config, seed=seed))
        while learner.update_number < learner.num_updates:
            learner.update()
        shares.append(float((learner.collector.actions == SAFE).float().mean()))
    return shares


@pytest.mark.nightly
@pytest.mark.parametrize("longest", [1, 4])
def test_it_chooses_the_thinner_tail_and_ppo_does_not(longest: int) -> None:
    plain = safe_shares(PPO, PPOConfig(**TOY), longest)
    assert 0.2 < sum(plain) / len(plain) < 0.65
    for settings in ({"cvar_clip_of": "advantage", "cvar_clip_ratio": 0.5}, {"beta": longest, "cvar_clip_ratio": 1.0}):
        shares = safe_shares(CPPO, CPPOConfig(**TOY, **settings), longest)
        assert min(shares) > 0.75 and sum(shares) / len(shares) > 0.9
