"""Picture of throughput against the number of environments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"environment": "#0072B2", "without_observations": "#56B4E9", "policy": "#D55E00", "training": "#009E73"}
LABELS = {
    "environment": "environment only",
    "without_observations": "environment, observations not kept",
    "policy": "with policy sampling",
    "training": "with PPO training",
}


def draw_throughput(result: dict[str, Any], path: Path) -> None:
    """Draw steps per second against the number of environments, log-log, beside the published figure and the limit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
    for column, colour in COLOURS.items():
        curve = _curve(result["figures"], column)
        if curve:
            counts, rates = zip(*curve, strict=True)
            axes.plot(counts, rates, "o-", color=colour, label=LABELS[column], markersize=4)
    kept = [figure for figure in result["figures"] if figure["column"] == "environment"]
    if kept:
        limit = result["copy_bandwidth_bytes_per_second"] / kept[0]["bytes_per_step"]
        axes.axhline(limit, color="grey", linestyle="--", linewidth=1)
        _annotate(axes, "copy bandwidth ÷ necessary bytes", limit, "grey")
    for published in result["published"]:
        if published["num_envs"] and published["steps_per_second"]:
            label = f"published: {published['what'].split(',')[0]}, {published['conditions'].split(';')[0]}"
            axes.plot(published["num_envs"], published["steps_per_second"], "k*", markersize=12, label=label)
    if result["scalar_oracle_steps_per_second"]:
        axes.axhline(result["scalar_oracle_steps_per_second"], color="black", linestyle=":", linewidth=1)
        _annotate(axes, "plain-Python oracle, one account", result["scalar_oracle_steps_per_second"], "black")
    axes.set(xscale="log", yscale="log", xlabel="sub-environments N", ylabel="steps per second")
    market = result["market"]
    about = "simulated" if market is None else f"{market['symbols']} symbols, {market['source']}"
    axes.set_title(f"{result['config']['task']} on {result['device']}\n{about}", fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _annotate(axes: Axes, text: str, height: float, colour: str) -> None:
    """Label a horizontal line at its left end."""
    axes.annotate(
        text, (0, height), (4, 4), xycoords=axes.get_yaxis_transform(), textcoords="offset points", color=colour
    )


def _curve(figures: list[dict[str, Any]], column: str) -> list[tuple[int, float]]:
    """Return (N, steps per second) of a column, the fastest mode of each N."""
    best: dict[int, float] = {}
    for figure in figures:
        if figure["column"] == column:
            best[figure["num_envs"]] = max(best.get(figure["num_envs"], 0.0), figure["per_second"])
    return sorted(best.items())
