"""Preallocated time-major tensors of a rollout: rows, actions, rewards, what a policy returns beside, observations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from vecenv.core.collector_inputs import Policy
from vecenv.core.env import VecEnv
from vecenv.core.memory import check_memory
from vecenv.core.references import References
from vecenv.core.row_buffers import RowBuffers

ALIGNMENT = 16
"""Observation rows are padded to whole cache lines of 16 float32. Their last block is aligned to one, unless that makes
them a line longer."""


class RolloutBuffers:
    """Buffers of T steps of an environment.

    Attributes:
        actions: Shape: (T, N, *spec.shape).
        reward: Shape: (T, N).
        extras: what the policy returns beside the action, by name. Shape of each: (T, N, ...).
        seen: observations, or their own blocks and the references. Shape of each: (T, N, ...).
        blocks: the parts of `seen` that a step writes. Shape of each: (T, N, ...).

    Raises:
        ValueError: the memory does not suffice.
    """

    def __init__(
        self, env: VecEnv, policy: object, num_steps: int, store_observations: bool, references: References | None
    ) -> None:
        num_envs, device = env.num_envs, env.device
        widths = env.block_widths if references is None else references.own_widths
        seen = num_envs * sum(widths) * 4 if store_observations else 0
        needed = RowBuffers.least_bytes(env, num_steps) + num_steps * seen
        check_memory(needed, device, f"{num_steps:,} steps of {num_envs:,} sub-environments")

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(num_steps, num_envs, *shape, dtype=dtype, device=device)

        self.rows = RowBuffers(env, num_steps)
        self.actions = buffer(*env.scenario.action_spec.shape, dtype=env.scenario.action_spec.dtype)
        self.reward = buffer(dtype=env.reward_dtype)
        self.extras: dict[str, Tensor] = {}
        if isinstance(policy, Policy):
            self.extras = {name: buffer(*shape, dtype=kind) for name, (shape, kind) in policy.extras.items()}
        self.seen: list[Tensor] = []
        self.blocks: list[Tensor] = []
        if store_observations:
            width, lines = sum(widths), -(-sum(widths) // ALIGNMENT)
            lead = -sum(widths[:-1]) % ALIGNMENT
            lead = lead if lead + width <= lines * ALIGNMENT else 0
            self.seen = [buffer(lines * ALIGNMENT)[..., lead : lead + width]]
            self.blocks = list(self.seen[0].split(widths, dim=-1))
            if references is not None:
                self.seen.append(buffer(dtype=torch.int64))
                self.blocks.append(self.seen[1])
        self.batch_size = [num_envs, num_steps]

    @staticmethod
    def of_step(buffers: Sequence[Tensor], step: int) -> list[Tensor]:
        return [buffer[step] for buffer in buffers]

    def batch(self, observed: bool) -> TensorDict:
        """Return the buffers as a tensordict of views, ``observed`` with observations. Batch size: [N, T]."""
        entries = {"action": self.actions, **self.extras}
        if observed:
            entries["observation"] = self.seen[0]
        after = self.rows.rows(after=True)
        following = {
            "reward": self.reward,
            "terminated": after.terminated,
            "truncated": after.truncated,
            "done": after.done,
        }
        batch = TensorDict({name: entry.transpose(0, 1) for name, entry in entries.items()}, batch_size=self.batch_size)
        batch["next"] = TensorDict(
            {name: entry.transpose(0, 1).unsqueeze(-1) for name, entry in following.items()},
            batch_size=self.batch_size,
        )
        return batch
