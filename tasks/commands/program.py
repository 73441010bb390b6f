"""Check, explain, run and export strategies written in the language of programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro import conf

from vecenv.system.settings import Count, Seed, Settings

if TYPE_CHECKING:
    from vecenv.programs.expressions import Program

# torch takes seconds to import, so what needs it is imported where it runs.

REFERENCE = "buy_and_hold"


@dataclass(frozen=True)
class ProgramSettings(Settings):
    """What all parts of the command read."""

    file: conf.Positional[Path]
    """Text of a program."""
    task: str = "stock_trading"
    """Task whose names a program reads, and whose action it ends with."""


@dataclass(frozen=True)
class CheckSettings(ProgramSettings):
    """Check types, units and limits, and print the normal form."""


@dataclass(frozen=True)
class ExplainSettings(ProgramSettings):
    """Show what is evaluated ahead, what step by step, and in which operations."""


@dataclass(frozen=True)
class RunSettings(ProgramSettings):
    """Play a program, beside buy and hold, on the same episodes."""

    market: str | None = None
    """File of bars or name of a generator, by default the task's."""
    episodes: Count = 256
    """Episodes."""
    seed: Seed = 0
    """Seed of market and episodes."""


@dataclass(frozen=True)
class ExportSettings(ProgramSettings):
    """Write a program as a Python module that needs NumPy alone."""

    out: Path = Path("strategy.py")
    """File to write."""


AnySettings = (
    Annotated[CheckSettings, conf.subcommand("check")]
    | Annotated[ExplainSettings, conf.subcommand("explain")]
    | Annotated[RunSettings, conf.subcommand("run")]
    | Annotated[ExportSettings, conf.subcommand("export")]
)


def main(settings: AnySettings) -> dict[str, Any]:
    """Check, explain, run and export strategies written in the language of programs."""
    from vecenv.registry import task_named
    from vecenv.tasks.experiment.programs import read_program

    program, config = read_program(settings.file, task_named(settings.task))
    if isinstance(settings, RunSettings):
        return _run(settings, program, config)
    if isinstance(settings, ExportSettings):
        return _export(settings, program)
    return _explain(settings, program) if isinstance(settings, ExplainSettings) else _check(settings, program)


def _check(settings: CheckSettings, program: Program) -> dict[str, Any]:
    from vecenv.programs.graph import Graph
    from vecenv.programs.printing import hints, printed

    console, graph, text = Console(), Graph([program]), printed(program)
    operations = sum(bool(node.operands) for node in graph.nodes)
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    facts = {"lines": len(program.lines), "operations": operations, "bars": graph.history()}
    console.print(f"# {facts['lines']} lines, {operations} operations, first action after {facts['bars']} bars")
    if unused := program.unused():
        console.print(f"# without effect: {', '.join(unused)}")
    for hint in (told := hints(program)):
        console.print(f"# {hint}", markup=False, highlight=False, soft_wrap=True)
    return {"file": str(settings.file), "normal_form": text, **facts, "unused": unused, "hints": told}


def _explain(settings: ExplainSettings, program: Program) -> dict[str, Any]:
    from vecenv.programs.expressions import names_in
    from vecenv.programs.graph import Graph
    from vecenv.programs.printing import line_text

    graph, features, unused = Graph([program]), program.vocabulary.features, program.unused()
    table, account = Table(box=None), {name for name, feature in features.items() if feature.account}
    for header in ("Name", "Unit", "Evaluated", "Expression"):
        table.add_column(header)
    for name, line in program.lines.items():
        if account & names_in(line):
            account.add(name)
        when = "never" if name in unused else "at each step" if name in account else "ahead"
        table.add_row(name, program.kinds[name], when, line_text(line))
    steps: dict[str, Counter[str]] = {"ahead": Counter(), "at each step": Counter()}
    for node, own in zip(graph.nodes, graph.account, strict=True):
        if node.operands:
            steps["at each step" if own else "ahead"][node.operation] += 1
    console = Console()
    console.print(table)
    for when, counts in steps.items():
        told = ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"
        console.print(f"{when}: {told}")
    console.print(f"{graph.depth()} levels; {graph.history()} bars of the past")
    found = {when.replace(" ", "_"): dict(counts) for when, counts in steps.items()}
    return {"file": str(settings.file), **found, "levels": graph.depth(), "bars": graph.history()}


def _run(settings: RunSettings, program: Program, config: Any) -> dict[str, Any]:  # noqa: ANN401
    import vecenv
    from vecenv.finance.accounts import tape_of
    from vecenv.learn.evaluation import evaluate
    from vecenv.learn.report import show_evaluation
    from vecenv.learn.verdict import verdicts
    from vecenv.registry import task_named
    from vecenv.tasks.experiment.progress import wide_console
    from vecenv.tasks.experiment.splits import show_market

    task, console = task_named(settings.task), wide_console()
    options = {"market": settings.market, "seed": settings.seed, "config": config, "compile": False}
    env = vecenv.make(task, settings.episodes, **options)
    agents = {settings.file.stem: task.check_programs().agent([program])}
    agents |= {name: task.agents[name]() for name in (REFERENCE,) if name in task.agents}
    show_market(console, tape_of(env), {"Played": tape_of(env)})
    evaluation = evaluate(env, agents, settings.seed)
    told = verdicts(evaluation, [settings.file.stem])
    show_evaluation(console, evaluation, told)
    return {"file": str(settings.file), **evaluation.to_json(), "verdicts": [one.to_json() for one in told]}


def _export(settings: ExportSettings, program: Program) -> dict[str, Any]:
    from vecenv.programs.export import exported

    settings.out.write_text(exported(program), encoding="utf-8")
    Console().print(f"{settings.out} written", soft_wrap=True)
    return {"file": str(settings.file), "module": str(settings.out)}
