"""GRPO for language models: groups of agents on the same days, one batched generation and environment step per day.

Advantages are computed as for tensor policies (`vecenv.learn.group_episodes`); every token of a day's answer gets the
advantage of the day. The losses are the same functions (`vecenv.learn.grpo`): an episode's answers are one
sequence, even if they were sampled in several contexts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.core.capabilities import schedule_of
from vecenv.core.env import VecEnv
from vecenv.language.agent import LanguageAgent
from vecenv.language.chat import ChatFormat
from vecenv.language.config import LanguageConfig
from vecenv.language.conversation import Segment
from vecenv.language.groups import ConversationGroups, TensorGroups, parts_of
from vecenv.language.log_probs import (
    TokenTable,
    counted_tokens,
    flattened,
    packed,
    padded_tokens,
    segment_log_probs,
)
from vecenv.language.models import frozen_copy, longest_context, without_adapters
from vecenv.language.shard_gradients import add_gradients
from vecenv.learn.checkpoints import check_optimiser, check_same_form, copied, digest_of
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import (
    EpisodeAccounts,
    audit,
    check_groups,
    check_same_rules,
    check_whole_worlds,
    of_all_shards,
    refilled,
    rollout_seed,
)
from vecenv.learn.grpo import group_losses, step_credit
from vecenv.learn.learner import check_minibatches
from vecenv.learn.runs import (
    ORIGIN,
    Metrics,
    check_resumable,
    checked_losses,
    origin,
    progress_metrics,
    set_learning_rate,
    update_seed,
)
from vecenv.learn.settings.run import check_shards
from vecenv.learn.shards import Shards
from vecenv.text.interaction import Interaction

LOSS_METRICS = ("policy_loss", "reference_kl", "approx_kl", "clip_fraction")

SAMPLER_METRICS = ("sampler_gap", "sampler_beyond")

SAMPLER_BOUND = 1e-3
"""Nats that the trainer's log-probability of a sampled token may be off from the sampler's, under equal weights."""


@dataclass(frozen=True, eq=False)
class LanguageEpisodes(EpisodeAccounts):
    """Episodes with the segments of each one's conversation."""

    said: list[list[Segment]]


class LanguageGRPO:
    """The learner; `vecenv.learn.runs.run` runs it.

    The model is trained in place, parameters with ``requires_grad`` only. All rows of ``env``, an environment whose
    actions are order lists or a world without tensors, restart at every rollout. Of an environment the model plays the
    first ``rows``, the agent ``others`` the groups after them. Of a world ``seed`` names the first episodes.

    Of several shards each has whole groups: it generates and learns in batches of its own rows, and all weights follow
    the sum of the gradients of all. Of several ranks ``env`` has the own rows, with ``env_ids`` that say which.

    Attributes:
        rows: number of the own rows that the model plays.
        agents: of each own shard.

    Raises:
        ValueError: rows are not whole groups, rules differ by episode, the task has no text or no maximum episode
            length, the context is longer than the model's, groups have no agent, ranks have other weights, or a world
            of several shards keeps something between rollouts.
    """

    def __init__(
        self,
        env: VecEnv | Interaction,
        model: PreTrainedModel,
        chat: ChatFormat,
        config: LanguageConfig,
        group_size: int,
        others: Agent | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.chat, self.config, self.group_size = model, chat, config, group_size
        self.shards = shards = Shards(config.shards)
        count = shards.ranks.count
        self.groups: TensorGroups | ConversationGroups
        if isinstance(env, VecEnv):
            self.days = _checked_days(env)
            self.rows = env.num_envs if config.groups is None else config.groups * group_size
            self.env, self.groups = env, TensorGroups(env, self.rows, others)
            check_groups(env.num_envs * count, group_size, config)
            check_groups(self.rows * count, group_size, config)
            check_whole_worlds(env, group_size)
        else:
            self.rows = env.num_rows
            if config.groups is not None:
                raise ValueError("the model plays all groups of a conversation: leave out groups")
            if shards.count > 1:
                _check_keeps_nothing(env)
            self.groups = ConversationGroups(env, config, model.device, seed, shards.first_row(self.rows))
            # It has what checkpoints and runs need of an environment.
            self.env = cast("VecEnv", self.groups)
            self.days = self.groups.longest
            check_groups(self.rows * count, group_size, config)
        check_shards(shards.count, count, self.rows * count // group_size, "groups")
        check_minibatches(self.rows * count, config.minibatches, shards.count)
        rows = self.env.num_envs
        if self.rows > rows:
            raise ValueError(f"the model cannot play {config.groups} of {rows // group_size} groups")
        if (self.rows < rows) != (others is not None):
            raise ValueError("an agent for the other groups is needed exactly if the model does not play all groups")
        longest = longest_context(model)
        if longest is not None and config.context_tokens > longest:
            raise ValueError(f"context_tokens {config.context_tokens} are more than the model's {longest}")
        self.agents = [
            LanguageAgent(model, chat, config.in_training, part) for part in parts_of(range(self.rows), shards.own)
        ]
        for agent in self.agents:
            agent.on_turn = shards.ranks.watch
        if not shards.ranks.alone:
            shards.ranks.same({"model": digest_of(dict(model.named_parameters()))})
        self.hold()
        self.batch_size = self.days * self.rows * count
        self.num_updates = -(-config.total_frames // self.batch_size)
        self.update_number = 0
        self.first_seed, self.rollouts = int(self.env.seed_tensor), 0

    def hold(self) -> None:
        """Make what the model learns by: its optimiser, and the reference, if it needs one of its own."""
        self.make_optimiser()
        self.reference = frozen_copy(self.model) if self.config.kl_coef and not self.config.lora_rank else None

    def make_optimiser(self) -> None:
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, self.config.learning_rate, weight_decay=0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state, on the CPU: a GPU need not hold model and optimiser twice.

        Of several ranks all call it, and the first has the whole.
        """
        state = {
            **origin(self.config, self.env),
            "update": self.update_number,
            "model": copied(self.learned_weights()),
            "optimiser": copied(self.whole(self.optimiser.state_dict())),
            "environment": self.environment_state(),
            "group_size": self.group_size,
            "first_seed": self.first_seed,
            "rollouts": self.rollouts,
        }
        if self.reference is not None:
            state["reference"] = copied(self.whole(dict(self.reference.named_parameters())))
        return state

    def learned_weights(self) -> dict[str, Tensor]:
        """Return the parameters that are learned, by name."""
        learned = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}
        whole: dict[str, Tensor] = self.whole(learned)
        return whole

    def whole(self, state: Any) -> Any:  # noqa: ANN401
        """Return a state of tensors of which this rank may have a part, with whole ones."""
        return state

    def part_of(self, value: Tensor, like: Tensor) -> Tensor:
        """Return what this rank has of a tensor, by one of its own. Shape: any."""
        return value

    def finish(self) -> None:
        """Make the model whole on the first rank, for the comparison after the last update; all ranks call it."""

    def environment_state(self) -> dict[str, Any]:
        """Return the state of the environment of all ranks, on the first."""
        whole: dict[str, Any] = self.shards.whole(self.env.state_dict())
        return whole

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("group_size") != self.group_size:
            raise ValueError(f"the checkpoint was trained with groups of {state.get('group_size')}")
        check_resumable(state, self.config, self.env)
        if "environment" in state:
            state = {**state, "environment": self.shards.own_part(state["environment"])}
        own = self.learned_weights()
        if not isinstance(state.get("model"), Mapping) or state["model"].keys() != own.keys():
            raise ValueError("the checkpoint is of another model")
        needed: dict[str, Any] = {"update": 0, "model": own, "environment": self.env.state_dict(), "first_seed": 0}
        needed |= {"rollouts": 0, "group_size": self.group_size}
        if self.reference is not None:
            needed["reference"] = self.whole(dict(self.reference.named_parameters()))
        apart = (*ORIGIN, "optimiser")
        check_same_form({name: state[name] for name in state if name not in apart}, needed, "state")
        check_optimiser(state.get("optimiser"), self.optimiser)
        self.env.load_state_dict(state["environment"])
        self.update_number, self.first_seed, self.rollouts = (
            state[name] for name in ("update", "first_seed", "rollouts")
        )
        with torch.no_grad():
            for name, tensor in self.model.named_parameters():
                if name in own:
                    tensor.copy_(self.part_of(state["model"][name], tensor))
            for name, tensor in self.reference.named_parameters() if self.reference is not None else ():
                tensor.copy_(self.part_of(state["reference"][name], tensor))
        # It would go on in the memory of the state that it is given.
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))

    def update(self) -> Metrics:
        started = time.perf_counter()
        rate = set_learning_rate(self.optimiser, self.config, self.update_number / self.num_updates)
        episodes = self.collect()
        told = self.outcomes()
        with_spread, refills = refilled(episodes, self.collect, self.config.most_refills, self.group_size, self.shards)
        collected = time.perf_counter() - started
        metrics = self._learn(episodes)
        self.update_number += 1
        seconds = time.perf_counter() - started
        progress = progress_metrics(self, self.batch_size, seconds, rate) | {"rollout_share": collected / seconds}
        spread = self.shards.joined([with_spread.to(torch.int8)]).bool()
        audited = audit(of_all_shards(episodes, self.shards), spread)
        return progress | told | metrics | audited | self._answers(episodes) | {"refills": refills}

    def outcomes(self) -> Metrics:
        """Return the mean outcomes of the last episodes of all ranks."""
        return self.groups.outcomes(self.shards)

    def collect(self) -> list[LanguageEpisodes]:
        """Play an episode in every row, and return those of each own shard."""
        env, seed = self.env, rollout_seed(self.first_seed, self.rollouts)
        rows = torch.arange(env.num_envs, device=env.device) + self.shards.first_row(env.num_envs)
        self.rollouts += 1
        # Members of a group, and agents of a world, share the start.
        played = self.groups.play(self.agents, rows // self.group_size, seed, self.config.reward)
        if self.shards.count > 1 or self.config.most_refills is not None:
            # Those that are joined, or take the place of others, are of one form.
            played = [accounts.lengthened(self.days) for accounts in played]
        return [
            LanguageEpisodes(**vars(accounts), said=[one.segments for one in agent.conversations])
            for accounts, agent in zip(played, self.agents, strict=True)
        ]

    def _learn(self, own: list[LanguageEpisodes]) -> Metrics:
        """Train on the episodes of each own shard and return the mean losses.

        ``credited`` is the share of steps with an advantage; the `SAMPLER_METRICS` are of the first minibatch, whose
        weights are those that sampled: the mean distance of the trainer's log-probabilities from the sampler's, and the
        share of tokens for which it is above `SAMPLER_BOUND`.
        """
        config, shards = self.config, self.shards
        credits = [step_credit(part, config, self.group_size, self.update_number / self.num_updates) for part in own]
        if self.reference is not None and config.renews_reference(self.update_number):
            self.reference.load_state_dict(self.model.state_dict())
        references = [self._reference_log_probs(part.said) if config.kl_coef else None for part in own]
        counts = [
            [(credit.where(part.mask, 0.0) != 0).double().sum(), part.mask.sum()]
            for credit, part in zip(credits, own, strict=True)
        ]
        credited, counted = shards.total(counts)
        generators = [
            torch.Generator().manual_seed(update_seed(config.seed, self.update_number, shards.first + place))
            for place in range(shards.own)
        ]
        steps = []
        for _ in range(config.epochs):
            orders = [
                torch.randperm(len(part.said), generator=generator).view(config.minibatches, -1).tolist()
                for part, generator in zip(own, generators, strict=True)
            ]
            for minibatches in zip(*orders, strict=True):
                batches = zip(own, minibatches, credits, references, strict=True)
                made = self.added(self._gradients(*batch) for batch in batches)
                steps.append(shards.mean(made))
                checked_losses(self, steps[-1].tolist())
                torch.nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
                self.optimiser.step()
                self.optimiser.zero_grad()
        known = len(LOSS_METRICS)
        losses = dict(zip(LOSS_METRICS, torch.stack(steps).mean(0)[:known].tolist(), strict=True))
        sampled = dict(zip(SAMPLER_METRICS, steps[0][known:].tolist(), strict=True))
        return losses | sampled | {"credited": float(credited / counted.clamp(min=1))}

    def added(self, each: Iterable[Tensor]) -> list[Tensor]:
        """Leave the gradients of a minibatch of all shards in the parameters; ``each`` makes those of an own shard."""
        return add_gradients(self.parameters, self.shards, each)

    def passes(self, sizes: Sequence[int], model: PreTrainedModel) -> Iterator[list[int]]:
        """Yield the numbers of the items of each pass through a model, given their padded tokens."""
        for part in packed(sizes, self.config.tokens_at_once):
            self.shards.ranks.watch()
            yield part

    def _gradients(
        self, episodes: LanguageEpisodes, minibatch: list[int], credit: Tensor, reference: list[Tensor] | None
    ) -> Tensor:
        """Add up the gradients of a shard's minibatch, by the number of shards, and return its metrics.

        They are the `LOSS_METRICS` and the `SAMPLER_METRICS`. Shape: (6,).
        """
        config, rules = self.config, self.config.rules.objective
        whole = sum(counted_tokens(episodes.said[row], episodes.mask[:, row]) for row in minibatch)
        sums = torch.zeros(len(LOSS_METRICS) + len(SAMPLER_METRICS), device=self.env.device)
        asked = [row for row in minibatch if episodes.said[row]]
        for part in self.passes([padded_tokens(episodes.said[row]) for row in asked], self.model):
            rows = [asked[place] for place in part]
            said = [episodes.said[row] for row in rows]
            log_prob = segment_log_probs(self.model, flattened(said), self.chat.pad, config.temperature)
            table = TokenTable(said, self.env.device)
            advantage, mask = (
                table.spread(torch.cat([tensor[days, row] for row, days in zip(rows, table.days, strict=True)]))
                for tensor in (credit, episodes.mask)
            )
            now, then = table.spread(log_prob), table.spread(torch.tensor(table.log_prob, device=self.env.device))
            losses = group_losses(
                now,
                then,
                advantage,
                mask,
                rules,
                self.days * self.agents[0].turns * config.answer_tokens,
                None if reference is None else table.spread(torch.cat([reference[row] for row in rows])),
            )
            # Weight of the part's mean in that of the minibatch.
            tokens = int(mask.sum()) / max(whole, 1)
            weight = tokens if rules.aggregation == "token_mean" else len(rows) / len(minibatch)
            ((losses.policy + config.kl_coef * losses.reference_kl) * (weight / self.shards.count)).backward()
            weights = torch.tensor([weight, weight, tokens, tokens, tokens, tokens], device=sums.device)
            gap = (now - then).detach().abs()[mask]
            distances = [gap.mean(), (gap > SAMPLER_BOUND).float().mean()] if len(gap) else [sums.new_zeros(())] * 2
            sums += torch.stack([*losses, *distances]).detach() * weights
        return sums

    @torch.no_grad()
    def _reference_log_probs(self, said: list[list[Segment]]) -> list[Tensor]:
        """Return the log-probabilities of each episode's sampled tokens under the reference (initial) model."""
        config, found = self.config, [torch.empty(0)] * len(said)
        asked = [row for row, segments in enumerate(said) if segments]
        for part in self.passes([padded_tokens(said[row]) for row in asked], self.reference or self.model):
            rows = [asked[place] for place in part]
            segments = flattened([said[row] for row in rows])
            if self.reference is None:
                with without_adapters(self.model) as model:
                    log_prob = segment_log_probs(model, segments, self.chat.pad, config.temperature)
            else:
                log_prob = segment_log_probs(self.reference, segments, self.chat.pad, config.temperature)
            counts = [sum(len(segment.drawn) for segment in said[row]) for row in rows]
            for row, values in zip(rows, log_prob.split(counts), strict=True):
                found[row] = values
        return found

    def _answers(self, own: list[LanguageEpisodes]) -> Metrics:
        # Calls are of the last rollout, whose episodes may all be masked out, and whatever the task tells of them.
        names = ("days", "invalid", "calls", "faults")
        each = [
            [*self._lengths(part), *(agent.calls[name] for name in names)]
            for part, agent in zip(own, self.agents, strict=True)
        ]
        (counts,) = self.shards.total([[torch.tensor(numbers, dtype=torch.float64)] for numbers in each])
        answers, tokens, cut_off, days, invalid, calls, faults = counts.tolist()
        told = {"answer_tokens": tokens / max(answers, 1), "cut_off": cut_off / max(answers, 1)}
        told["invalid_answers"] = invalid / max(days, 1)
        if self.config.tools:
            told["tool_calls"] = calls / max(days, 1)
            told["tool_faults"] = faults / max(calls, 1)
        return told

    def _lengths(self, episodes: LanguageEpisodes) -> tuple[int, int, int]:
        """Return the number of answers, of their tokens, and of answers that were cut off."""
        lengths, cut_off = [], 0
        for segment in flattened(episodes.said):
            for turn in dict.fromkeys(segment.turn):
                places = [place for place, own in zip(segment.drawn, segment.turn, strict=True) if own == turn]
                lengths.append(len(places))
                cut_off += segment.tokens[places[-1]] not in self.chat.stop
        return len(lengths), sum(lengths), cut_off


def _checked_days(env: VecEnv) -> int:
    """Return the steps of the longest episode of an environment whose groups can be compared."""
    scenario = env.scenario
    if scenario.text is None:
        raise ValueError(f"task {scenario.name!r} has no text")
    if schedule_of(scenario, env.num_envs) is not None:
        raise ValueError(f"{scenario.name} changes its rules by row, so that groups cannot be compared")
    return check_same_rules(env)


def _check_keeps_nothing(world: Interaction) -> None:
    """Raise ValueError if a world is told of all episodes of a rollout, or goes on from one to the next."""
    for name in ("settled", "measures", "state_dict"):
        if getattr(type(world), name) is not getattr(Interaction, name):
            raise ValueError(
                f"{type(world).__name__} counts the episodes of a rollout together ({name}), which several shards do "
                "not: leave out shards and processes"
            )
