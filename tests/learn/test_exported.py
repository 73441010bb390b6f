"""Policies as files: what they decide is what the policy decides, and another decision is found."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import vecenv
from vecenv.learn.ensemble import MeanPolicy, SignVotePolicy, VotePolicy, played_observations
from vecenv.learn.exported import CLOSE, FILES, differing, read_policy, write_policy
from vecenv.learn.policies import ActorPolicy, make_network
from vecenv.learn.settings.run import NetworkConfig
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape

ENVS = {
    "tilts": ("stock_trading", {"features": ("rsi_14",), "action": "tilt", "episode_length": 20}),
    "choices": ("multi_stock_3", {"action": "discrete"}),
}


def made(kind: str, architecture: str, seed: int = 0):
    """An environment and a policy whose scores are large enough to leave the bounds of the actions."""
    task, rules = ENVS[kind]
    market = "synthetic"
    if task == "stock_trading":
        market = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=3, seed=1), ("rsi_14",))
    env = vecenv.make(task, 6, market=market, compile=False, **rules)
    network = make_network(env, NetworkConfig(policy=architecture, hidden=(8, 8)))
    generator = torch.Generator().manual_seed(seed)
    actor, _ = network.initial_parameters(generator, env.device)
    actor = [tensor + 0.5 * torch.randn(tensor.shape, generator=generator) for tensor in actor]
    moments = [torch.rand(network.moments_size, generator=generator) for _ in range(2)]
    return env, ActorPolicy(network, moments, actor, deterministic=True)


def decisions(policy, env, observation):
    action = policy.act(policy.parameters, observation, None, None)[0]
    space = env.scenario.action_spec.space
    return torch.clamp(action, space.low, space.high) if action.is_floating_point() else action


def width_of(env):
    spec = env.scenario.action_spec
    return spec.space.high - spec.space.low if spec.dtype.is_floating_point else None


CASES = [("tilts", "flat", "onnx"), ("tilts", "symbol", "onnx"), ("tilts", "attention", "torch")]
CASES += [("choices", "flat", "onnx")]


@pytest.mark.parametrize(("kind", "architecture", "form"), CASES)
def test_a_file_decides_as_its_policy(kind, architecture, form, tmp_path):
    env, policy = made(kind, architecture)
    linear = policy.network.linear
    write_policy(policy, env, tmp_path / FILES[form], form)
    assert policy.network.linear is linear
    seen = played_observations(policy, env, 5, 15)
    wanted, play = decisions(policy, env, seen), read_policy(tmp_path / FILES[form])
    assert (wanted != wanted[:1]).any(), "it decides"
    for rows in (1, 3, len(seen)):
        played = play(seen[:rows].contiguous())
        assert played.dtype == wanted.dtype
        assert not differing(wanted[:rows], played, width_of(env)).any()
    if kind == "tilts":
        assert (wanted.abs() == 1).any(), "bounds are inside the file"
    _, other = made(kind, architecture, seed=1)
    assert differing(decisions(other, env, seen), wanted, width_of(env)).any()


@pytest.mark.parametrize(
    ("kind", "combined"), [("tilts", MeanPolicy), ("tilts", SignVotePolicy), ("choices", VotePolicy)]
)
def test_ensembles_are_one_file(kind, combined, tmp_path):
    env, first = made(kind, "flat")
    policy = combined([first, made(kind, "flat", 1)[1], made(kind, "flat", 2)[1]], env.scenario.action_spec)
    write_policy(policy, env, tmp_path / FILES["torch"], "torch")
    seen = played_observations(policy, env, 5, 10)
    assert not differing(
        decisions(policy, env, seen), read_policy(tmp_path / FILES["torch"])(seen), width_of(env)
    ).any()


def test_a_file_needs_no_package_but_its_own(tmp_path):
    env, policy = made("tilts", "flat")
    seen = env.observations()
    torch.save((seen, decisions(policy, env, seen)), tmp_path / "seen.pt")
    write_policy(policy, env, tmp_path / FILES["torch"], "torch")
    code = """
import sys, torch
sys.modules["vecenv"] = None
seen, wanted = torch.load("seen.pt")
assert torch.allclose(torch.export.load("policy.pt2").module()(seen), wanted, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_differences_are_told_from_rounding():
    width = torch.full((2,), 2.0)
    own = torch.zeros(4, 2)
    other = own.clone()
    other[1, 0], other[2, 1], other[3, 0] = 1.9 * CLOSE, 2.1 * CLOSE, float("nan")
    assert differing(own, other, width).tolist() == [False, False, True, True]
    assert differing(torch.tensor([[1, 2], [1, 2]]), torch.tensor([[1, 2], [1, 3]]), None).tolist() == [False, True]


def test_what_cannot_be_exported_is_refused(tmp_path):
    env, policy = made("tilts", "flat")
    drawing = ActorPolicy(policy.network, policy.parameters[:2], policy.parameters[2:])
    with pytest.raises(ValueError, match="draws actions"):
        write_policy(drawing, env, tmp_path / "policy.pt2", "torch")
    with pytest.raises(ValueError, match="blocks of several kinds"):
        write_policy(policy, vecenv.make("sokoban", 2, compile=False), tmp_path / "policy.pt2", "torch")
    for name in FILES.values():
        Path(tmp_path / name).write_bytes(b"no policy")
        with pytest.raises(ValueError, match="not a policy's file"):
            read_policy(tmp_path / name)
    assert policy.network.linear is not functional.linear
