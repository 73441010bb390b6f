"""Scenarios whose steps draw: each step has a key of its own, whatever the batch, the door or the compiler."""

from types import MappingProxyType

import pytest
import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded

from vecenv import Drawing, FusedCollector, VecEnv
from vecenv.core.capabilities import MultiAgent
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits, uniform
from vecenv.testing import check_task


class Blown(TensorClass):
    draws: Tensor
    day: Tensor


class Weather(Drawing[Blown]):
    """Keeps two streams of each of its steps."""

    name, version, longest = "weather", "1", 4
    shared, params = MappingProxyType({}), MappingProxyType({})
    action_spec = Bounded(-1.0, 1.0, (1,))

    def reset(self, key, params, shared):
        return Blown(draws=torch.zeros(4, 2, device=key.episode.device), day=0 * key.episode, batch_size=[])

    def drawn_step(self, state, action, key, params, shared):
        now = torch.stack([uniform(key, stream=0), uniform(key, stream=1)])
        put = torch.arange(4, device=now.device).unsqueeze(-1) == state.day
        return Blown(draws=torch.where(put, now, state.draws), day=state.day + 1, batch_size=[])

    def observation(self, state, params, shared):
        return (state.draws.flatten(),)

    def reward(self, state, action, next_state, params, shared):
        # Exact in any order.
        return (next_state.draws.double().sum() - state.draws.double().sum()).float()

    def terminated(self, state, params, shared):
        return state.day < 0

    def truncated(self, state, params, shared):
        return state.day >= 4

    def grade(self, state, params, shared):
        return state.draws.mean()


class Shared(MultiAgent, Weather):
    """Two agents of one world, in which the weather is the same."""

    num_agents = 2

    def reset(self, key, params, shared):
        return torch.stack([Weather.reset(self, key, params, shared)] * 2)

    def drawn_step(self, state, action, key, params, shared):
        each = [Weather.drawn_step(self, state[agent], action[agent], key, params, shared) for agent in range(2)]
        return torch.stack(each)


def drawn(seed: int, env_id: int, episode: int) -> Tensor:
    """The draws of an episode by the definition: Philox of the step's number is the key of the step."""
    word = torch.tensor
    key, found = EpisodeKey(word(seed), word(0), word(env_id), word(episode)), []
    for step in range(4):
        own = EpisodeKey(*random_bits(key, EpisodeStream.STEP, word(step)))
        found.append(torch.stack([uniform(own, 0), uniform(own, 1)]))
    return torch.stack(found)


def played(env: VecEnv, steps: int = 4) -> Tensor:
    for _ in range(steps):
        env.advance(env.action_spec.zero())
    return env.state.draws


def test_each_step_has_fresh_draws_that_the_identity_of_the_episode_determines():
    env = VecEnv(Weather(), 5, seed=7, compiled=False)
    whole = played(env)
    assert len(whole.unique()) == whole.numel()
    assert all(torch.equal(whole[row], drawn(7, row, 0)) for row in range(5))
    alone = VecEnv(Weather(), 1, seed=7, compiled=False, env_ids=torch.tensor([3]))
    assert torch.equal(played(alone)[0], whole[3])
    env.restart(torch.tensor([False, True, False, False, False]))
    assert torch.equal(played(env)[1], drawn(7, 1, 1)) and torch.equal(env.state.draws[0], whole[0])
    # A start in common is weather in common; so is a copied row, from there on.
    env.reset_groups(1, 5, 9)
    assert torch.equal(played(env), drawn(9, 0, 0).expand(5, 4, 2))
    env.reset_groups(5, 1, 9)
    played(env, 2)
    env.copy_rows([0], [4])
    assert torch.equal(played(env, 2)[4], drawn(9, 0, 0))
    # A row that was begun draws by a seed of its own, and so does its copy.
    env.begin_rows([0], torch.tensor([11]), torch.tensor([3]))
    env.copy_rows([0], [4])
    assert torch.equal(played(env)[[0, 4]], drawn(11, 3, 0).expand(2, 4, 2))
    seeds = VecEnv(Weather(), 2, seed=torch.tensor([3, 4]), compiled=False)
    assert torch.equal(played(seeds), torch.stack([drawn(3, 0, 0), drawn(4, 1, 0)]))


def test_agents_of_a_world_share_the_draws_of_a_step():
    env = VecEnv(Shared(), 6, seed=2, compiled=False)
    found = played(env)
    assert torch.equal(found, torch.stack([drawn(2, world, 0) for world in range(3)]).repeat_interleave(2, 0))
    with pytest.raises(NotImplementedError, match="it is `drawn_step`"):
        Shared().step(env.state, None, {}, {})


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", [Weather, Shared])
def test_the_collector_and_compiled_steps_draw_as_eager_ones(scenario):
    rewards = {}
    for compiled in (False, True):
        batch = FusedCollector(VecEnv(scenario(), 4, seed=1, compiled=compiled), num_steps=10).rollout()
        rewards[compiled] = batch["next", "reward"]
        env = VecEnv(scenario(), 4, seed=1, compiled=compiled)
        assert torch.equal(played(env), played(VecEnv(scenario(), 4, seed=1, compiled=False)))
    assert torch.equal(rewards[False], rewards[True])


@pytest.mark.assembly
def test_the_contract_holds_for_a_task_that_draws():
    from vecenv import Task

    check_task(Task(name="weather", version="1", scenario=lambda config: Weather()), compiled=False)
