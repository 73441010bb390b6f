"""Worlds of several agents: rows that share a donated field, are stepped together, and end together."""

from random import Random

import pytest
import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

from vecenv.core.capabilities import MultiAgent
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.random import random_bits
from vecenv.core.scenario import Scenario
from vecenv.learn.grpo import GRPO, GRPOConfig

AGENTS, WORLDS, LAST = 3, 4, 5
NUM_ENVS = AGENTS * WORLDS
POT, GRAIN = 40, 7


class Grazing(TensorClass):
    """A meadow, of which each row holds a part, and what its agent has eaten."""

    meadow: Tensor
    left: Tensor
    eaten: Tensor
    hunger: Tensor


class Meadow(MultiAgent, Scenario[Grazing]):
    """Agents take from one meadow in turn, the first at its full; a random hunger ends an agent's episode."""

    name, version = "meadow", "1"
    num_agents = AGENTS
    donated = frozenset({"meadow"})
    longest = LAST

    def __init__(self) -> None:
        self.action_spec = Categorical(4, (1,), dtype=torch.int64)
        self.params = {"growth": torch.tensor(GRAIN)}
        self.shared = {}

    def reset(self, key, params, shared):
        left = random_bits(key, 1)[0] % POT
        parts = torch.stack([left, left * 0, left * 0]).unsqueeze(-1)
        hunger = torch.stack([random_bits(key, 2, number)[0] % 12 for number in range(AGENTS)])
        return Grazing(parts, left.expand(AGENTS), parts[:, 0] * 0, hunger, batch_size=[AGENTS])

    def step(self, state, action, params, shared):
        left, eaten = state.meadow[0, 0] + params["growth"], []
        for number in range(AGENTS):
            taken = torch.minimum(action[number, 0], left)
            left = left - taken
            eaten.append(taken)
        parts = torch.stack([left, left * 0, left * 0]).unsqueeze(-1)
        eaten_now = state.eaten + torch.stack(eaten)
        return state.replace(meadow=parts, left=left.expand(AGENTS), eaten=eaten_now)

    def observation(self, state, params, shared):
        return (torch.stack([state.left, state.eaten, state.hunger]).float(),)

    def reward(self, state, action, next_state, params, shared):
        return (next_state.eaten - state.eaten).float()

    def terminated(self, state, params, shared):
        return (state.eaten >= state.hunger) & (state.hunger > 8)

    def truncated(self, state, params, shared):
        return state.eaten < 0

    def grade(self, state, params, shared):
        return (state.eaten.float() / (4 * LAST)).clamp(0, 1)


def meadows(num_envs: int = NUM_ENVS, **options) -> VecEnv:
    return VecEnv(Meadow(), num_envs, **{"seed": 3, "compiled": False} | options)


def actions(draw: Random, num_envs: int = NUM_ENVS) -> Tensor:
    return torch.tensor([[draw.randrange(4)] for _ in range(num_envs)])


def test_a_world_is_what_its_agents_make_of_it_in_turn():
    env, draw = meadows(), Random(1)
    left = env.state.left[::AGENTS].tolist()
    eaten, hunger = [0] * NUM_ENVS, env.state.hunger.tolist()
    over, ends = [False] * WORLDS, 0
    for _ in range(12):
        action = actions(draw)
        reward = env.advance(action).tolist()
        for row in range(NUM_ENVS):
            world = row // AGENTS
            if over[world]:
                assert reward[row] == 0
                continue
            left[world] += GRAIN * (row % AGENTS == 0)
            taken = min(int(action[row]), left[world])
            left[world] -= taken
            eaten[row] += taken
            assert reward[row] == taken
        for world in range(WORLDS):
            rows = range(world * AGENTS, (world + 1) * AGENTS)
            full = [eaten[row] >= hunger[row] > 8 for row in rows]
            if any(full) and not over[world]:
                over[world] = True
                ends += 1
                assert env.rows.terminated[rows.start : rows.stop].tolist() == full
                assert env.rows.truncated[rows.start : rows.stop].tolist() == [not own for own in full]
        assert env.rows.done[::AGENTS].tolist() == over
        assert env.state.eaten.tolist() == eaten
        assert env.state.left[::AGENTS].tolist() == left
    assert ends > 0, "no world has ended before all others"


def test_worlds_start_go_on_are_copied_and_begun_as_a_whole():
    env = meadows()
    left = env.state.left.view(WORLDS, AGENTS)
    assert (left == left[:, :1]).all() and len(left[:, 0].unique()) > 1
    assert env.start_ids.tolist() == [row // AGENTS for row in range(NUM_ENVS)]
    shifted = meadows(env_ids=torch.arange(NUM_ENVS) + 2**31).start_ids.view(WORLDS, AGENTS)
    assert (shifted == shifted[:, :1]).all() and len(shifted[:, 0].unique()) == WORLDS
    for groups, size, alike in ((NUM_ENVS, 1, AGENTS), (2, 2 * AGENTS, 2 * AGENTS)):
        env.reset_groups(groups, size, seed=8)
        assert env.start_ids.tolist() == [row // alike for row in range(NUM_ENVS)]
    assert env.state.left.unique_consecutive().shape == (2,)
    env = meadows()
    env.copy_rows([3, 4, 5], [6, 7, 8])
    assert torch.equal(env.state.left[3:6], env.state.left[6:9])
    seeds = torch.full((AGENTS,), 99)
    env.begin_rows([0, 1, 2], seeds, torch.full((AGENTS,), 17))
    other = meadows(AGENTS)
    other.begin_rows([0, 1, 2], seeds, torch.full((AGENTS,), 17))
    assert torch.equal(env.state.left[:3], other.state.left)
    growth = torch.arange(NUM_ENVS)
    env = meadows(params={"growth": growth})
    before = env.state.left.clone()
    env.advance(torch.zeros(NUM_ENVS, 1, dtype=torch.int64))
    assert torch.equal(env.state.left - before, growth // AGENTS * AGENTS)
    env, twin, draw = meadows(), meadows(), Random(4)
    collector = FusedCollector(env, "given", num_steps=16)
    collector.actions.copy_(torch.stack([actions(draw) for _ in range(16)]))
    collector.rollout()
    for step in range(16):
        twin.restart(twin.rows.done)
        reward = twin.advance(collector.actions[step])
        assert torch.equal(reward, collector.reward[step])
        assert torch.equal(twin.rows.ended, collector.rows().ended[step])
    assert collector.terminated.any() and int(env.rows.episode.max()) > 0


def test_what_divides_a_world_is_refused():
    env, some, zeros = meadows(), torch.arange(NUM_ENVS) < 4, torch.zeros(3, dtype=torch.int64)
    apart, groups = "rows 3 to 5 are agents of one world: ", "group_size must be a multiple of 3, the agents of a world"
    for call, words in (
        (lambda: meadows(4), "num_envs must be a multiple of 3, the agents of one world of meadow, got 4"),
        (lambda: env.advance(actions(Random(0)), some), f"{apart}whether they are stepped must be"),
        (lambda: env.restart(some), f"{apart}whether they are reset must be"),
        (lambda: meadows(seed=some.long()), f"{apart}seeds must be the same for them"),
        (lambda: env.begin_rows([3, 5, 4], zeros, zeros), r"by whole worlds of 3 agents, got \[3, 5, 4\]"),
        (lambda: env.copy_rows([3, 4, 5], [1, 2, 3]), r"by whole worlds of 3 agents, got \[1, 2, 3\]"),
        (lambda: env.reset_starts(torch.arange(NUM_ENVS), seed=1), "start_ids must be the same for them"),
        (lambda: env.reset_groups(6, 2, seed=1), f"{groups}, got 2"),
        (lambda: GRPO(env, GRPOConfig(minibatches=1), group_size=2), f"{groups}, got 2"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
