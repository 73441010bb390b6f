"""HTML report of one episode in the agent-based market, as a self-contained file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vecenv.learn.figures import COLOURS
from vecenv.system.page_figures import page_figure, svg
from vecenv.system.report_page import conversation, page, shortened, values
from vecenv.tasks.agent_market.figures import Played, book_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.tasks.agent_market.records import MarketEpisode, MarketStep


def market_report(
    record: MarketEpisode,
    reference: MarketEpisode,
    name: str,
    title: str,
    outcomes: tuple[Mapping[str, str], Mapping[str, str]],
) -> str:
    """Return the report of an episode beside a baseline's: book, own quotes and fills, account, orders, texts."""
    other = name.replace("_", " ")
    cards = [(told, f"{what}, {other} {outcomes[1][what]}") for what, told in outcomes[0].items()]
    state = "" if record.finished else ", left before the end"
    order = ""
    if record.parent[1]:
        order = f" · {'buy' if record.parent[0] > 0 else 'sell'} {record.parent[1]:,} shares"
    sections = {
        "Order book": svg(book_figure(record_played(record), "the agent", record.price_tick)),
        "Account": svg(account_figure(record, reference, other)),
        "Steps": "".join(_step(number, turn, record.price_tick) for number, turn in enumerate(record.turns, 1)),
        "Metadata": values(
            "Versions, rules and seed",
            {name: getattr(record, name) for name in ("versions", "task", "config", "seed", "env_id", "episode")},
        ),
    }
    return page(title, f"{len(record.turns)} steps{state}{order} · a simulated market", cards, sections)


def record_played(record: MarketEpisode) -> Played:
    """Return what the picture of the book needs, from the first step on."""
    turns = record.turns
    quotes = np.array([[price if size else np.nan for price, size in turn.quotes] for turn in turns], float)
    return Played(
        tick=np.array([turn.tick for turn in turns]),
        mid=np.array([turn.mid / record.price_tick for turn in turns]),
        # Sides first in a record, prices and quantities first in a state.
        ladder=np.array([turn.ladder for turn in turns]).transpose(0, 2, 1, 3),
        quotes=quotes,
        shares=np.array([[turn.shares] for turn in turns], float),
    )


def account_figure(record: MarketEpisode, reference: MarketEpisode, other: str) -> Figure:
    """Draw position, fills and the task's first outcome over the episode, beside those of a baseline."""
    figure, (outcome, position) = page_figure([1.2, 1.0], 4.6)
    name = next(iter(record.turns[0].outcomes))
    for curve, label, colour in ((reference, other, "#8a8f98"), (record, "agent", COLOURS[0])):
        tick = [0, *(turn.tick for turn in curve.turns)]
        outcome.plot(tick[1:], [turn.outcomes[name] for turn in curve.turns], color=colour, label=label, linewidth=2)
        position.step(tick, [0, *(turn.shares for turn in curve.turns)], where="post", color=colour, linewidth=1.8)
    for sign, marker, colour in ((1, "^", COLOURS[2]), (-1, "v", COLOURS[1])):
        marked = [turn for turn in record.turns if (turn.bought if sign > 0 else turn.sold)]
        height = [turn.outcomes[name] for turn in marked]
        label = "bought" if sign > 0 else "sold"
        outcome.scatter(
            [turn.tick for turn in marked], height, marker=marker, color=colour, s=36, zorder=3, label=label
        )
    outcome.axhline(0, color="#8a8f98", linewidth=0.8)
    outcome.set_ylabel(name.replace("_", " "))
    outcome.legend(frameon=False, loc="best", ncols=2)
    position.set(ylabel="shares held", xlabel="tick")
    figure.align_ylabels()
    return figure


def _step(number: int, turn: MarketStep, price_tick: float) -> str:
    fills = [f"{word} {shares:,}" for word, shares in (("bought", turn.bought), ("sold", turn.sold)) if shares]
    quotes = [
        f"{side} {size:,} at {price * price_tick:,.6g}"
        for side, (price, size) in zip(("bid", "ask"), turn.quotes, strict=True)
        if size
    ]
    told = [", ".join(fills) or "no trade", f"{turn.shares:+,} shares", f"equity {turn.equity:,.2f}"]
    told += [f"in the book {', '.join(quotes)}"] if quotes else []
    return conversation(
        f"Step {number}: {shortened(turn.action)}",
        [] if turn.valid else ["invalid"],
        turn.messages,
        " · ".join([*told, f"reward {turn.reward:+.3f}"]),
    )
