"""Report of a run: ``metrics.json`` and plots of accounts, worst days and the learning curve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import Evaluation, domain_of
from vecenv.learn.learning_curve import History, learning_curve_figure


def write_run_folder(
    folder: Path | str,
    metadata: Mapping[str, Any],
    evaluation: Evaluation,
    histories: Sequence[History] = (),
    agent: str | None = None,
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``metrics.json`` and the plots of a run, and return the content of the former.

    Files of an earlier run are replaced. Holdings and worst days are those of ``agent``, by default the first; the
    agents ``beside`` are shown on those days too. Without histories there is no learning curve.

    Raises:
        ValueError: the evaluation has no such agent.
    """
    shown = next(iter(evaluation.records)) if agent is None else agent
    if shown not in evaluation.records:
        raise ValueError(f"no agent {shown!r} in the evaluation; it has {', '.join(evaluation.records)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    told, pictures = evaluation.pictures(shown, beside)
    document = {"vecenv_version": vecenv.__version__, **metadata, "evaluation": evaluation.to_json(), **told}
    (folder / "metrics.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if histories:
        pictures["learning_curve"] = learning_curve_figure(histories, evaluation.title())
    for name, figure in pictures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)
    return document


def write_task_figures(folder: Path, env: VecEnv, agents: Mapping[str, Agent], seed: int) -> None:
    """Write the pictures of a task's family, if it has any; the rows of ``env`` are overwritten."""
    draw = domain_of(env).pictures
    for name, figure in ({} if draw is None else draw(env, agents, seed)).items():
        figure.savefig(folder / f"{name}.png", dpi=120)
