"""Benchmark workloads: task configs, given actions, and the minimum memory traffic of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vecenv.core.collector import FusedCollector
from vecenv.core.collector_inputs import ReferencingPolicy
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves, of_fields
from vecenv.core.scenario import Scenario
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.crypto_lob.tape import BookTape
from vecenv.tasks.tiers.config import CurriculumConfig, TierConfig
from vecenv.tasks.tiers.scenario import TierTrading

NUMBER_BYTES = 4
"""Bytes of a float32."""


def workload_config(task: str, given: bool) -> Any:  # noqa: ANN401
    """Return the default config of a task; with order-list actions for a tier with given actions."""
    config = task_named(task).config()
    return replace(config, action="orders") if given and isinstance(config, TierConfig | CurriculumConfig) else config


def task_market(
    config: Any,  # noqa: ANN401
    market: str,
    num_days: int,
    start: str | None,
    end: str | None,
    device: torch.device,
) -> MarketTape:
    """Read or generate the market for a task's config, with its symbols."""
    options = MarketOptions(
        symbols=getattr(config, "market_symbols", ()) or None,
        end=end,
        features=config.features,
        context=config.context,
        num_paths=1,
        num_days=num_days,
        scores=getattr(config, "reads_scores", False),
    )
    tape = load_market(market, options, device)
    # Earlier days are the indicators' warm-up.
    return tape.between(start, None) if start else tape


def fill_given_actions(collector: FusedCollector) -> None:
    """Fill a collector's given actions with random valid ones.

    Order lists are drawn as by `vecenv.tasks.tiers.agents.Random`, with symbols common to all tiers of a mixed batch.
    """
    env, scenario = collector.env, collector.env.scenario
    if not (isinstance(scenario, TierTrading) and scenario.config.action == "orders"):
        for actions in collector.actions:
            actions.copy_(env.action_spec.rand())
        return
    owned = scenario.params["owned"].all(0) if scenario.mixed else torch.ones_like(env.state.holdings[0]).bool()
    slots = owned.nonzero().squeeze(-1)
    for kind, symbol, fraction in (actions.unbind(-1) for actions in collector.actions):
        kind.random_(0, 3)
        symbol.copy_(slots[torch.randint(len(slots), symbol.shape, device=env.device)])
        fraction.random_(1, 11).div_(10.0)


def messages_per_step(env: VecEnv) -> float | None:
    """Return the mean number of messages to an order book in a step so far; None for a task without order books."""
    if not isinstance(env.scenario, MarketScenario):
        return None
    config, info = env.scenario.config, env.info()
    return float((info["messages"] / (info["tick"] + config.warm_up)).mean()) * config.ticks_per_step


def buffer_bytes(env: VecEnv) -> int:
    """Bytes stored by a rollout per step and row: state, action and observation."""
    action = env.scenario.action_spec
    own = zip(leaves(env.rows), of_fields(env.rows, env.traits.donated), strict=True)
    kept = [leaf for leaf, donated in own if not donated]
    state = sum(leaf[0].numel() * leaf.element_size() for leaf in kept)
    return state + action.shape.numel() * action.dtype.itemsize + NUMBER_BYTES * sum(env.block_widths)


def necessary_bytes(collector: FusedCollector) -> int:
    """Minimum memory traffic per step with these buffers, in bytes.

    Written: observation, state, reward and flags. Read: the previous state, the action, and `market_numbers`. A sampled
    action is written instead of read, with the same number of bytes. Of observations by reference the own part is
    written, and a row of the policy's table is read. Donated state is left out: a step touches little of it.
    """
    written = [*collector.buffers(), collector.actions]
    per_row = sum(buffer[0, 0].numel() * buffer.element_size() for buffer in written)
    state = sum(buffer[0, 0].numel() * buffer.element_size() for buffer in collector.kept_buffers())
    if isinstance(collector.policy, ReferencingPolicy):
        market = market_numbers(collector.env.scenario, observed=False) + collector.policy.table.shape[-1]
    else:
        market = market_numbers(collector.env.scenario, observed=bool(collector.seen))
    return per_row + state + NUMBER_BYTES * market


def market_numbers(scenario: Scenario, observed: bool) -> int:
    """Count the numbers of the market that a step reads, each once.

    Nothing of a task that simulates its own. Of a tape of order books the mid, the levels of one side and, for an
    observation, the factors. All others: the day's closes and the next day's and, for an observation,
    the features. A tier also: the tradable mask, the three numbers of the gate and, for an observation, the context
    series; without one the relative strength, which is a feature.
    """
    tape: MarketTape | BookTape | None = getattr(scenario, "tape", None)
    if tape is None:
        return 0
    if isinstance(tape, BookTape):
        return 1 + 2 * tape.levels + (len(tape.factor_names) if observed else 0)
    per_symbol = 2 + (len(tape.feature_names) if observed else 0)
    if not isinstance(scenario, TierTrading):
        return per_symbol * tape.num_symbols
    per_symbol += 1 if observed else 2
    return per_symbol * tape.num_symbols + 3 + (len(scenario.config.context) if observed else 0)
