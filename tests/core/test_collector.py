"""The fused collector: the same numbers as `VecEnv`, compiled or not, and every step kept."""

import pytest
import torch
from tensordict import TensorDict

from tests.small_env import assert_same_bits, collected, make_env, same_bits, small_tape, snapshot
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, uniform

NUM_ENVS, NUM_STEPS, NUM_SYMBOLS = 16, 12, 3


def two_rollouts(collector: FusedCollector) -> list[list[torch.Tensor]]:
    results = []
    for _ in range(2):
        collector.rollout()
        results.append(collected(collector))
    return results


def grouped() -> VecEnv:
    """Groups of two rows, which start alike and draw apart."""
    env = make_env(NUM_ENVS)
    env.reset_groups(NUM_ENVS // 2, 2, seed=4)
    return env


@pytest.fixture(scope="module")
def eager_rollouts() -> list[list[torch.Tensor]]:
    return two_rollouts(FusedCollector(grouped(), num_steps=NUM_STEPS))


@pytest.mark.assembly
def test_compiled_and_eager_agree_bit_for_bit(eager_rollouts):
    """Account, actions, rewards, flags and observations of two rollouts, with several ends in each row."""
    for mode in ("compiled", "recorded"):
        compiled = two_rollouts(FusedCollector(grouped(), num_steps=NUM_STEPS, mode=mode))
        for rollout in range(2):
            assert_same_bits(compiled[rollout], eager_rollouts[rollout], f"in rollout {rollout}, {mode}")


def stepped_by_hand(env: VecEnv, actions: torch.Tensor) -> list[TensorDict]:
    """Step the environment, resetting the rows that are done before each step."""
    observed, results = env.reset(), []
    for action in actions:
        if observed["done"].any():
            marked = observed["done"].clone()
            reset = env.reset(TensorDict({"_reset": marked, "done": marked}, batch_size=env.batch_size))
            observed["observation"] = torch.where(marked, reset["observation"], observed["observation"])
        result = env.step(TensorDict({"observation": observed["observation"], "action": action}, env.batch_size))
        results.append(result.clone())
        observed = result["next"].clone()
    return results


def stepped_by_torchrl(env: VecEnv, actions: torch.Tensor) -> list[TensorDict]:
    """Let TorchRL step and reset."""
    observed, results = env.reset(), []
    for action in actions:
        result, observed = env.step_and_maybe_reset(observed.set("action", action))
        results.append(result.clone())
    return results


@pytest.mark.parametrize("door", [stepped_by_hand, stepped_by_torchrl], ids=["explicit resets", "step_and_maybe_reset"])
def test_both_doors_give_the_same_numbers(eager_rollouts, door):
    """A rollout of given actions, two rollouts that drew them, and TorchRL steps."""
    actions = torch.cat([rollout[-5] for rollout in eager_rollouts])
    given = FusedCollector(grouped(), "given", num_steps=2 * NUM_STEPS)
    with pytest.raises(AttributeError, match="write given actions in place, collector"):
        given.actions = actions
    given.actions.copy_(actions)
    batch = given.rollout()
    assert same_bits(given.actions, actions)
    for whole, first, second in zip(collected(given), *eager_rollouts, strict=True):
        assert same_bits(whole, torch.cat([first, second]))
    env = grouped()
    for step, result in enumerate(door(env, actions)):
        for name in ("observation", "action"):
            assert same_bits(batch[name][:, step], result[name]), f"{name} at step {step}"
        for name in ("reward", "done", "terminated", "truncated"):
            assert same_bits(batch["next", name][:, step], result["next", name]), f"{name} at step {step}"
        ended = result["next", "done"][:, 0].nonzero()[:, 0]
        if len(ended) > 0:
            final = given.final_observations(torch.full_like(ended, step), ended)
            assert same_bits(final, result["next", "observation"][ended]), f"final observations at step {step}"
    # TorchRL has reset the rows that ended in the last step, the collector will at its next.
    ended = given.env.rows.done
    for left, right in zip(snapshot(given.env.rows), snapshot(env.rows), strict=True):
        assert same_bits(left[~ended], right[~ended])


def test_the_batch_is_made_of_views_of_the_buffers(eager_rollouts):
    """Observations lie in whole cache lines; without them nothing else changes."""
    collector = FusedCollector(grouped(), num_steps=NUM_STEPS)
    batch = collector.rollout()
    assert len(collector.actions[0].unique(dim=0)) == NUM_ENVS
    assert batch["observation"].shape == (NUM_ENVS, NUM_STEPS, NUM_SYMBOLS * 4 + 1)
    assert batch["next", "reward"].shape == (NUM_ENVS, NUM_STEPS, 1)
    assert collector.observation.stride() == (16 * NUM_ENVS, 16, 1)
    for name, buffer in (("observation", collector.observation), ("action", collector.actions)):
        assert batch[name].data_ptr() == buffer.data_ptr()
    blind = FusedCollector(grouped(), num_steps=NUM_STEPS, store_observations=False)
    assert "observation" not in blind.rollout() and blind.observation is None
    assert_same_bits(collected(blind), eager_rollouts[0][:-1])


class NoisyPolicy:
    """Scales the first observations by a weight and adds noise; records the noise."""

    def __init__(self) -> None:
        self.parameters = [torch.tensor(0.5)]
        self.extras = {"noise": ((NUM_SYMBOLS,), torch.float32)}

    def act(self, parameters, observation, key: EpisodeKey, elapsed):
        wide = EpisodeKey(*(word.unsqueeze(-1) for word in key))
        index = elapsed.unsqueeze(-1) * NUM_SYMBOLS + torch.arange(NUM_SYMBOLS)
        noise = uniform(wide, (1 << 16) + 1, index) - 0.5
        return parameters[0] * observation[:, 1 : 1 + NUM_SYMBOLS] + noise, noise


def test_a_policy_sees_the_observation_and_its_parameters_may_change():
    policy = NoisyPolicy()
    collector = FusedCollector(grouped(), policy, num_steps=4)
    noises = []
    for weight in (0.5, -2.0):
        policy.parameters[0].fill_(weight)
        batch = collector.rollout()
        expected = weight * batch["observation"][..., 1 : 1 + NUM_SYMBOLS] + batch["noise"]
        torch.testing.assert_close(batch["action"], expected, rtol=1e-6, atol=1e-6)
        noises.append(batch["noise"].reshape(-1, NUM_SYMBOLS).clone())
    assert len(torch.cat(noises).unique(dim=0)) == 8 * NUM_ENVS, "noise was drawn twice"


def test_a_rollout_that_fails_leaves_the_rows_before_it(monkeypatch):
    collector, other = (FusedCollector(make_env(4), num_steps=3) for _ in range(2))
    for each in (collector, other):
        each.rollout()
    own = collector._replay
    monkeypatch.setattr(collector, "_replay", lambda: (own(), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        collector.rollout()
    assert_same_bits(snapshot(collector.env.rows), snapshot(other.env.rows))


def test_arguments_out_of_range_are_refused():
    modes = [FusedCollector(make_env(1, compiled=flag), num_steps=1).mode for flag in (False, True)]
    assert modes == ["eager", "recorded"]
    env = make_env(2)
    for arguments, message in (
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"policy": "random"}, "policy must be None, 'given' or a policy, got 'random'"),
        ({"policy": NoisyPolicy(), "store_observations": False}, "a policy needs the observations"),
        ({"mode": "fast"}, "mode 'fast' is not one of compiled, eager and recorded, or on a CUDA device cuda_graph"),
        ({"mode": "cuda_graph"}, "mode 'cuda_graph' is not one of"),
    ):
        with pytest.raises(ValueError, match=message):
            FusedCollector(env, **arguments)
    for frames, rollouts in ((40, 2), (41, 3)):
        assert len(list(FusedCollector(make_env(4), num_steps=5, total_frames=frames))) == rollouts
    endless = iter(FusedCollector(make_env(4), num_steps=5))
    assert len([next(endless) for _ in range(4)]) == 4


# The two accounts that trade differently: orders of shares with stops and a gate, and target weights.
GPU_RULES = [{}, {"action": "weights", "stop_loss": 0.0, "rationing": "by_size"}]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("mode", ["cuda_graph", "compiled", "eager"])
@pytest.mark.parametrize("rules", GPU_RULES, ids=["shares", "weights"])
def test_a_gpu_gives_the_numbers_of_the_cpu(rules, mode):
    """Actions, cash, holdings, days and flags bit for bit over two rollouts; observations and rewards within 1e-5."""
    tape = small_tape()
    here = FusedCollector(make_env(NUM_ENVS, tape=tape, **rules), num_steps=NUM_STEPS)
    there = FusedCollector(make_env(NUM_ENVS, tape=tape, device="cuda", **rules), num_steps=NUM_STEPS, mode=mode)
    for rollout in range(2):
        here.rollout()
        there.rollout()
        exact = [
            [getattr(collector.rows().state, name).cpu() for name in ("cash", "holdings", "portfolio_value", "day")]
            + [collector.actions.cpu(), collector.terminated.cpu(), collector.truncated.cpu()]
            for collector in (here, there)
        ]
        assert_same_bits(*exact, f"in rollout {rollout}")
        for name in ("observation", "reward"):
            torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_replays_of_a_graph_differ_and_resume():
    env = make_env(NUM_ENVS, device="cuda")
    collector = FusedCollector(env, num_steps=NUM_STEPS, mode="cuda_graph")
    first, second = two_rollouts(collector)
    assert not (first[-5] == second[-5]).any(), "the actions of two replays share numbers"
    again = FusedCollector(make_env(NUM_ENVS, device="cuda"), num_steps=NUM_STEPS, mode="cuda_graph")
    for left, right in zip(two_rollouts(again), (first, second), strict=True):
        assert_same_bits(left, right)
