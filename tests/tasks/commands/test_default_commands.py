"""The default command of every task and preset, from nothing, with its own choices: only numbers and lengths are less.

The gate runs the smallest form, eagerly; the night the whole market, batch and comparison, compiled, for two updates.
"""

import os
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.language.tiny import small_model
from tests.tasks.commands.small_runs import bars
from vecenv.language.models import save_model
from vecenv.learn.policies import why_not_by_reference
from vecenv.market import load
from vecenv.registry import task_named, task_names
from vecenv.system.preset_files import read_values, shipped_presets
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment.markets import GeneratedMarket
from vecenv.tasks.experiment.settings import TrainSettings
from vecenv.tasks.experiment.trainers import PolicyTrainer

TRAIN, RULES = shipped_presets("train"), shipped_presets("task")
# Presets of bars from a file: the first day of a small one, and a real one.
FILES = {"data": ("2020-01-01", "us_dow30"), "signals_data": ("2020-01-01", "us_news50")}
FILES |= dict.fromkeys(("dow30", "dow30_tilt"), ("2017-01-01", "us_dow30"))
FILES |= dict.fromkeys([name for name in TRAIN if name.startswith("nifty")], ("2021-01-01", "india_nifty109"))
RULES_OF = {"planted": "single_stock --market planted", "contest2024": "crypto_lob"}
RULES_OF |= dict.fromkeys(("finrl", "finrl_turbulence"), "stock_trading")
# A preset by the name of a task is that task's default.
WHOLE = [f"--task {task}" for task in task_names() if task_named(task).scenario is not None]
WHOLE += [f"--preset {name}" for name in TRAIN if name not in (*task_names(), "default")]
SMALL = [*WHOLE, *(f"--task {RULES_OF.get(name, 'agent_market')} --task-preset {name}" for name in RULES)]
LENGTHS = {
    "episode_length": 4,
    "days": 3,
    "episode_steps": 8,
    "max_ticks": 10,
    "synthetic_hours": 0.2,
    "embargo": 30,
    "boards": 64,
    "products": 60,
}
LENGTHS |= {"warm_up_ticks": 5, "min_episode_length": 2}
ROWS, STEPS = 72, 8
"""A batch has twice as many steps as a market of `smaller` has days to train on: what the whole command reads by
reference is read so here."""


def smaller(settings: TrainSettings) -> dict[str, object]:
    """Return numbers and lengths by option."""
    validated = settings.validation.validation_fraction > 0
    sizes: dict[str, object] = {"episodes": 3} | ({"validation-episodes": 3, "evaluations": 1} if validated else {})
    if isinstance(settings.source, GeneratedMarket):
        # The history before the first day of a neural market has 252 days.
        sizes |= {"num-paths": 4 if validated else 2, "num-days": 300 if settings.task == "curriculum" else 260}
    own = {name: value for name, value in LENGTHS.items() if hasattr(settings.env, name)}
    sizes |= {f"env.{name.replace('_', '-')}": value for name, value in own.items()}
    if settings.model is not None:
        told = {"context-tokens": 1024, "answer-tokens": 2, "total-frames": 12, "minibatches": 2}
        return sizes | {"num-groups": 2, "group-size": 2} | {f"learner.{name}": n for name, n in told.items()}
    frames = {"num-steps": STEPS, "total-frames": ROWS * STEPS}
    return sizes | {"num-envs": ROWS} | {f"learner.{name}": n for name, n in frames.items()}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    """Return what makes the file of a preset: small, in the form that it is for, with scores of news."""
    folder, names = tmp_path_factory.mktemp("files"), read_values(TRAIN["nifty"])["symbols"]

    @cache
    def made(first: str) -> Path:
        table = bars(len(names), 700).assign(sentiment=3.0)
        table["symbol"] = table["symbol"].map({f"S{k}": name for k, name in enumerate(names)})
        table["date"] += pd.Timestamp(first) - table["date"].iloc[0]
        table.to_parquet(folder / f"{first}.parquet")
        return folder / f"{first}.parquet"

    return made


@pytest.fixture(scope="module")
def lighter():
    """Draw each market once, and write empty pictures."""
    draw, drawn = load._generated, {}

    def once(market, generate, options, device):
        key = str((market, options.num_paths, options.num_days, options.symbols, options.generator))
        if key not in drawn:
            drawn[key] = draw(market, generate, options, device)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_generated", once)
        patch.setattr(Figure, "savefig", lambda figure, path, **_: Path(path).touch())
        yield


def trained(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, and require that observations are kept by reference wherever they can be."""
    new = PolicyTrainer.learner

    def checked(trainer, env, run, first):
        learner = new(trainer, env, run, first)
        if getattr(learner.config, "by_reference", False) is None:
            possible = why_not_by_reference(env, learner.network) is None
            assert possible == (learner.collector.references is not None)
        return learner

    monkeypatch.setattr(PolicyTrainer, "learner", checked)
    assert cli.main(["train", *command.split(), "--folder", str(folder / "run")]) == 0


def with_model(command: str, folder: Path) -> str:
    if not command.endswith("language"):
        return command
    save_model(*small_model(), folder / "model")
    return f"{command} --model {folder / 'model'}"


@pytest.mark.assembly
@pytest.mark.parametrize("command", SMALL)
def test_it_runs_small(command, small_file, lighter, tmp_path, monkeypatch):
    name = command.split()[-1]
    command = with_model(command, tmp_path) + (f" --market {small_file(FILES[name][0])}" if name in FILES else "")
    sizes = smaller(TrainSettings.defaults(command.split()))
    words = " ".join(f"--{option} {value}" for option, value in sizes.items())
    trained(f"{command} {words} --no-compile", tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=pytest.mark.realdata) if each.split()[-1] in FILES else each for each in WHOLE]
)
def test_it_runs_whole(command, tmp_path, monkeypatch):
    name = command.split()[-1]
    if name in FILES:
        if "VECENV_DATA" not in os.environ:
            pytest.skip("VECENV_DATA names no folder of market files")
        command += f" --market {Path(os.environ['VECENV_DATA'], FILES[name][1])}.parquet"
    command = with_model(command, tmp_path)
    settings = TrainSettings.defaults(command.split())
    steps = settings.learner.num_steps * settings.batch.rows if settings.algorithm != "grpo" else 1
    trained(f"{command} --learner.total-frames {2 * steps}", tmp_path, monkeypatch)
