"""How much of what was learned holds beyond the training days: the same policies on those and on the test's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.metrics import Interval
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import baseline_agents, compared_config, held_out_environment, trained_agent


def evaluate_on_training(
    task: str,
    tape: MarketTape,
    config: Any,  # noqa: ANN401
    checkpoints: Mapping[str, Path],
    test: Evaluation,
) -> Evaluation:
    """Play policies and the reference agent on the training days, as many episodes and under the same seed as the test.

    Of several seeds every policy plays, but not their ensemble: overfitting is a matter of the policies.

    Args:
        task: name of the task.
        tape: of the training.
        config: of the training.
        checkpoints: of the policies, by the names that they have in the test.
        test: of the comparison.
    """
    env, _ = held_out_environment(task, tape, compared_config(task, config), test.num_episodes)
    agents = {name: trained_agent(path, env) for name, path in checkpoints.items()}
    reference = [name for name in test.records if name == test.reference]
    return evaluate(env, agents | baseline_agents(env, reference), test.seed)


def generalisation(training: Evaluation, test: Evaluation) -> dict[str, Any]:
    """Return what agents reach on training days beside the test, JSON-able.

    Returns:
        By agent: the grade by the task's first grader, on ``training`` and ``test``, with 95% intervals, and their
        ``gap``; and ``excess_log_return`` in the same form for those that are compared with the reference agent. The
        days of the spans differ, so an agent that learns nothing may have a gap too.
    """
    result = {}
    for name, grades in training.grades.items():
        grader, seen = next(iter(grades.items()))
        entry = {"grader": grader, **_beside(seen, test.grades[name][grader])}
        if name in training.excess_log_returns:
            entry["excess_log_return"] = _beside(training.excess_log_returns[name], test.excess_log_returns[name])
        result[name] = entry
    return result


def generalisation_line(result: Mapping[str, Any]) -> str:
    """Return one sentence on what `generalisation` returned."""
    parts = []
    for name, entry in result.items():
        part = f"{name} {entry['training']['mean']:.3f} and {entry['test']['mean']:.3f}"
        if "excess_log_return" in entry:
            means = (100 * entry["excess_log_return"][span]["mean"] for span in ("training", "test"))
            part += " (excess {:.2f}% and {:.2f}%)".format(*means)
        parts.append(part)
    return f"Grade on training days and on those of the test: {', '.join(parts)}"


def _beside(training: Interval, test: Interval) -> dict[str, Any]:
    """Return two intervals and the difference of their means; None for the bounds of too few days."""
    spans = {"training": training, "test": test}
    told = {
        span: {name: None if math.isnan(value) else value for name, value in interval._asdict().items()}
        for span, interval in spans.items()
    }
    return told | {"gap": training.mean - test.mean}
