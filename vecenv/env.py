"""The standard door: a TorchRL environment over the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorClass, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from vecenv.compiling import InPlaceCall, compile_in_place
from vecenv.engine import BoundEngine, Engine, Outcome, Rows, leaves, owned, select_rows, with_leaves
from vecenv.market.tape import MarketTape
from vecenv.memory import check_memory
from vecenv.scenario import Scenario
from vecenv.text.tool_calls import ToolCall, Tools

_ROWS_AT_ONCE = 3
"""Copies of what a row holds that the eager step of `VecEnv._make_specs` takes: 3.2 to 5.8 were measured."""


def _bytes_per_row(engine: Engine, device: torch.device) -> int:
    """Return the bytes that a sub-environment takes at least, from those of one."""
    first = torch.zeros(1, dtype=torch.int64, device=device)
    one = engine.bound().of_rows(first)
    rows = one.start(first[0], first, first)
    shown = [*one.observe(rows), engine.scenario.action_spec.zero()]
    # The rows before and after the step.
    return _ROWS_AT_ONCE * sum(tensor.nbytes for tensor in (*leaves(rows), *leaves(rows), *shown))


class ChosenState:
    """The state of some rows, of which each tensor is selected when it is asked for: text needs few of them.

    Args:
        state: of all rows. Batch: (N,).
        env: numbers of the rows. Shape: (B,).
    """

    def __init__(self, state: TensorClass, env: Tensor) -> None:
        self._state, self._env = state, env

    def __getattr__(self, name: str) -> Tensor:
        """Return a tensor of the state. Batch: (B,)."""
        return getattr(self._state, name).index_select(0, self._env)


class VecEnv(EnvBase):
    """N sub-environments of one scenario, batch size [N].

    A step never resets: a row that is done, or outside TorchRL's ``"_step"`` mask, stays bit for bit as it is with
    reward 0. The fused collector is the fast door; both use the same functions.

    Args:
        scenario: the rules and the market.
        num_envs: number of sub-environments, N.
        seed: names all episodes together with the ids; in [0, 2^63).
        device: where all tensors live.
        compiled: compile steps. (``compile`` is a keyword that TorchRL takes for itself.)
        params: parameters that differ per sub-environment, each with a leading dimension of N.
        env_ids: identity of each row in random draws; row numbers by default. Shape: (N,).
    """

    def __init__(
        self,
        scenario: Scenario,
        num_envs: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = True,
        params: Mapping[str, Tensor] | None = None,
        env_ids: Tensor | None = None,
    ) -> None:
        super().__init__(device=torch.device(device), batch_size=torch.Size([num_envs]))
        scenario.to(device)
        if params:
            scenario.randomise(params, num_envs)
        self.scenario, self.compiled = scenario, compiled
        self.engine = Engine(scenario, num_envs)
        check_memory(num_envs * _bytes_per_row(self.engine, self.device), self.device, f"{num_envs:,} sub-environments")
        self.num_envs = num_envs
        ids = torch.arange(num_envs) if env_ids is None else env_ids
        if ids.shape != (num_envs,):
            raise ValueError(f"env_ids must have shape ({num_envs},), got {tuple(ids.shape)}")
        self.env_ids = ids.to(self.device, torch.int64)
        self.start_ids = self.env_ids.clone()
        self.seed_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
        self._call: InPlaceCall | None = None
        self._set_seed(seed)
        self._make_specs()

    @property
    def _bound(self) -> BoundEngine:
        return self.engine.bound()

    def _make_specs(self) -> None:
        """Derive the specs from one eager step."""
        blocks = self._bound.observe(self.rows)
        self.block_widths = [block.shape[-1] for block in blocks]
        shape, flag = self.batch_size, (*self.batch_size, 1)
        self.observation_spec = Composite(
            observation=Unbounded((*shape, sum(self.block_widths)), device=self.device), shape=shape
        )
        self.action_spec = self.scenario.action_spec.expand(*shape, *self.scenario.action_spec.shape)
        action = self.action_spec.zero()
        self.reward_dtype = self._bound.step(self.rows, action).reward.dtype
        self.reward_spec = Unbounded(flag, dtype=self.reward_dtype, device=self.device)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite(
            {name: Binary(1, flag, dtype=torch.bool, device=self.device) for name in names}, shape=shape
        )

    @property
    def state(self) -> TensorClass:
        """State of the scenario. Batch: [N]."""
        return self.rows.state

    @property
    def market(self) -> MarketTape:
        """The market of a task that trades on one."""
        return self.scenario.tape  # type: ignore[attr-defined]

    def grade(self) -> Tensor:
        """Return the outcome of each episode so far in [0, 1], separate from the reward. Shape: (N,)."""
        return self._bound.grade(self.rows)

    def grades(self) -> dict[str, Tensor]:
        """Return the outcome of each episode so far under each grader of the task. Shape of each: (N,)."""
        return self._bound.grades(self.rows)

    def info(self) -> dict[str, Tensor]:
        """Return what a person wants to know of each episode, money in currency. Shape of each: (N, ...)."""
        return self._bound.info(self.rows)

    def rows_of(self, ids: Tensor | Sequence[int]) -> tuple[Rows, Tensor]:
        """Return copies of some rows and their numbers as a tensor. Shape of both: (B,).

        Raises:
            IndexError: a number is not one of a row.
        """
        env = self._numbers(ids)
        return with_leaves(self.rows, [leaf.index_select(0, env) for leaf in leaves(self.rows)], [len(env)]), env

    def _numbers(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return numbers of rows as a tensor, if all are. Shape: (B,)."""
        env = torch.as_tensor(ids, dtype=torch.int64, device=self.device).reshape(-1)
        if len(env) and not (int(env.min()) >= 0 and int(env.max()) < self.num_envs):
            raise IndexError(f"rows {env.tolist()} are not all in [0, {self.num_envs})")
        return env

    def chosen_state(self, ids: Tensor | Sequence[int]) -> Any:  # noqa: ANN401
        """Return the state of some rows as the task's text knows it, see `ChosenState`. Batch: (B,).

        Raises:
            IndexError: a number is not one of a row.
        """
        return ChosenState(self.rows.state, self._numbers(ids))

    def render_text(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the text of some sub-environments; nothing else is copied from the device.

        Args:
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
        """
        rows, env = self.rows_of(ids)
        # vmap takes no empty batch.
        seen = self.observe_rows(rows, env) if len(env) else torch.empty(0, sum(self.block_widths), device=self.device)
        return self.scenario.render(seen, rows.state)

    def instructions(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return what a language model is told before the first day of some sub-environments.

        Args:
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
        """
        return self.scenario.instructions(self.chosen_state(ids))

    def tool_results(self, tools: Tools, calls: Sequence[ToolCall], ids: Tensor | Sequence[int]) -> list[str]:
        """Return what the tools say to the calls of some sub-environments; nothing changes in them.

        Args:
            tools: of the scenario.
            calls: one for each row. B of them.
            ids: numbers of rows. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            ValueError: there are not as many calls as rows.
        """
        rows, env = self.rows_of(ids)
        if len(calls) != len(env):
            raise ValueError(f"{len(calls)} calls do not fit {len(env)} rows")

        def step(places: Sequence[int], action: Tensor) -> TensorClass:
            chosen = torch.tensor(places, device=self.device)
            return self._bound.of_rows(env[chosen]).step(rows[chosen], action).rows.state

        return tools.results(rows.state, calls, step)

    def parse_text(self, texts: Sequence[object], ids: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the actions that texts stand for in some sub-environments.

        Args:
            texts: anything; a text that is not valid becomes an action that does nothing and is marked.
            ids: numbers of rows. Shape: (B,).

        Returns:
            Actions, shape (B, *action), and whether each text was valid, shape (B,), bool.

        Raises:
            IndexError: a number is not one of a row.
            TypeError: the task has no text.
            ValueError: there are not as many texts as rows.
        """
        if len(texts) != len(ids):
            raise ValueError(f"{len(texts)} texts do not fit {len(ids)} rows")
        return self.scenario.parse(texts, self.chosen_state(ids))

    def observe_rows(self, rows: Rows, env: Tensor) -> Tensor:
        """Return observations of given rows. Shapes: (M,) rows, (M,) their numbers -> (M, D)."""
        return torch.cat(self._bound.of_rows(env).observe(rows), dim=-1)

    def _set_seed(self, seed: int | None) -> None:
        """Name the episodes anew and start the first of each row."""
        if seed is None or not 0 <= seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), got {seed}")
        self.seed_tensor.fill_(seed)
        self.rows = owned(self._bound.start(self.seed_tensor, self.start_ids, torch.zeros_like(self.env_ids)))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:  # noqa: ANN401
        """Start the next episode of all rows, or of those that ``"_reset"`` marks."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        fresh = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.restart(fresh if mask is None else mask.reshape(self.num_envs))
        return self._observation().update(self._flags())

    def restart(self, chosen: Tensor) -> None:
        """Start the next episode of some rows; one that has not moved yet stays. Shape: (N,), bool."""
        # A row that has not moved yet is at the start of the episode that a reset would give it.
        episode = self.rows.episode + (self.rows.elapsed > 0)
        start = self._bound.start(self.seed_tensor, self.start_ids, episode)
        self.rows = select_rows(chosen, start, self.rows)

    def observations(self) -> Tensor:
        """Return what the agents see now. Shape: (N, D), float32."""
        return torch.cat(self._bound.observe(self.rows), dim=-1)

    def _observation(self) -> TensorDict:
        return TensorDict({"observation": self.observations()}, batch_size=self.batch_size, device=self.device)

    def _flags(self) -> dict[str, Tensor]:
        rows = self.rows
        flags = {"done": rows.done, "terminated": rows.terminated, "truncated": rows.truncated}
        return {name: flag.unsqueeze(-1) for name, flag in flags.items()}

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        """Advance the rows that are neither done nor left out by ``"_step"``."""
        mask = tensordict.get("_step", None)
        reward = self.advance(tensordict.get("action"), None if mask is None else mask.reshape(self.num_envs))
        return self._observation().update({"reward": reward.unsqueeze(-1), **self._flags()})

    def advance(self, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Step the rows that are not done and return rewards, 0 of those that stay. Shape: (N,).

        Args:
            action: Shape: (N, *spec.shape).
            mask: rows to step; by default all. Shape: (N,), bool.
        """
        stepped = ~self.rows.done if mask is None else mask & ~self.rows.done
        outcome = self._outcome(action)
        self.rows = select_rows(stepped, outcome.rows, self.rows)
        return torch.where(stepped, outcome.reward, 0.0)

    def _outcome(self, action: Tensor) -> Outcome:
        """Return the outcome of stepping every row, compiled if asked for."""
        if not self.compiled:
            return self._bound.step(self.rows, action)
        # The compiled call takes one layout; vmap leaves what all rows share expanded.
        action = action.to(self.scenario.action_spec.dtype).contiguous()
        inputs = [*self.engine.inputs, *leaves(self.rows), action]
        outputs = [torch.empty_like(leaf) for leaf in leaves(self.rows)]
        outputs.append(torch.empty_like(self.rows.ended, dtype=self.reward_dtype))
        if self._call is None:

            def function(*tensors: Tensor) -> list[Tensor]:
                count = len(self.engine.inputs)
                rows = with_leaves(self.rows, tensors[count:-1])
                outcome = self.engine.bind(list(tensors[:count])).step(rows, tensors[-1])
                return [*leaves(outcome.rows), outcome.reward]

            self._call = compile_in_place(function, inputs, outputs, **self.scenario.compile_options)
        self._call(inputs, outputs)
        return Outcome(with_leaves(self.rows, outputs[:-1]), outputs[-1])

    def reset_groups(self, num_groups: int, group_size: int, seed: int) -> TensorDict:
        """Start episodes in which each group of ``group_size`` rows shares path, start and length.

        Raises:
            ValueError: the groups do not fill the rows exactly.
        """
        if num_groups * group_size != self.num_envs:
            raise ValueError(f"{num_groups} groups of {group_size} do not make {self.num_envs} sub-environments")
        return self.reset_starts(torch.arange(self.num_envs, device=self.device) // group_size, seed)

    def reset_starts(self, start_ids: Tensor, seed: int) -> TensorDict:
        """Start episodes in which rows of equal ids share path, start and length. Shape: (N,), int64, not negative.

        Raises:
            ValueError: there is not one id for each row, or one is negative.
        """
        if start_ids.shape != (self.num_envs,) or bool((start_ids < 0).any()):
            raise ValueError(f"{self.num_envs} ids from 0 on are needed, got {start_ids.tolist()}")
        self.start_ids.copy_(start_ids)
        self._set_seed(seed)
        return self._observation()

    def begin_rows(self, ids: Tensor | Sequence[int], seeds: Tensor, start_ids: Tensor) -> None:
        """Start in some rows the first episodes that seeds and ids name; the other rows stay as they are.

        What `reset` starts in these rows afterwards is named by the environment's own seed again.

        Args:
            ids: numbers of rows, each once. Shape: (B,).
            seeds: in [0, 2^63). Shape: (B,), int64.
            start_ids: in [0, 2^32). Shape: (B,), int64.

        Raises:
            IndexError: a number is not one of a row.
        """
        env = self._numbers(ids)
        start = self._bound.of_rows(env).start(seeds, start_ids, torch.zeros_like(start_ids))
        for leaf, fresh in zip(leaves(self.rows), leaves(start), strict=True):
            leaf[env] = fresh
        self.start_ids[env] = start_ids

    def change_market(self, market: Mapping[str, Tensor]) -> None:
        """Overwrite the market's tensors in place, so that compiled and captured steps see the new ones.

        Episodes go on in the new market; `reset` starts new ones. `market` keeps naming the first tape.

        Raises:
            ValueError: the tensors have other names, shapes or types.
        """
        own = self.scenario.market
        for name in {*own, *market}:
            new = market.get(name)
            if name not in own or new is None or (new.shape, new.dtype) != (own[name].shape, own[name].dtype):
                raise ValueError(f"the new market's {name} does not take the place of the old one's")
        for name, tensor in own.items():
            tensor.copy_(market[name])

    def copy_rows(self, src: Tensor, dst: Tensor) -> None:
        """Make rows ``dst`` copies of rows ``src``, to branch from them. Shape of both: (M,)."""
        for leaf in leaves(self.rows):
            leaf[dst] = leaf[src]
        self.start_ids[dst] = self.start_ids[src]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of a run depends on."""
        return {
            "scenario": {"name": self.scenario.name, "version": self.scenario.version},
            "seed": self.seed_tensor.clone(),
            "env_ids": self.env_ids.clone(),
            "start_ids": self.start_ids.clone(),
            "rows": [leaf.clone() for leaf in leaves(self.rows)],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit.

        Raises:
            ValueError: it is of another scenario, version or number of sub-environments.
        """
        own = {"name": self.scenario.name, "version": self.scenario.version}
        if state_dict["scenario"] != own:
            raise ValueError(f"state of {state_dict['scenario']} does not fit {own}")
        if len(state_dict["env_ids"]) != self.num_envs:
            raise ValueError(f"state of {len(state_dict['env_ids'])} rows does not fit {self.num_envs}")
        self.seed_tensor.copy_(state_dict["seed"])
        self.env_ids.copy_(state_dict["env_ids"])
        self.start_ids.copy_(state_dict["start_ids"])
        self.rows = with_leaves(self.rows, [leaf.to(self.device, copy=True) for leaf in state_dict["rows"]])
