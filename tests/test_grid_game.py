"""A game of planes, a mask and draws at every step goes through the whole house, which knows nothing of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d
from torchrl.data import Categorical, Unbounded
from torchrl.envs.utils import check_env_specs

import vecenv
from tests.grid_game import FORAGE, SIDE, Forage
from tests.small_env import same_bits
from vecenv.core.capabilities import BoundedObservations
from vecenv.core.scenario import ObservationForm, flat_view
from vecenv.learn import a2c, dqn, grpo, ppo, train
from vecenv.learn.evaluation import PolicyAgent, Random, evaluate
from vecenv.learn.heads import make_head
from vecenv.learn.planes import PlanesNetwork
from vecenv.registry import make_spoken
from vecenv.testing import check_task

BLOCKS = {"board": ((2, SIDE, SIDE), torch.bool), "time": ((1,), torch.float32), "mask": ((4,), torch.bool)}


def game(num_envs: int, seed: int = 0, compiled: bool = False) -> vecenv.VecEnv:
    return vecenv.make(FORAGE, num_envs, seed=seed, compile=compiled)


def test_it_conforms():
    check_task(FORAGE, compiled=False)


@pytest.mark.nightly
def test_its_compiled_steps_conform():
    check_task(FORAGE)


def test_specs_buffers_and_final_observations_are_by_name():
    env = game(6)
    check_env_specs(env)
    specs = {name: (tuple(spec.shape[1:]), spec.dtype) for name, spec in env.observation_spec.items()}
    assert specs == BLOCKS
    collector = vecenv.FusedCollector(env, num_steps=24)
    batch = collector.rollout()
    assert {name: (tuple(batch[name].shape[2:]), batch[name].dtype) for name in BLOCKS} == BLOCKS
    assert batch["board"].flatten(-2).sum(-1).eq(1).all()
    step, ids = collector.truncated.nonzero(as_tuple=True)
    final = collector.final_observations(step, ids)
    assert len(ids) == 6 and final["time"].eq(1).all() and final.keys() == BLOCKS.keys()


def test_planes_without_a_bound_are_not_divided_by_it():
    inf, planes = float("inf"), torch.zeros(1, 2, 3, 3)
    form = ObservationForm.of("it", {"planes": planes, "dots": planes}, {"planes": (0.0, inf), "dots": (-2.0, inf)})
    assert [form.scale(name) for name in form.blocks] == [1.0, 2.0]
    # Names that are numbers are names: these are no blocks of a tuple.
    assert not ObservationForm.of("it", {"0": planes, "1": planes}, {}).flat
    assert float(form.specs((1,), torch.device("cpu"))["dots"].space.low.min()) == -2
    # Of a flat observation, those of each block.
    flat = {"0": torch.zeros(3, 1), "1": torch.ones(3, 2)}
    form = ObservationForm.of("it", flat, {"1": (-1.0, 2.0)})
    space, largest = form.specs((3,), torch.device("cpu"))["observation"].space, torch.finfo(torch.float32).max
    assert space.low.tolist() == [[-largest, -1, -1]] * 3 and space.high.tolist() == [[largest, 2, 2]] * 3
    assert isinstance(ObservationForm.of("it", flat, {}).specs((3,), torch.device("cpu"))["observation"], Unbounded)
    for kind, bounds in ((torch.int64, (0, inf)), (torch.uint8, (-1, 255)), (torch.int8, (0, 128))):
        with pytest.raises(ValueError, match=f"bounds of block 'planes' must be within {kind}, got {bounds[0]} to"):
            ObservationForm.of("it", {"planes": planes.to(kind)}, {"planes": bounds})


def test_planes_of_one_size_are_one_picture_and_large_ones_are_halved():
    """The definition: convolutions by their sides, of stride two above ten, then their outputs behind other blocks."""
    sizes = {"near": (1, 4, 4), "many": (3,), "far": (2, 4, 4), "wide": (1, 24, 11)}
    blocks = {name: torch.rand(2, *size) for name, size in sizes.items()}
    form = ObservationForm.of("it", blocks, {"wide": (0.0, 5.0)})
    network = PlanesNetwork(form, make_head(Categorical(4, (1,)), 0.5), (8,), torch.float32, lambda _: None)
    actor, critic = network.initial_parameters(torch.Generator().manual_seed(0), torch.device("cpu"))
    shapes = [(16, 3, 3, 3), (32, 16, 3, 3), (16, 1, 3, 3), (32, 16, 3, 3), (8, 3 + 32 * 16 + 32 * 6 * 3)]
    assert [tuple(tensor.shape) for tensor in actor[:10:2]] == shapes and len(network.head_parameters(actor)) == 0
    one, two, moments = blocks["many"], blocks["wide"] / 5, (torch.zeros(network.moments_size), torch.ones(()))
    pictures = [(torch.cat([blocks["near"], blocks["far"]], 1), 1), (two, 2)]
    features, weights = [one], iter(critic)
    for values, stride in pictures:
        for _ in range(2):
            values = torch.tanh(conv2d(values, next(weights), next(weights), stride=stride, padding=1))
        features.append(values.flatten(1))
    weight, bias, last, centre = weights
    expected = torch.tanh(torch.cat(features, 1) @ weight.T + bias) @ last.T + centre
    inputs = network.normalised(flat_view(blocks), moments[0], moments[1].expand(network.moments_size))
    torch.testing.assert_close(network.value(critic, inputs), expected[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_compiled_rollouts_are_the_eager_ones():
    config = ppo.PPOConfig(num_steps=24, total_frames=24 * 8, minibatches=2, hidden=(8,))
    policy = ppo.PPO(game(8), config).collecting_policy()
    one, other = (vecenv.FusedCollector(game(8), policy, 24, mode=mode).rollout() for mode in ("eager", "compiled"))
    for name in (*BLOCKS, "action", ("next", "reward")):
        assert same_bits(one[name], other[name])


@pytest.mark.assembly
def test_ppo_learns_it():
    config = ppo.PPOConfig(
        num_steps=20, total_frames=20 * 64 * 14, learning_rate=3e-3, gamma=0.9, anneal=False, hidden=(32,), epochs=4
    )
    trained = train(game(64), config)
    assert isinstance(trained.learner.network, PlanesNetwork)
    records = evaluate(game(256, 7), {"trained": PolicyAgent(trained.policy()), "random": Random()}, seed=9).records
    eaten = {name: float(record.outcomes["eaten"].double().mean()) for name, record in records.items()}
    assert eaten["trained"] > 2 * eaten["random"], eaten


LEARNERS = {
    "a2c": (a2c.A2CConfig(num_steps=5, total_frames=5 * 16 * 2, hidden=(8,)), {}),
    "dqn": (
        dqn.DQNConfig(num_steps=4, total_frames=256, minibatches=2, minibatch_size=9, hidden=(8,), buffer_size=99),
        {},
    ),
    "grpo": (grpo.GRPOConfig(total_frames=20 * 16 * 2, hidden=(8,)), {"group_size": 4}),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_other_learners_train_on_it(name):
    config, more = LEARNERS[name]
    trained = train(game(16), config, **more)
    assert isinstance(trained.learner.network, PlanesNetwork)
    env = game(16, 3)
    policy = trained.policy()
    for _ in range(3):
        action = PolicyAgent(policy).act(env)
        assert env.observations()["mask"].gather(1, action).all()
        env.advance(action)


def test_gymnasium_has_a_space_of_each_block():
    pytest.importorskip("gymnasium")
    from gymnasium import spaces
    from gymnasium.utils.env_checker import check_env

    from vecenv.adapters.gymnasium_env import GymnasiumEnv
    from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv

    env = GymnasiumEnv(FORAGE)
    check_env(env, skip_render_check=True)
    assert isinstance(env.observation_space, spaces.Dict) and set(env.observation_space) == set(BLOCKS)
    rows = GymnasiumVectorEnv(FORAGE, 3, compile=False, seed=2)
    seen, _ = rows.reset()
    assert rows.observation_space.contains({name: np.asarray(block) for name, block in seen.items()})
    for _ in range(20):
        *_, info = rows.step(np.zeros((3, 1), np.int64))
    assert info["final_obs"][0]["time"] == 1 and info["final_info"]["grade"].shape == (3,)


def test_gymnasium_has_numbers_as_arrays():
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from vecenv.adapters.gymnasium_env import GymnasiumEnv

    class Counted(BoundedObservations, Forage):
        bounds = {"steps": (0, 20), "board": (0, 4)}  # noqa: RUF012

        def observation(self, state, params, shared):
            numbers = {"steps": state.steps, "late": state.steps > 9, "half": state.steps.half()}
            return super().observation(state, params, shared) | numbers

    class Flat(BoundedObservations, Forage):
        bounds = {"1": (0, 1)}  # noqa: RUF012

        def observation(self, state, params, shared):
            return state.place.float(), (state.steps / 20).reshape(1)

        def action_mask(self, observation):
            return None

    env = GymnasiumEnv(replace(FORAGE, scenario=Flat))
    check_env(env, skip_render_check=True)
    assert env.observation_space.high[2] == 1 < env.observation_space.high[1]
    env = GymnasiumEnv(replace(FORAGE, scenario=Counted))
    check_env(env, skip_render_check=True)
    assert env.observation_space["steps"].high == 20
    learner, board = ppo.PPO(env.rows.env, ppo.PPOConfig(minibatches=1)), torch.ones(1, 2 * SIDE * SIDE + 8)
    assert learner.network.normalised(board, *learner.moments)[0, 0] == 0.25


def test_a_tool_may_look_at_the_step_that_follows():
    env = make_spoken(FORAGE, 3, seed=2)

    class Ahead:
        def results(self, state, calls, step):
            return [str(step([row], torch.tensor([[call]])).food.tolist()) for row, call in enumerate(calls)]

    told = vecenv.TextDoor(env).tool_results(Ahead(), [1, 3], [2, 0])
    env.advance(torch.tensor([[3], [0], [1]]))
    assert told == [str(env.state.food[[row]].tolist()) for row in (2, 0)]
