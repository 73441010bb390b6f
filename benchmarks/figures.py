"""Plots of benchmark results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"environment": "#0072B2", "without_observations": "#56B4E9", "policy": "#D55E00", "training": "#009E73"}
COMPONENT_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#882255", "#44AA99")
"""Colours of reward components, in the order of their largest share."""
OTHERS_COLOUR = "#BBBBBB"
LEAST_SHARE = 0.02
"""Components that never reach this share of the reward are merged."""
GRADER_COLOURS = {"calibrated": "#0072B2", "seed": "#D55E00"}
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


def draw_reward_presets(result: dict[str, Any], path: Path) -> None:
    """Draw share of HOLD, shares of the reward's components, and both grades over training, a column per preset.

    Lines are means over the seeds, bands the range of the seeds.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, PercentFormatter

    runs = result["runs"]
    figure, grid = plt.subplots(
        3, len(runs), figsize=(1.5 + 3.6 * len(runs), 9), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    shares = {preset: _component_shares(histories) for preset, histories in runs.items()}
    largest: dict[str, float] = {}
    for share in shares.values():
        for name, values in share.items():
            largest[name] = max(largest.get(name, 0.0), float(values.max()))
    named = sorted((name for name in largest if largest[name] > LEAST_SHARE), key=lambda name: -largest[name])
    colours = dict(zip(named, COMPONENT_COLOURS, strict=False))
    for (preset, histories), (hold, stack, grade) in zip(runs.items(), grid.T, strict=True):
        frames = [update["frames"] for update in histories[0]]
        _band(hold, frames, [[update["hold"] for update in history] for history in histories], "black", "HOLD days")
        layers = [shares[preset].get(name, np.zeros(len(frames))) for name in colours]
        stack.stackplot(frames, [*layers, 1.0 - sum(layers)], colors=[*colours.values(), OTHERS_COLOUR], linewidth=0)
        for name, colour in GRADER_COLOURS.items():
            grades = [[update["grades"][name] for update in history] for history in histories]
            _band(grade, frames, grades, colour, name)
        hold.set(title=preset, ylim=(0, 1))
        stack.set(ylim=(0, 1))
        grade.set(xlabel="steps", ylim=(0, 1), xlim=(frames[0], frames[-1]))
        grade.xaxis.set_major_formatter(EngFormatter())
        for axes in (hold, stack):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        for axes in (hold, grade):
            axes.grid(True, alpha=0.3)
    for axes, label in zip(grid[:, 0], ("days of HOLD", "share of the absolute reward", "grade"), strict=True):
        axes.set_ylabel(label)
    legend = {**colours, "others": OTHERS_COLOUR}
    patches = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in legend.values()]
    # Legend from the topmost layer down.
    grid[1, -1].legend(patches[::-1], [*legend][::-1], loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    grid[2, -1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, title="grader")
    config = result["config"]
    figure.suptitle(
        f"PPO under presets of the reward: {config['task']}, {config['max_orders']} order(s) a day, "
        f"{Path(config['market']).name} market; lines: mean of {config['num_seeds']} run(s), bands: their range"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_language_learning(result: dict[str, Any], path: Path) -> None:
    """Draw the grade of the rollouts of each seed with held-out grades, and the bounded shares."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure, (grade, share) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained", height_ratios=(3, 2))
    runs = result["runs"]
    first, last = 0.0, runs[0]["updates"][-1]["frames"]
    for run, colour in zip(runs, COMPONENT_COLOURS, strict=False):
        frames = [update["frames"] for update in run["updates"]]
        # An update's rollout is graded with the model before the update.
        before = [first, *frames[:-1]]
        seed = f"seed {run['seed']}"
        grade.plot(before, [update["grade"] for update in run["updates"]], "o-", color=colour, markersize=3, label=seed)
        for name, place in (("supervised", first), ("trained", last)):
            held_out = run["grades"][name]
            low, high = held_out["mean"] - held_out["low"], held_out["high"] - held_out["mean"]
            shift = (runs.index(run) - (len(runs) - 1) / 2) * 0.01 * last
            bar = {"color": colour, "markersize": 7, "capsize": 3}
            grade.errorbar([place + shift], [held_out["mean"]], [[low], [high]], fmt="s", **bar)
        share.plot(before, [update["hold"] for update in run["updates"]], color=colour)
        share.plot(before, [update["invalid"] for update in run["updates"]], ":", color=colour)
    for name, label in (("signal", "follows the signal"), ("buy_and_hold", "buy and hold")):
        height = sum(run["grades"][name]["mean"] for run in runs) / len(runs)
        grade.axhline(height, color="grey", linestyle="--", linewidth=1)
        _annotate(grade, label, height, "grey")
    grade.set(ylabel="grade", ylim=(0, 1), title="squares: held-out episodes with 95% intervals; lines: rollouts")
    grade.legend(loc="lower right", frameon=False)
    share.set(xlabel="days of all agents together", ylabel="share of the days", ylim=(0, 1))
    share.plot([], [], color="black", label="nothing traded")
    share.plot([], [], ":", color="black", label="no valid order")
    share.legend(loc="center right", frameon=False)
    share.yaxis.set_major_formatter(PercentFormatter(1.0))
    share.xaxis.set_major_formatter(EngFormatter())
    for axes in (grade, share):
        axes.grid(True, alpha=0.3)
    figure.suptitle("A tiny language model learns by GRPO on the market with a planted signal")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_news_language(result: dict[str, Any], path: Path) -> None:
    """Draw held-out rank correlations by agent with intervals: of each seed, and of the controls on shuffled news."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    learned = [run for run in result["runs"] if run["news"] == "news"]
    controls = {f"seed {run['seed']}": run["on_shuffled_news"] for run in learned}
    controls |= {
        f"seed {run['seed']}, learned from shuffled": run["information"]
        for run in result["runs"]
        if run["news"] == "shuffled"
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), sharey=True, layout="constrained")
    _draw_correlations(left, {f"seed {run['seed']}": run["information"] for run in learned})
    _draw_correlations(right, controls)
    left.set(ylabel="rank IC with 95% interval", title="synthetic news")
    right.set_title("shuffled news")
    figure.suptitle("A tiny language model learns to rate news from the market's feedback: held-out episodes")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_correlations(axes: Axes, told: dict[str, dict[str, Any]]) -> None:
    """Draw rank correlations of agents, by series and agent, without that of hindsight."""
    names = [name for name in max(told.values(), key=len) if name != "hindsight"]
    for number, ((label, agents), colour) in enumerate(zip(told.items(), COMPONENT_COLOURS, strict=False)):
        shown = [(place, agents[name]["rank_ic"]) for place, name in enumerate(names) if name in agents]
        place = np.array([place for place, _ in shown]) + (number - (len(told) - 1) / 2) * 0.18
        mean, low, high = (np.array([one[bound] for _, one in shown]) for bound in ("mean", "low", "high"))
        bars = np.stack([mean - low, high - mean])
        axes.errorbar(place, mean, bars, fmt="s", color=colour, markersize=5, capsize=3, label=label)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=8)
    axes.grid(True, axis="y", alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _component_shares(histories: list[list[dict[str, Any]]]) -> dict[str, np.ndarray]:
    """Return each component's share over the updates, the mean of the seeds."""
    names = histories[0][0]["components"]
    return {
        name: np.array([[update["components"][name] for update in history] for history in histories]).mean(0)
        for name in names
    }


def _band(axes: Axes, frames: list[float], values: list[list[float]], colour: str, label: str) -> None:
    """Draw the mean of the seeds' lines and their range."""
    lines = np.array(values)
    axes.fill_between(frames, lines.min(0), lines.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(frames, lines.mean(0), color=colour, label=label)


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
            best[figure["num_envs"]] = max(best.get(figure["num_envs"], 0.0), figure["steps_per_second"])
    return sorted(best.items())
