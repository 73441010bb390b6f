"""Evaluate trained agents, baselines, or both on any market and span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro import conf

from vecenv.language.config import AnswerConfig
from vecenv.registry import task_named
from vecenv.system.preset_files import option_names, with_values
from vecenv.system.settings import Count, Seed, Settings, When
from vecenv.tasks.experiment.kinds import ALL, OF_TENSORS, Combining, TaskSettings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, FileMarket, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.progress import loading_torch
from vecenv.tasks.experiment.rules import PartAsked, compared_rules
from vecenv.tasks.experiment.run_files import SETTINGS
from vecenv.tasks.experiment.settings import DEFAULT_TASK
from vecenv.tasks.experiment.trained import first_policy, trained_under


@dataclass(frozen=True, kw_only=True)
class Test(Settings):
    """The test alone."""

    owner: ClassVar[str] = "a task or a market without days that no policy knows"

    part: ClassVar[PartAsked] = None


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """The test, or all of a market of data."""

    owner: ClassVar[str] = "a market of data"

    part: PartAsked = None
    """Days of a market of data to play: the test, or all. By default all where no policy was trained on the market,
    known by its content, unless dates or a share of the test are given."""


@dataclass(frozen=True, kw_only=True)
class Baselines(Settings):
    """Baselines alone."""

    owner: ClassVar[str] = "neither --checkpoint nor --model"


@dataclass(frozen=True, kw_only=True)
class Model(Settings):
    """A language model beside the baselines."""

    owner: ClassVar[str] = "--model"

    language: AnswerConfig = field(default_factory=AnswerConfig)
    """Answer settings of a language model."""


KINDS = (*MARKETS, *SPLITS, Part, Combining, Model)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(TaskOptions):
    """Options that decide which settings there are, and their defaults."""

    checkpoint: tuple[Path, ...] | None = None
    model: str | None = None
    test_fraction: float | None = None
    part: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(TaskSettings):
    """Settings of ``vecenv evaluate``. The episodes are drawn from the test days, or from all that no policy knows."""

    checkpoint: tuple[Path, ...] = ()
    """Folder of a run, or its checkpoint. The rules and the market of its training become the defaults. Of several, or
    of a run of several seeds, each policy plays, and their ensemble by the mean of their actions."""
    model: str | None = None
    """Language model to play. A folder, a name on the Hugging Face hub, or the folder of a run, whose rules and market
    become the defaults."""
    task: str = DEFAULT_TASK
    """Installed task, by default the checkpoint's, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    days: Annotated[Any, conf.arg(name="")] = field(default_factory=Test)
    """Which days are played."""
    agents: tuple[str, ...] = (ALL,)
    """Baselines to play, or all."""
    trained: Annotated[Any, conf.arg(name="")] = field(default_factory=Baselines)
    """How what was trained plays."""
    seed: Seed = 0
    """Seed of the episodes."""
    episodes: Count = 256
    """Episodes of each agent."""
    device: Annotated[str, OF_TENSORS, When("model", told="--model")] = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    folder: Path | None = None
    """Folder for metrics.json and pictures, none by default."""
    record: Path | None = None
    """File for the episodes of the table's first agent. It ends in .jsonl, for vecenv replay, or .parquet."""
    env: Any
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> EvaluateSettings:
        """Return the defaults of the command line, from a checkpoint or presets."""
        given = chosen_options(EvaluateOptions, args)
        places, model = given.get("checkpoint", ()), given.get("model")
        if places and model is not None:
            raise ValueError("either a checkpoint or a model plays beside the baselines, not both")
        run = first_policy(places[0]) if places else None
        if model is not None and (Path(model) / SETTINGS).is_file():
            run = Path(model)
        known = {} if run is None else trained_under(run)
        task = known.get("task") or given.get("task", DEFAULT_TASK)
        if given.get("task", task) != task:
            place = places[0] if places else model
            raise ValueError(f"{place} was trained on the task {task!r}, not on {given['task']!r}")
        record = task_named(task)
        of_text = model is not None or record.talks
        env = known["env"] if run is not None else compared_rules(record, of_text=of_text)
        env = with_preset(env, "task", given.get("task_preset"))
        source = market_for(record, env, known.get("market", {}) | given)
        of_data = isinstance(source, FileMarket)
        parted = not {"train_end", "test_start", "test_fraction"}.isdisjoint(given)
        settings = cls(
            task=task,
            source=source,
            days=Part(part="test" if parted else None) if of_data else Test(),
            trained=Model() if model is not None else Combining() if places else Baselines(),
            env=env,
        )
        own = {*option_names(source), *option_names(settings.trained)}.difference(given)
        values = known.get("market", {}) | {"language": known.get("language", {})}
        values = {name: value for name, value in values.items() if name in own}
        settings = with_values(settings, values, str(run))
        refuse_elsewhere(settings, KINDS, given_options(args))
        if parted and given.get("part") == "all":
            raise ValueError("--part all plays all days: it needs none of --train-end, --test-start, --test-fraction")
        return settings


def main(settings: EvaluateSettings) -> dict[str, Any]:
    """Evaluate trained agents, baselines, or both on any market and span."""
    with loading_torch(f"evaluate {settings.model or f'agents on {settings.task}'}"):
        # It needs PyTorch, which settings do not.
        from vecenv.tasks.commands.evaluation import evaluated

    return evaluated(settings)
