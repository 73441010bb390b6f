"""What is stepped: the rules of a task, given actions, and the bytes that a step cannot avoid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.core.scenario import Scenario
from vecenv.market.load import load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import rules_of
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.scenario import TierTrading

NUMBER_BYTES = 4
"""Of a float32."""


def task_rules(task: str, given: bool) -> Any:  # noqa: ANN401
    """Return the default rules of a task; a tier takes lists of orders where actions are given.

    Raises:
        ValueError: there is no such task.
    """
    rules = rules_of(task)
    return replace(rules, action="orders") if given and isinstance(rules, TierConfig | CurriculumConfig) else rules


def task_market(
    rules: Any,  # noqa: ANN401
    market: str,
    num_days: int,
    start: str | None,
    end: str | None,
    device: torch.device,
) -> MarketTape:
    """Read or generate the market that rules need, with the symbols that they name.

    Raises:
        ValueError: the market has a fault, or lacks a symbol.
    """
    tape = load_market(
        market,
        symbols=getattr(rules, "market_symbols", ()) or None,
        end=end,
        features=rules.features,
        context=rules.context,
        num_paths=1,
        num_days=num_days,
        device=device,
    )
    # The days before serve the indicators as warm-up.
    return tape.between(start, None) if start else tape


def fill_given_actions(collector: FusedCollector) -> None:
    """Fill the actions of a collector that is given them with random valid ones.

    Lists of orders are drawn as by `vecenv.tasks.tiers.agents.Random`, of symbols that all tiers of a mixed batch have.
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


def buffer_bytes(env: VecEnv) -> int:
    """Bytes that a rollout keeps for one step of one row: state, action and observation."""
    action = env.scenario.action_spec
    state = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(env.rows))
    return state + action.shape.numel() * action.dtype.itemsize + NUMBER_BYTES * sum(env.block_widths)


def necessary_bytes(collector: FusedCollector) -> int:
    """Bytes per step that no implementation can avoid with these buffers.

    Written: observation, state, reward and flags. Read: the state before, the action, and `market_numbers`. A chosen
    action is written instead of read, which is the same.
    """
    written = [*collector.buffers(), collector.actions]
    per_row = sum(buffer[0, 0].numel() * buffer.element_size() for buffer in written)
    state = sum(buffer[0, 0].numel() * buffer.element_size() for buffer in collector.row_buffers)
    market = market_numbers(collector.env.scenario, collector.observation is not None)
    return per_row + state + NUMBER_BYTES * market


def market_numbers(scenario: Scenario, observed: bool) -> int:
    """Count the numbers of the market that a step reads, each once.

    All tasks: the day's closes and the next day's and, for an observation, the features. A tier also: which symbols
    trade, the three numbers of the gate and, for an observation, the series of the whole market; without one the
    relative strength, which is a feature.
    """
    tape: MarketTape = scenario.tape  # type: ignore[attr-defined]
    per_symbol = 2 + (len(tape.feature_names) if observed else 0)
    if not isinstance(scenario, TierTrading):
        return per_symbol * tape.num_symbols
    per_symbol += 1 if observed else 2
    return per_symbol * tape.num_symbols + 3 + (len(scenario.config.context) if observed else 0)
