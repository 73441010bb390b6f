"""Page of agents on real order books: a table for each fee, a row for each book."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASIS_POINTS = 1e4


def report(result: Mapping[str, Any]) -> str:
    """Return Markdown: returns of an episode in basis points, with intervals over windows.

    Args:
        result: of `vecenv.benchmarks.learning.order_book_agents`.
    """
    config, books = result["config"], result["books"]
    lines = [
        "# Agents on real order books",
        "",
        "Return of an episode in basis points of the initial cash, with 95% intervals of a bootstrap over disjoint",
        f"windows: {config['episode_steps']} steps of a second on the held-out hours of the book of the training (the",
        f"first row), {config['other_steps']} on all of the other books. Below a table the share of steps at which the",
        "value learners do not all choose the same.",
        "",
    ]
    for fee in next(iter(books.values()))["fees"]:
        agents = list(next(iter(books.values()))["fees"][fee]["agents"])
        lines += [f"## Taker fee of {fee} basis points", ""]
        lines += [f"| book | windows | {' | '.join(agents)} |", "|---" * (len(agents) + 2) + "|"]
        for name, book in books.items():
            told = book["fees"][fee]
            cells = [_spelled(told["agents"][agent]["total_return"]) for agent in agents]
            lines.append(f"| {name} | {told['windows']} | {' | '.join(cells)} |")
        shares = ", ".join(f"{name} {book['fees'][fee]['disagreement']:.0%}" for name, book in books.items())
        lines += ["", f"Disagreement: {shares}.", ""]
    return "\n".join(lines)


def _spelled(interval: Mapping[str, float | None]) -> str:
    """Return a share and its interval in basis points."""
    numbers = [interval[key] for key in ("mean", "low", "high")]
    value, *bounds = ["–" if number is None else f"{BASIS_POINTS * number:.1f}" for number in numbers]
    return f"{value} ({' … '.join(bounds)})"
