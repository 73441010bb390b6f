"""Pictures of the agent-based market: a book over time, what agents hold, and shortfalls of executions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from vecenv.core.env import VecEnv
from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.learn.evaluation import Agent
from vecenv.learn.report import bands_figure, seen_in_play
from vecenv.system.figures import COLOURS, GREY, empty_figure, entitle, legend_below, looks, page_figure
from vecenv.tasks.agent_market.seat import SeatState, own_orders

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.tasks.agent_market.records import MarketEpisode

PRICES_SHOWN = 60
"""Price ticks of the heat map above and below the mid's range."""


class Played(NamedTuple):
    """What an agent saw and held at every step; T + 1 steps of N episodes, of which all but ``shares`` show the first.

    ``mid`` is in price ticks, ``ladder`` prices and quantities by side, (T + 1, 2, 2, 10), ``quotes`` the best own bid
    and ask, (T + 1, 2), NaN without, ``shares`` those held, (T + 1, N), NaN after the end of an episode.
    """

    tick: np.ndarray
    mid: np.ndarray
    ladder: np.ndarray
    quotes: np.ndarray
    shares: np.ndarray


def played(env: VecEnv, agent: Agent, seed: int) -> Played:
    """Play the first episode of every row to its end and keep what pictures need."""

    def seen(steps: int) -> tuple[torch.Tensor, ...]:
        return *_first_row(env.state), torch.where(env.rows.done, torch.nan, env.state.shares.double())

    return Played(*seen_in_play(env, agent, seed, seen))


def _first_row(state: SeatState) -> tuple[torch.Tensor, ...]:
    """Return tick, mid, ladder and own quotes of the first row."""
    own = [own_orders(state[0], side) for side in (BUY, SELL)]
    quotes = torch.stack([torch.where(order.quantity > 0, order.price.double(), torch.nan) for order in own])
    return state.tick[0], state.doubled_mid[0].double() / 2, state.ladder[0], quotes


def book_figure(record: Played, name: str, currency: float) -> Figure:
    """Plot the book of an episode as a heat map over time, with the mid and the agent's own quotes."""
    from matplotlib.colors import LogNorm

    running = np.isfinite(record.shares[:, 0])
    mid, tick = record.mid[running], record.tick[running]
    low, high = int(mid.min()) - PRICES_SHOWN // 2, int(mid.max()) + PRICES_SHOWN // 2
    shown = np.zeros((high - low + 1, len(mid)))
    for column, (prices, quantities) in enumerate(record.ladder[running]):
        inside = (prices >= low) & (prices <= high)
        np.add.at(shown[:, column], prices[inside] - low, quantities[inside])
    figure, (axis,) = empty_figure(1, 1, 5.5)
    edges = (float(tick[0]), float(tick[-1]), (low - 0.5) * currency, (high + 0.5) * currency)
    image = axis.imshow(
        np.where(shown > 0, shown, np.nan),
        origin="lower",
        aspect="auto",
        extent=edges,
        cmap="Greys",
        alpha=0.7,
        norm=LogNorm(),
    )
    axis.plot(tick, mid * currency, color=COLOURS[2], linewidth=1.8, label="mid")
    for side, colour, label in ((0, COLOURS[0], "own bid"), (1, COLOURS[1], "own ask")):
        axis.plot(tick, record.quotes[running, side] * currency, ".-", color=colour, linewidth=1.8, label=label)
    figure.colorbar(image, ax=axis, label="Shares at a price, best ten levels", location="top", aspect=40)
    axis.set_xlabel("Tick of the episode")
    axis.set_ylabel("Price, units of currency")
    axis.ticklabel_format(axis="y", useOffset=False)
    legend_below(figure)
    entitle(figure, f"Order book of one episode, traded by {name}")
    return figure


def held_figure(records: Mapping[str, Played], what: str) -> Figure:
    """Plot what agents hold over the episodes: median and 5-95%."""
    bands = {}
    for name, record in records.items():
        alive = np.isfinite(record.shares).any(1)
        held = np.nanquantile(record.shares[alive], [0.05, 0.5, 0.95], axis=1)
        bands[name] = np.nanmax(record.tick[alive, None], axis=1), *held
    title = f"{what}: median and 5-95% of the episodes"
    return bands_figure(bands, "Tick of the episode", f"{what}, shares", title)


def shortfall_figure(shortfalls: Mapping[str, np.ndarray]) -> Figure:
    """Plot the implementation shortfalls of agents: quartiles, 5-95%, and the mean."""
    figure, (axis,) = empty_figure(1, 1, 1.5 + 0.4 * len(shortfalls))
    kept: dict[str, Any] = {"orientation": "horizontal", "whis": (5, 95), "showfliers": False, "patch_artist": True}
    line, mark = {"color": "black"}, {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"}
    drawn = axis.boxplot(list(shortfalls.values()), showmeans=True, medianprops=line, meanprops=mark, **kept)
    for box, look in zip(drawn["boxes"], looks(shortfalls).values(), strict=True):
        box.set_facecolor(look.colour)
    drawn["medians"][0].set_label("median")
    drawn["means"][0].set_label("mean")
    axis.set_yticks(range(1, len(shortfalls) + 1), list(shortfalls))
    axis.invert_yaxis()
    axis.axvline(0.0, color="grey", linewidth=0.8)
    axis.set_xlabel("Implementation shortfall, basis points of the\narrival price (less is better)")
    legend_below(figure)
    entitle(figure, "Shortfall by agent: quartiles, 5-95% and mean of the episodes")
    return figure


SHOWN = 4
"""Agents of the pictures of what is held, at most: the first ones."""


def trading_figures(what: str, env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw the book of the first agent, and what the first agents hold, such as inventory."""
    records = {name: played(env, agent, seed) for name, agent in list(agents.items())[:SHOWN]}
    first = next(iter(records))
    currency = env.scenario.config.price_tick  # type: ignore[attr-defined]
    return {"book": book_figure(records[first], first, currency), what.lower(): held_figure(records, what)}


position_figures, inventory_figures = (partial(trading_figures, what) for what in ("Position", "Inventory"))


def execution_figures(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Figure]:
    """Draw the book of the first agent, and the shortfalls of all."""
    first = next(iter(agents))
    currency = env.scenario.config.price_tick  # type: ignore[attr-defined]
    figures = {"book": book_figure(played(env, agents[first], seed), first, currency)}
    shortfalls = {}
    for name, agent in agents.items():
        played(env, agent, seed)
        shortfalls[name] = env.info()["shortfall"].cpu().numpy()
    return figures | {"shortfall": shortfall_figure(shortfalls)}


def recorded_book_figure(record: MarketEpisode, reference: MarketEpisode, other: str, scenario: Any) -> Figure:  # noqa: ANN401
    """Draw the book of a recorded episode, from the first step on."""
    turns = record.turns
    quotes = np.array([[price if size else np.nan for price, size in turn.quotes] for turn in turns], float)
    shown = Played(
        tick=np.array([turn.tick for turn in turns]),
        mid=np.array([turn.mid / record.price_tick for turn in turns]),
        # Sides first in a record, prices and quantities first in a state.
        ladder=np.array([turn.ladder for turn in turns]).transpose(0, 2, 1, 3),
        quotes=quotes,
        shares=np.array([[turn.shares] for turn in turns], float),
    )
    return book_figure(shown, "the agent", record.price_tick)


def account_figure(record: MarketEpisode, reference: MarketEpisode, other: str, scenario: Any) -> Figure:  # noqa: ANN401
    """Draw position, fills and the task's first outcome over an episode, beside those of a baseline."""
    figure, (outcome, position) = page_figure([1.2, 1.0], 4.6)
    name = next(iter(record.turns[0].outcomes))
    shown = looks(("agent", other))
    for label, curve in {other: reference, "agent": record}.items():
        line = shown[label].line()
        tick = [0, *(turn.tick for turn in curve.turns)]
        outcome.plot(tick[1:], [turn.outcomes[name] for turn in curve.turns], label=label, **line)
        position.step(tick, [0, *(turn.shares for turn in curve.turns)], where="post", **line)
    for label, marker, colour in (("bought", "^", COLOURS[2]), ("sold", "v", COLOURS[1])):
        marked = [turn for turn in record.turns if getattr(turn, label)]
        height = [turn.outcomes[name] for turn in marked]
        ticks = [turn.tick for turn in marked]
        outcome.scatter(ticks, height, marker=marker, color=colour, s=36, zorder=4, label=label)
    outcome.axhline(0, color=GREY, linewidth=0.8)
    outcome.set_ylabel(name.replace("_", " "))
    outcome.legend(frameon=False, loc="best", ncols=2)
    position.set(ylabel="shares held", xlabel="tick")
    figure.align_ylabels()
    return figure
