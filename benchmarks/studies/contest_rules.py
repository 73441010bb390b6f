"""What each rule of the FinRL contest of 2024 is worth.

Recorded actions are played again with one rule changed at a time, in the disjoint windows of one book. The rules of the
contest are the task preset ``contest2024``; what no setting of the task does (sums in single precision, the book of the
contest's evaluation) is `contest_equity`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import StudyConfig, markdown, spelled
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.learn.evaluation import Agent
from vecenv.learn.intervals import bootstrap_interval
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.system.settings import Count
from vecenv.tasks.crypto_lob.agents import Imbalance
from vecenv.tasks.crypto_lob.config import BookSource, CryptoLobConfig
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS, forecasts_of_rows
from vecenv.tasks.crypto_lob.forecasts.fit import ForecastModel, forecasts
from vecenv.tasks.crypto_lob.forecasts.quality import quality_by_horizon
from vecenv.tasks.crypto_lob.forecasts.runs import rows_of
from vecenv.tasks.crypto_lob.tape import BookTape, tape_of_options

TASK = "crypto_lob"

SLIPPAGE, STOP = 7e-7, 1e-3
"""Of the contest's evaluation: share of the mid paid beside it; currency by which the best mid may be left."""

LATE = 900
"""Rows of 1 s between a factor and the price that the contest pairs it with."""

CONTEST = "the contest's"
HOLES, SINGLE = "trades in holes at the last mid", "the same, sums in single precision"
EVALUATION, EVALUATION_IN_PLACE = "the book of the evaluation", "the same, at the episode's own rows"

COUNTERPARTS = {SINGLE: HOLES}
"""With what a rule is compared, where that is not the contest's."""

CHANGES: dict[str, dict[str, Any]] = {
    CONTEST: {},
    "no stop": {"stop_loss": 0.0},
    "stop at 0.1% of the entry": {"stop_loss": 1e-3},
    "slippage of training, 0.5 basis points": {"slippage": 0.5},
    "no slippage": {"slippage": 0.0},
    "filled at the levels": {"fill": "book"},
    "filled at the levels, no stop": {"fill": "book", "stop_loss": 0.0},
    "filled at the levels, no stop, fee of 2 basis points": {"fill": "book", "stop_loss": 0.0, "taker_fee": 2.0},
}
"""Settings that differ from the preset, by the name of the rule."""


@dataclass(frozen=True)
class ContestRulesConfig(StudyConfig):
    """Settings of the comparison of rules."""

    book: str = str(Path(os.environ.get("VECENV_DATA", "data")) / "standx_btcusd_500ms.parquet")
    """File of order books."""
    factors: Path | None = None
    """Folder of ``vecenv factors train`` on the book, to tell what forecasts lose that are paired as the contest's."""
    episode_steps: Count = 1770
    """Steps of an episode, of 2 s."""


def main(config: ContestRulesConfig) -> dict[str, Any]:
    preset = with_values(CryptoLobConfig(), read_values(preset_path("task", "contest2024")), "contest2024")
    rules = replace(preset, book=config.book, episode_steps=config.episode_steps, random_start=False)
    tape = tape_of_options(rules.options)
    windows = vecenv.make(TASK, 1, compile=False, config=rules).scenario.metadata()["part"]["windows"]
    found: dict[str, Any] = {"market": tape.metadata(), "windows": windows, "actions": {}}
    for name, agent in {"random": None, "imbalance": Imbalance(0.5)}.items():
        env = vecenv.make(TASK, windows, compile=False, config=rules)
        actions = recorded(env, agent)
        told = compared(rules, tape, actions)
        found["actions"][name] = told
        headings = ["rules", *told[CONTEST]]
        rows = [[rule, *(spelled(entry.get(key)) for key in headings[1:])] for rule, entry in told.items()]
        print(f"Actions: {name}, {windows} windows, {tape.source}\n{markdown(headings, rows)}", flush=True)
    if config.factors is not None:
        found["forecasts"] = pairings(config.factors, BookSource(book=config.book))
        print(f"information coefficients over {HORIZONS[0]} s: {found['forecasts']}")
    return config.written("contest-rules", **found)


def recorded(env: VecEnv, agent: Agent | None) -> Tensor:
    """Return the actions of an agent, random ones without, in the first episode of every row. Shape: (T, N, 1)."""
    actions = []
    while not bool(env.rows.done.all()):
        chosen = random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
        actions.append(chosen if agent is None else agent.act(env))
        env.advance(actions[-1], eager=True)
    return torch.stack(actions)


def compared(rules: CryptoLobConfig, tape: BookTape, actions: Tensor) -> dict[str, dict[str, Any]]:
    """Play actions of shape (T, N, 1) under all rules, and return profits, differences and trades by the rules."""
    profits, told = {}, {}
    for name, changes in CHANGES.items():
        env = vecenv.make(TASK, actions.shape[1], compile=False, config=replace(rules, **changes))
        starts = env.state.row.clone()
        for action in actions:
            env.advance(action, eager=True)
        info = env.info()
        profits[name] = info["profit"]
        trades = info["trades"].double()
        told[name] = {
            "trades": float(trades.mean()),
            "steps_of_a_trade": float((info["exposure"] * len(actions)).sum() / trades.sum().clamp(min=1.0)),
            "not_filled": float(info["unfilled"].mean()),
        }
    mids = tape.doubled_mid.double().numpy() * tape.tick_size / 2
    rows = starts.numpy()[None, :] + np.arange(len(actions) + 1)[:, None]
    choices = actions.squeeze(-1).numpy()
    first = np.broadcast_to(np.arange(len(actions) + 1)[:, None], rows.shape)
    profits |= {
        name: torch.from_numpy(equity.astype(np.float64))
        for name, equity in {
            HOLES: contest_equity(mids[rows], choices, np.float64),
            SINGLE: contest_equity(mids[rows], choices, np.float32),
            EVALUATION: evaluation_equity(mids[first], choices),
            EVALUATION_IN_PLACE: evaluation_equity(mids[rows], choices),
        }.items()
    }
    groups = torch.arange(actions.shape[1])
    return {
        name: {
            "profit": bootstrap_interval(profit, groups)._asdict(),
            "difference": bootstrap_interval(profit - profits[COUNTERPARTS.get(name, CONTEST)], groups)._asdict(),
            **told.get(name, {}),
        }
        for name, profit in profits.items()
    }


def contest_equity(mids: np.ndarray, choices: np.ndarray, dtype: type[np.floating[Any]]) -> np.ndarray:
    """Return the change of equity by the arithmetic of the contest's simulator, one coin at most.

    Mids of the rows of each episode (T + 1, N); choices (T, N): 0 sells, 1 holds, 2 buys a coin at the next row; the
    contest's prices and sums are float32. Shape: (N,).
    """
    mids = mids.astype(dtype)
    cash = np.zeros(mids.shape[1], dtype)
    position, best = np.zeros(mids.shape[1], np.int64), np.zeros(mids.shape[1], dtype)
    for step, choice in enumerate(choices):
        mid, last = mids[step + 1], step + 1 == len(choices)
        trade = -position if last else (position + choice - 1).clip(-1, 1) - position
        best = np.where(position > 0, np.maximum(best, mid), np.where(position < 0, np.minimum(best, mid), best))
        stopped = (position != 0) & (np.abs(best - mid) > dtype(STOP))
        trade = np.where(stopped, -position, trade)
        best = np.where(position == 0, mid, best)
        factor = np.where(trade > 0, dtype(1 + SLIPPAGE), dtype(1 - SLIPPAGE)).astype(dtype)
        cash = cash - trade.astype(dtype) * mid * factor
        position = position + trade
    return cash + position.astype(dtype) * mids[-1]


def evaluation_equity(mids: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Return the change of equity in the book that the contest's evaluation keeps beside its simulator.

    It follows the actions, not the simulator's positions: coins are bought one by one as long as there is cash, of a
    million at first, none is sold short, and there is neither slippage nor a stop nor an end.
    """
    cash, coins = np.full(mids.shape[1], 1e6), np.zeros(mids.shape[1])
    for step, choice in enumerate(choices):
        mid = mids[step + 1]
        trade = ((choice == 2) & (cash > mid)).astype(float) - ((choice == 0) & (coins > 0))
        cash, coins = cash - trade * mid, coins + trade
    return cash + coins * mids[-1] - 1e6


def pairings(folder: Path, source: BookSource) -> dict[str, dict[str, float]]:
    """Return information coefficients over the shortest horizon, with bounds, of forecasts by how they are paired."""
    rows = rows_of(source)
    walked = forecasts_of_rows(folder / "forecasts.parquet", rows.books)[0]
    network = ForecastModel.load(folder / "model.safetensors").network
    own = forecasts(network, torch.from_numpy(rows.factors), 0, len(rows.moves)).numpy()
    late = np.full_like(walked, np.nan)
    late[LATE:] = walked[:-LATE]
    paired = {"by earlier models": walked, "paired 900 s late": late, "by a model that has learned from the rows": own}
    # Zeros stand where there is no forecast.
    known = (walked != 0).any(1) & (np.nan_to_num(late) != 0).any(1)
    paired = {name: np.where(known[:, None], forecast, np.nan) for name, forecast in paired.items()}
    measured = quality_by_horizon(paired, rows.moves, np.zeros_like(rows.moves), rows.books.time / 1000)
    return {name: items[0].information_coefficient._asdict() for name, items in measured.items() if items[0]}
