"""Pictures of trading on order books: trades over the mid with its spread, and what agents earn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.report import bands_figure, seen_in_play
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below, looks
from vecenv.tasks.crypto_lob.tape import BookTape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6
"""Agents of the picture of returns, at most: the first ones."""

BASIS_POINTS = 1e4


class Played(NamedTuple):
    """What an agent did; T + 1 rows of N episodes, that of the first episode alone for the last three.

    ``equity`` is the change since the start in basis points of the initial cash, (T + 1, N), NaN after the end,
    ``position`` in coins, ``filled`` lots bought and sold on the way to the row, (T + 1, 2).
    """

    equity: np.ndarray
    row: np.ndarray
    position: np.ndarray
    filled: np.ndarray


def played(env: VecEnv, agent: Agent, seed: int) -> Played:
    """Play the first episode of every row to its end and keep what pictures need."""
    initial = env.scenario.initial  # type: ignore[attr-defined]

    def seen(steps: int) -> tuple[torch.Tensor, ...]:
        state, over = env.state, env.rows.done & (env.rows.elapsed < steps)
        equity = torch.where(over, torch.nan, BASIS_POINTS * state.equity.double() / initial)
        return equity, state.row[0], state.position[0], torch.stack([state.bought[0], state.sold[0]])

    equities, row, position, filled = seen_in_play(env, agent, seed, seen)
    alive = np.isfinite(equities[:, 0])
    return Played(equities, row[alive], position[alive], filled[alive])


def trades_figure(record: Played, name: str, tape: BookTape) -> Figure:
    """Plot one episode: mid with bid and ask, purchases and sales, the position and the equity."""
    figure, axes = empty_figure(3, 1, 8.0)
    own = looks([name])[name].colour
    seconds = (record.row - record.row[0]) * tape.step_gap
    rows = torch.from_numpy(record.row.astype(np.int64))
    ask, bid = (tape.price[rows, :, 0].double() * tape.tick_size).unbind(-1)
    mid = ((ask + bid) / 2).numpy()
    axes[0].fill_between(seconds, bid.numpy(), ask.numpy(), color="grey", alpha=0.4, linewidth=0, label="bid to ask")
    axes[0].plot(seconds, mid, color="black", linewidth=0.8, label="mid")
    for side, marker, colour, label in ((0, "^", COLOURS[2], "bought"), (1, "v", COLOURS[1], "sold")):
        traded = record.filled[:, side] > 0
        axes[0].plot(seconds[traded], mid[traded], marker, color=colour, markersize=6, label=label)
    axes[0].set_ylabel("Price")
    axes[0].ticklabel_format(axis="y", useOffset=False)
    held = record.position * tape.lot_size
    axes[1].step(seconds, held, where="post", color=own)
    axes[1].fill_between(seconds, 0, held, step="post", color=own, alpha=0.2)
    axes[1].set_ylabel("Position, coins")
    axes[2].plot(seconds, record.equity[: len(seconds), 0], color=own)
    axes[2].axhline(0.0, color="grey", linewidth=0.8)
    axes[2].set_ylabel("Profit, basis points\nof the initial cash")
    axes[2].set_xlabel(f"Seconds since {tape.moment(int(record.row[0]))} UTC")
    legend_below(figure)
    entitle(figure, f"One episode traded by {name}")
    return figure


def equity_figure(records: Mapping[str, Played], step_gap: float) -> Figure:
    """Plot the profit of agents over an episode: mean, and quartiles of the episodes."""
    bands = {}
    for name, record in records.items():
        # What has ended keeps its last equity.
        ended = np.isnan(record.equity)
        last = np.where(ended, 0, np.arange(len(ended))[:, None]).max(0)
        equity = np.where(ended, record.equity[last, np.arange(ended.shape[1])], record.equity)
        low, high = np.quantile(equity, [0.25, 0.75], axis=1)
        bands[name] = np.arange(len(equity)) * step_gap, low, equity.mean(1), high
    title = "Profit: mean and quartiles of the episodes"
    return bands_figure(bands, "Seconds of the episode", "Profit, basis points of the initial cash", title)


def lob_figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw an episode of the first agent, and the profits of the first agents; random ones would hide the others."""
    tape: BookTape = env.scenario.tape  # type: ignore[attr-defined]
    names = [name for name in agents if name not in ("random", "untrained")][:SHOWN]
    records = {name: played(env, agents[name], seed) for name in names}
    first = next(iter(agents))
    record = records[first] if first in records else played(env, agents[first], seed)
    figures = {"trades": trades_figure(record, first, tape)}
    return figures | ({"equity": equity_figure(records, tape.step_gap)} if records else {})
