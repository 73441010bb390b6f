"""Picture of throughput against the number of environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CURVES = {
    "environment": ("environment only", "#0072B2"),
    "without_observations": ("environment, observations not kept", "#56B4E9"),
    "policy": ("with policy sampling", "#D55E00"),
    "training": ("with PPO training", "#009E73"),
}


def draw_throughput(result: dict[str, Any], path: Path) -> None:
    """Draw steps per second against the number of environments, log-log, beside the published figure and the limit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
    for column, (label, colour) in CURVES.items():
        if curve := curve_of(result["figures"], column):
            axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=label, markersize=4)
    heights = {"plain-Python oracle, one account": result["scalar_oracle_steps_per_second"]}
    kept = [figure for figure in result["figures"] if figure["column"] == "environment"]
    if kept:
        limit = result["copy_bandwidth_bytes_per_second"] / kept[0]["bytes_per_step"]
        heights["copy bandwidth ÷ necessary bytes"] = limit
    for text, height in heights.items():
        if height:
            axes.axhline(height, color="grey", linestyle="--", linewidth=1)
            axes.annotate(text, (0, height), (4, 4), xycoords=axes.get_yaxis_transform(), textcoords="offset points")
    for published in result["published"]:
        if published["num_envs"] and published["steps_per_second"]:
            label = f"published: {published['what'].split(',')[0]}, {published['conditions'].split(';')[0]}"
            axes.plot(published["num_envs"], published["steps_per_second"], "k*", markersize=12, label=label)
    market = result["market"]
    about = "simulated" if market is None else f"{market['symbols']} symbols, {market['source']}"
    axes.set(xscale="log", yscale="log", xlabel="sub-environments N", ylabel="steps per second")
    axes.set_title(f"{result['config']['task']} on {result['device']}\n{about}", fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def curve_of(figures: list[dict[str, Any]], column: str) -> list[tuple[int, float]]:
    """Return (N, steps per second) of a column, the fastest mode of each N."""
    best: dict[int, float] = {}
    for figure in figures:
        if figure["column"] == column:
            best[figure["num_envs"]] = max(best.get(figure["num_envs"], 0.0), figure["per_second"])
    return sorted(best.items())
