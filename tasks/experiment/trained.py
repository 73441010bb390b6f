"""What a policy was trained under, which is the default of the commands that play it: task, rules and market."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vecenv.language.config import AnswerConfig
from vecenv.learn import algorithm_named
from vecenv.registry import task_named
from vecenv.system.preset_files import option_names, read_values, with_values
from vecenv.system.settings import with_earlier
from vecenv.tasks.experiment.markets import MARKETS, SPLITS
from vecenv.tasks.experiment.progress import loading_torch
from vecenv.tasks.experiment.rules import compared_rules
from vecenv.tasks.experiment.run_files import SETTINGS, checkpoint_path
from vecenv.tasks.experiment.settings import TrainSettings, block_of, deciding


def first_policy(place: Path) -> Path:
    """Return the checkpoint of a run, of several seeds the first one's."""
    with loading_torch(f"play {place}"):
        # Here and below, as only what was trained needs PyTorch.
        from vecenv.tasks.experiment.seeds import policy_files

    return next(iter(policy_files(place).values()))


def trained_under(place: Path) -> dict[str, Any]:
    """Return ``task`` and ``env`` of a training and, if its folder has them, ``market`` and ``language`` by name."""
    from vecenv.tasks.experiment.checkpoints import read_checkpoint, trained_config

    path, scenario = checkpoint_path(place), read_checkpoint(place)["scenario"]
    record = task_named(scenario["task"])
    known: dict[str, Any] = {"task": record.name, "env": compared_rules(record, trained_config(scenario, str(path)))}
    file = path.parent / SETTINGS
    if not file.is_file():
        return known
    values, plain = read_values(file), record.config()
    chosen = deciding(values, str(file))
    if "config" not in scenario or algorithm_named(chosen.get("algorithm", TrainSettings.algorithm)).smooth:
        # The rules of a task whose scenario does not tell them; or trained under smooth ones, compared under its own.
        known["env"] = with_values(plain, with_earlier(block_of(values, "env", plain, file), plain), str(file))
        if "config" in scenario:
            known["env"] = compared_rules(record, known["env"])
    market = {name for kind in (*MARKETS, *SPLITS) for name in option_names(kind)}
    known["market"] = {name: value for name, value in values.items() if name in market}
    speaks = "model" in chosen or record.talks
    part = "learner" if speaks and not values.get("language") else "language"
    answers = block_of(values, part, AnswerConfig, file)
    known["language"] = {name: value for name, value in answers.items() if name in option_names(AnswerConfig)}
    return known
