"""Advantages equal a slow loop and TorchRL's, and let nothing through the end of an episode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

from vecenv.learn.advantages import discounted_sums, generalised_advantages

STEPS, ROWS, GAMMA, LAMBDA = 40, 7, 0.97, 0.9


@pytest.fixture
def rollout() -> dict[str, Tensor]:
    """Random steps with both kinds of ends, sometimes at once."""
    generator = torch.Generator().manual_seed(3)

    def normal() -> Tensor:
        return torch.randn(STEPS, ROWS, generator=generator, dtype=torch.float64)

    terminated = torch.rand(STEPS, ROWS, generator=generator) < 0.1
    truncated = torch.rand(STEPS, ROWS, generator=generator) < 0.15
    assert (terminated & truncated).any()
    assert (terminated ^ truncated).any()
    return {
        "reward": normal(),
        "value": normal(),
        "next_value": normal(),
        "terminated": terminated,
        "truncated": truncated,
    }


def test_equals_a_scalar_loop(rollout: dict[str, Tensor]) -> None:
    advantages = generalised_advantages(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    for row in range(ROWS):
        following = 0.0
        for step in reversed(range(STEPS)):
            reward, value, next_value, terminated, truncated = (entry[step, row].item() for entry in rollout.values())
            bootstrap = 0.0 if terminated else next_value
            if terminated or truncated:
                following = 0.0
            following = reward + GAMMA * bootstrap - value + GAMMA * LAMBDA * following
            assert advantages[step, row].item() == pytest.approx(following, abs=1e-12)


@pytest.mark.parametrize("reference", [generalized_advantage_estimate, vec_generalized_advantage_estimate])
def test_equals_torchrl(rollout: dict[str, Tensor], reference) -> None:
    own = generalised_advantages(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    wide = {name: entry.T.unsqueeze(-1) for name, entry in rollout.items()}
    done = wide["terminated"] | wide["truncated"]
    theirs, target = reference(
        GAMMA, LAMBDA, wide["value"], wide["next_value"], wide["reward"], done, wide["terminated"]
    )
    torch.testing.assert_close(own, theirs.squeeze(-1).T, rtol=0, atol=1e-6)
    torch.testing.assert_close(own + rollout["value"], target.squeeze(-1).T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_leaks_over_the_border_of_an_episode(rollout: dict[str, Tensor], end: str) -> None:
    rollout["terminated"], rollout["truncated"] = (torch.zeros(STEPS, ROWS, dtype=torch.bool) for _ in range(2))
    rollout[end][20] = True
    before = generalised_advantages(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    for name in ("reward", "value", "next_value"):
        rollout[name][21:] += 100.0
    after = generalised_advantages(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    assert torch.equal(before[:21], after[:21])
    assert not torch.isclose(before[21:], after[21:]).any()


def test_discounted_sums_go_on_in_the_next_rollout_and_start_anew_in_the_next_episode() -> None:
    generator = torch.Generator().manual_seed(4)
    reward = torch.randn(STEPS, ROWS, generator=generator, dtype=torch.float64)
    done = torch.rand(STEPS, ROWS, generator=generator) < 0.1
    zero = torch.zeros(ROWS, dtype=torch.float64)
    first, carried = discounted_sums(reward[:15], done[:15], zero, GAMMA)
    second, _ = discounted_sums(reward[15:], done[15:], carried, GAMMA)
    sums = torch.cat([first, second])
    for row in range(ROWS):
        expected = 0.0
        for step in range(STEPS):
            expected = reward[step, row].item() + GAMMA * expected
            assert sums[step, row].item() == pytest.approx(expected, abs=1e-12)
            if done[step, row]:
                expected = 0.0
