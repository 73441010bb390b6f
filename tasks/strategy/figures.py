"""Pictures of written strategies: grade by try, shown against held out, and standard error by number of paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vecenv.learn.intervals import Interval, jackknife_interval
from vecenv.system.figures import empty_figure, entitle, legend_below, looks
from vecenv.tasks.strategy.agents import BUY_AND_HOLD, CROSSOVER, written
from vecenv.text.interaction import Episode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.tasks.strategy.scene import StrategyWriting
    from vecenv.text.transcripts import ConversationRecord

FRESH = 2**20
"""Index of the first episode whose paths tell how well the standard error is estimated."""

REPEATS = 16
"""Sets of paths on which a mean grade is measured again."""


def talk_figures(records: Mapping[str, Sequence[ConversationRecord]]) -> dict[str, Figure]:
    """Draw what agents' conversations came to: shown grades by try, and final grades shown and held out."""
    return {"grade_by_try": grade_by_try(records), "overfit_gap": overfit_gap(records)}


def grade_by_try(records: Mapping[str, Sequence[ConversationRecord]]) -> Figure:
    """Plot the mean grade on the shown paths by try, with 95% intervals over episodes."""
    figure, (axis,) = empty_figure(1, 1, 5.0)
    shown = looks(records)
    met: list[list[int]] = []
    for number, (name, own) in enumerate(records.items()):
        tries = max((len(record.turns) for record in own), default=1) - 1
        known = [_shown(own, place) for place in range(1, tries + 1)]
        places = [place for place, values in enumerate(known, 1) if values]
        met.append(places)
        means = [_interval(values) for values in known if values]
        spread = [[one.mean - one.low for one in means], [one.high - one.mean for one in means]]
        shifted = [place + 0.04 * (number - len(records) / 2) for place in places]
        line = shown[name].line()
        axis.errorbar(shifted, [one.mean for one in means], yerr=spread, marker="o", capsize=3, label=name, **line)
    axis.axhline(0.5, color="black", linewidth=0.8)
    most = max((place for places in met for place in places), default=1)
    axis.set_xticks(range(1, 1 + most))
    axis.set_xlim(0.5, most + 0.5)
    axis.set(xlabel="Try", ylabel="Grade on the shown paths")
    legend_below(figure)
    entitle(figure, "Grade by try, mean of the test episodes with valid programs, 95% intervals")
    return figure


def overfit_gap(records: Mapping[str, Sequence[ConversationRecord]]) -> Figure:
    """Plot the final programs' grades on shown paths against those on held-out ones, with the mean gap."""
    figure, (axis,) = empty_figure(1, 1, 5.5)
    met, shown = [0.5], looks(records)
    for name, own in records.items():
        outcomes = [record.turns[-1].outcomes or {} for record in own]
        pairs = [(one.get("shown"), one.get("held_out")) for one in outcomes]
        known = [(seen, held_out) for seen, held_out in pairs if seen is not None and held_out is not None]
        if not known:
            continue
        gap = _interval([seen - held_out for seen, held_out in known])
        label = f"{name}: gap {gap.mean:+.4f} ({gap.low:+.4f} … {gap.high:+.4f})"
        across, upwards = zip(*known, strict=True)
        axis.scatter(across, upwards, s=24, alpha=0.7, color=shown[name].colour, label=label)
        met += [value for pair in known for value in pair]
    axis.plot([min(met), max(met)], [min(met), max(met)], color="black", linewidth=0.8)
    axis.set(xlabel="Grade on the shown paths", ylabel="Grade on paths and years never shown")
    legend_below(figure)
    entitle(figure, "Overfit gap: below the line a program is worse on what it never met; mean with 95% interval")
    return figure


def _shown(records: Sequence[ConversationRecord], place: int) -> list[float]:
    """Return the grades on the shown paths of what was tried, without invalid tries."""
    turns = [record.turns[place] for record in records if place < len(record.turns)]
    values = [(turn.outcomes or {}).get("shown") for turn in turns if not turn.fault]
    return [value for value in values if value is not None]


def _interval(values: Sequence[float]) -> Interval:
    return jackknife_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))


def figures(world: StrategyWriting, agents: Mapping[str, Any], seed: int) -> dict[str, Figure]:
    """Draw the standard error of two rules' mean grades by the number of common paths."""
    if world.config.language == "python":
        return {}  # What it asks for would take minutes: fifty sets of paths, each with a program's price.
    rules = {name: written(world, rule) for name, rule in (("buy and hold", BUY_AND_HOLD), ("crossover", CROSSOVER))}
    return {"standard_error": error_figure(standard_errors(world, rules, seed), world.config.paths)}


def standard_errors(
    world: StrategyWriting, rules: Mapping[str, str], seed: int
) -> dict[str, tuple[list[int], list[float], list[float]]]:
    """Return numbers of paths, the standard error that is told, and how far means of fresh sets of paths lie apart.

    The last are standard deviations of the mean grades of `REPEATS` sets of paths of other episodes.
    """
    most = world.config.paths
    counts = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
    programs = [world.read(text) for text in rules.values()]
    played = [world.grades(Episode(seed, FRESH + number), programs).grade.double() for number in range(REPEATS)]
    grades = torch.stack(played)
    found = {}
    for place, name in enumerate(rules):
        own = grades[:, place]
        told = [float((own[:, :count].var(1).mean() / count).sqrt()) for count in counts]
        apart = [float(own[:, :count].mean(1).std()) for count in counts]
        found[name] = counts, told, apart
    return found


def error_figure(errors: Mapping[str, tuple[list[int], list[float], list[float]]], paths: int) -> Figure:
    """Plot the standard errors that are told as lines, and those of fresh sets of paths as points."""
    figure, (axis,) = empty_figure(1, 1, 5.0)
    shown = looks(errors)
    for name, (counts, told, apart) in errors.items():
        axis.plot(counts, told, label=f"{name}: as told", **shown[name].line())
        points = [pair for pair in zip(counts, apart, strict=True) if 0 < pair[1] < math.inf]
        if points:
            across, upwards = zip(*points, strict=True)
            axis.scatter(across, upwards, s=24, color=shown[name].colour, label=f"{name}: of {REPEATS} fresh sets")
    axis.axvline(paths, color="black", linewidth=0.8, label="common paths of an episode")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(yscale="log", xlabel="Common paths", ylabel="Standard error of the mean grade")
    legend_below(figure)
    entitle(figure, "Standard error by the number of paths")
    return figure
