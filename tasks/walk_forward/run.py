"""A walk-forward from its settings to its report: for each span a training on earlier days, then its days, traded."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

import vecenv
from vecenv.learn.verdict import verdict_text
from vecenv.market.tape import MarketTape
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import as_values
from vecenv.tasks.backtest.opening import CPU, History, account_days, check_account_market
from vecenv.tasks.backtest.report import summary_table
from vecenv.tasks.backtest.result import found_of, played
from vecenv.tasks.backtest.run import benchmark_agents, write_json
from vecenv.tasks.backtest.settings import BacktestSettings
from vecenv.tasks.experiment.checkpoints import looks_of, write_settings
from vecenv.tasks.experiment.comparison import ENSEMBLE, TRAINED
from vecenv.tasks.experiment.known_before import tell_known_before, trained_on
from vecenv.tasks.experiment.markets import ByDates, Whole
from vecenv.tasks.experiment.planning import check_training, plan
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.run_files import SETTINGS, SPAN_FOLDER, WALK
from vecenv.tasks.experiment.seeds import holds_run, policy_files
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.splits import show_market
from vecenv.tasks.experiment.trained import trained_under
from vecenv.tasks.walk_forward.account import WalkedAccount
from vecenv.tasks.walk_forward.report import PICTURE, WalkForward
from vecenv.tasks.walk_forward.settings import WalkForwardSettings
from vecenv.tasks.walk_forward.spans import Span, spans_of

OUT_OF_SAMPLE = "out of sample"


def walk_forward(market: str | Path | None = None, **options: Any) -> WalkForward:  # noqa: ANN401
    """Train before each span of a file on earlier days alone, and let one account trade the spans.

    Args:
        market: file of bars.
        **options: of ``vecenv walk-forward`` by name, such as ``first_test="2015-01-01"``; those of the rules and of
            the learner as mappings ``env`` and ``learner``. Files are written into ``folder``.

    Raises:
        ValueError: an option does not exist, has no effect, or what is asked for cannot be trained or played.
    """
    given = options if market is None else {"market": str(market), **options}
    return _walked(WalkForwardSettings.given(given), wide_console())


def run(settings: WalkForwardSettings) -> dict[str, Any]:
    """Train before each span of a file on earlier days alone, trade the spans with one account, and write it all."""
    console = wide_console()
    found = _walked(settings, console)
    console.print(found.table())
    console.print(summary_table(found.joined))
    console.print(verdict_text(found.joined.verdicts), soft_wrap=True)
    folder = found.told["folder"]
    console.print(f"Written to {folder}: {WALK}, {PICTURE}, report.html, tables, and a folder of each span")
    return found.to_json()


def _walked(settings: WalkForwardSettings, console: Console) -> WalkForward:
    check_account_market(settings.record, settings.source, "vecenv walk-forward", "a walk-forward trades")
    check_training(settings)
    now = datetime.now()
    folder = settings.resume or settings.folder or Path("runs") / f"walk-forward-{settings.task}-{now:%Y%m%d-%H%M%S}"
    with WriteLock(folder) as lock:
        if settings.resume is not None and not (folder / WALK).is_file():
            raise ValueError(f"{folder}: not the folder of a walk-forward, it has no {WALK}")
        if settings.resume is None and any(path != lock.file for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty: go on with --resume {folder}, or choose another --folder")
        rules = settings.source.fitted(settings.record, settings.env)
        with working(console, f"Reading {settings.source.market} …"):
            whole = replace(settings.source, start=None, end=None).tape(rules, CPU)
        tape = account_days(whole, _traded(settings, folder, settings.source.start, settings.source.end))
        spans = spans_of(tape, settings.source.split)
        if settings.resume is not None:
            _check_begun(folder, tape, spans)
        _check_initial(settings)
        show_market(console, tape, {"Test": tape.between(str(spans[0].first), None)})
        told = f"{len(spans)} spans from {spans[0].first}, windows of training {settings.source.split.train_window}"
        console.print(f"Walk      {told}\nFolder    {folder}", soft_wrap=True)
        write_settings(folder, settings, NOT_IN_FILES)
        write_json({"spans": [{"first": str(span.first)} for span in spans]}, folder / WALK)
        found = _joined(settings, folder, tape, whole, spans, console)
        found.write(folder)
        return found


def _check_begun(folder: Path, tape: MarketTape, spans: list[Span]) -> None:
    """Reject a file whose spans do not go on from those of the folder, such as one of more days with another middle."""
    begun = [span["first"] for span in json.loads((folder / WALK).read_text(encoding="utf-8"))["spans"]]
    found = [str(span.first) for span in spans]
    if begun != found[: len(begun)]:
        raise ValueError(
            f"{folder}: its spans begin on {', '.join(begun)}, but by the days that {tape.source} has now they begin "
            f"on {', '.join(found)}: choose another --folder"
        )


def _check_initial(settings: WalkForwardSettings) -> None:
    """Reject a policy to start from that has, or may have, learned from days of this file."""
    initial = settings.runs.initial
    if initial is not None and (told := trained_on(initial, settings.source, CPU)):
        raise ValueError(f"--initial {initial}: {told}; no training may begin with what later days have taught")


def _joined(
    settings: WalkForwardSettings,
    folder: Path,
    tape: MarketTape,
    whole: MarketTape,
    spans: list[Span],
    console: Console,
) -> WalkForward:
    """Train and trade one span after the other, and join them."""
    account = WalkedAccount(tape.between(str(spans[0].first), None))
    policies: list[Path] = []
    for number, span in enumerate(spans, 1):
        place = folder / SPAN_FOLDER.format(span.first)
        told = f"{span.first} to {span.last}, trained on {span.trained_from} to {span.trained_until}"
        console.print(f"Span      {number} of {len(spans)}: {told}", soft_wrap=True)
        _train(settings, span, place, folder, console)
        history = _history(settings, place, whole, span)
        policies += history.checkpoints.values()
        account.play(history, settings.runs.combining.asked())
    env = replace(history, tape=account.tape, checkpoints={}).env(history.config)
    accounts = {TRAINED if settings.runs.number == 1 else ENSEMBLE: account.joined()}
    accounts |= {name: played(env, agent, settings.seed) for name, agent in benchmark_agents(env).items()}
    tell_known_before(console, settings.source.market, account.tape, policies)
    found = found_of(env, accounts, settings.seed)
    looks = max((looks_of(path) or 0 for path in policies), default=0) or None
    verdicts = tuple(replace(one, part=OUT_OF_SAMPLE, looks=looks) for one in found.verdicts)
    origin: dict[str, Any] = {"command": "walk-forward", "folder": str(folder), "vecenv_version": vecenv.__version__}
    origin["settings"] = as_values(settings, NOT_IN_FILES)
    handovers = tuple(str(span.first) for span in spans[1:])
    return WalkForward(replace(found, verdicts=verdicts, handovers=handovers), spans, origin)


def _train(settings: WalkForwardSettings, span: Span, place: Path, folder: Path, console: Console) -> None:
    """Train the policies of a span, or go on with them, on days that end the embargo before it."""
    split = settings.source.split
    start = span.trained_from if split.train_window == "rolling" else settings.source.start
    days = ByDates(test_start=span.first, embargo=split.embargo)
    begun = holds_run(place) and (place / SETTINGS).is_file()
    if not begun:
        # Left by a process that was killed before its first checkpoint.
        shutil.rmtree(place, ignore_errors=True)
    own = {"folder": None, "resume": place} if begun else {"folder": place, "resume": None}
    source = replace(settings.source, start=start, split=days)
    with plan(TrainSettings.of(settings, source=source, **own), console) as experiment:
        experiment.resumed_by = f"vecenv walk-forward --resume {shlex.quote(str(folder))}"
        experiment.fit()


def _traded(settings: WalkForwardSettings, place: Path, start: Any, end: Any) -> BacktestSettings:  # noqa: ANN401
    """Return the settings of a backtest of what lies in a folder, from a day to another one."""
    source = replace(settings.source, start=start, end=end, split=Whole())
    return BacktestSettings(
        checkpoint=str(place), task=settings.task, source=source, seed=settings.seed, env=settings.env
    )


def _history(settings: WalkForwardSettings, place: Path, whole: MarketTape, span: Span) -> History:
    """Return what a span's policies trade, under the rules that ``vecenv backtest`` takes from their folder."""
    checkpoints = policy_files(place)
    config = trained_under(next(iter(checkpoints.values())))["env"]
    traded = _traded(settings, place, span.first, span.last)
    return History(traded, settings.record, config, account_days(whole, traded), checkpoints, None, ())
