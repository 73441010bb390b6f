"""The command line ``vecenv``: command discovery, settings parsing, error reports and result files.

A command is an entry point of the group ``vecenv.commands``. It names a function whose only argument is annotated with
a dataclass of settings, and that returns a JSON-able dict; other packages add theirs the same way. If the dataclass has
a class method ``defaults(args)``, it returns the settings that the command line then overrides; options without effect
are refused and hidden by `vecenv.tasks.experiment.options`.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import tyro
from tyro import conf

import vecenv
from vecenv.distributed.launch import launched, recorded
from vecenv.system.interrupts import INTERRUPTED
from vecenv.system.later import entry_points
from vecenv.system.secrets import without_secrets
from vecenv.tasks.commands.importing import import_files, imported
from vecenv.tasks.commands.short_help import algorithms_help, presets_help, short_help
from vecenv.tasks.experiment.options import given_options, refuse_inapplicable

GROUP = "vecenv.commands"

COMMANDS = (
    EntryPoint("train", "vecenv.tasks.commands.train:main", GROUP),
    EntryPoint("sweep", "vecenv.tasks.commands.sweep:main", GROUP),
    EntryPoint("evaluate", "vecenv.tasks.commands.evaluate:main", GROUP),
    EntryPoint("compare", "vecenv.tasks.commands.compare:main", GROUP),
    EntryPoint("export", "vecenv.tasks.commands.export:main", GROUP),
    EntryPoint("runs", "vecenv.tasks.commands.runs:main", GROUP),
    EntryPoint("backtest", "vecenv.tasks.commands.backtest:main", GROUP),
    EntryPoint("walk-forward", "vecenv.tasks.commands.walk_forward:main", GROUP),
    EntryPoint("orders", "vecenv.tasks.commands.orders:main", GROUP),
    EntryPoint("play", "vecenv.tasks.commands.play:main", GROUP),
    EntryPoint("replay", "vecenv.tasks.commands.replay:main", GROUP),
    EntryPoint("collect", "vecenv.tasks.commands.collect:main", GROUP),
    EntryPoint("sft", "vecenv.tasks.commands.sft:main", GROUP),
    EntryPoint("serve", "vecenv.tasks.commands.serve:main", GROUP),
    EntryPoint("mcp", "vecenv.tasks.commands.mcp:main", GROUP),
    EntryPoint("models", "vecenv.tasks.commands.models:main", GROUP),
    EntryPoint("data", "vecenv.tasks.commands.data:main", GROUP),
    EntryPoint("sandbox", "vecenv.tasks.commands.sandbox:main", GROUP),
    EntryPoint("program", "vecenv.tasks.commands.program:main", GROUP),
)
"""Commands of this package."""

BAD_INPUT = 2
"""Exit codes."""

HELP, HELP_ALL = ("-h", "--help"), "--help-all"

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Invocation(Generic[Settings]):
    """Settings of a command, and options of all commands."""

    settings: Annotated[Settings, conf.arg(name="")]
    json: Path | None = None
    """File for the result, as JSON."""
    imports: Annotated[conf.UseAppendAction[tuple[Path, ...]], conf.arg(name="import", metavar="FILE")] = ()
    """Python file to import first, such as one that registers a task; may be given several times."""


def main(args: Sequence[str] | None = None) -> int:
    """Run ``vecenv``.

    Args:
        args: arguments after ``vecenv``, by default those of the process.

    Returns:
        Exit code: 0 on success, 2 after a `ValueError`, `OSError`, `ImportError`, `FloatingPointError` or lack of
        memory, reported in one line, 130 after an interruption.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words == ["--version"]:
        print(f"vecenv {vecenv.__version__}")
        return 0
    points = {point.name: point for point in (*COMMANDS, *entry_points(group=GROUP))}
    if not words or words[0] not in points:
        return _overview(points, words or ["--help"])
    name = words[0]
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            given = [
                Path(word.partition("=")[2] or file)
                for word, file in pairwise([*words, ""])
                if word.partition("=")[0] == "--import"
            ]
            import_files(given)
            imported[:] = given
            _run(points[name].load(), name, words[1:])
        except BrokenPipeError:
            # The reader closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            return _refused(name, without_secrets(str(error)))
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                recorded(f"{type(error).__name__}: {error}")
                raise
            reason = str(error).strip().partition("\n")[0]
            return _refused(name, f"there is not enough memory: {reason}")
        except KeyboardInterrupt:
            if args is None:
                # During shutdown a second Ctrl+C ends the process at once, without a traceback from clean-up code.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            return INTERRUPTED
        except SystemExit as stop:
            return int(stop.code or 0)
        except Exception as error:
            recorded(f"{type(error).__name__}: {error}")
            raise
    return 0


def _refused(name: str, reason: str) -> int:
    """Tell why a command has ended, and return the exit code; of a rank whoever started it tells."""
    if not recorded(reason):
        print(f"vecenv {name}: error: {reason}", file=sys.stderr)
    return BAD_INPUT


def _out_of_memory(error: Exception) -> bool:
    """Whether an error is an out-of-memory error; PyTorch's on a CPU is recognised by its message only."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return not kinds.isdisjoint(("MemoryError", "OutOfMemoryError")) or "can't allocate memory" in str(error)


def _run(command: Callable[[Any], dict[str, Any]], name: str, args: Sequence[str]) -> None:
    (kind,) = (hint for key, hint in get_type_hints(command, include_extras=True).items() if key != "return")
    default = tyro.MISSING_NONPROP
    if hasattr(kind, "defaults"):
        default = Invocation(kind.defaults(args))
    parse = partial(
        tyro.cli,
        Invocation[kind],  # type: ignore[valid-type]
        prog=f"vecenv {name}",
        config=(conf.CascadeSubcommandArgs, conf.DisallowNone),
    )
    description = (inspect.getdoc(command) or "").partition("\n\n")[0]
    if hasattr(kind, "defaults") and any(word in HELP for word in args):
        _show_help(name, description, _as_far_as_given(parse, args, default).settings)
        return
    args = ["--help" if word == HELP_ALL else word for word in args]
    invocation = parse(description=description, args=args, default=default)
    target = invocation.json
    if target is not None and not target.absolute().parent.is_dir():
        raise ValueError(f"{target}: there is no folder {target.parent}")
    refuse_inapplicable(invocation.settings, given_options(args))
    if hasattr(invocation.settings, "num_ranks") and (count := invocation.settings.num_ranks()):
        launched(count, [name, *args])
        return
    result = command(invocation.settings)
    if target is not None and result is not None:
        target.write_text(json.dumps(result, indent=2, default=str) + "\n")


def _show_help(name: str, description: str, settings: object) -> None:
    """Print a line for each setting that there is under the options given, and for each preset."""
    print(f"usage: vecenv {name} [OPTIONS]; {HELP_ALL} tells more of each\n\n{description}")
    if hasattr(settings, "env") and not getattr(settings, "checkpoint", True):
        print("Where a run is given, its task, rules and market are the defaults: --help beside it shows them.")
    # Loaded with them.
    from vecenv.tasks.experiment.settings import TrainSettings

    if isinstance(settings, TrainSettings):
        print(f"\n{presets_help(settings.task)}\n\n{algorithms_help()}")
    print(short_help(settings))
    print(f"\n  {'--json FILE':<36}Write the result as JSON\n  {'--import FILE':<36}Import a Python file first")


def _as_far_as_given(
    parse: Callable[..., Invocation[Settings]], args: Sequence[str], default: Invocation[Settings]
) -> Invocation[Settings]:
    """Return the settings parsed from the arguments beside ``--help``, or the defaults if they are incomplete."""
    words = [word for word in args if word not in HELP]
    if not words:
        return default
    try:
        return parse(args=words, default=default, console_outputs=False)
    except (SystemExit, ValueError):
        return default


def _overview(points: dict[str, EntryPoint], words: list[str]) -> int:
    """Show all commands, or reject an unknown one, without importing any."""

    def described(point: EntryPoint) -> Callable[[], None]:
        def command() -> None: ...

        command.__doc__ = _summary(point)
        return command

    try:
        tyro.extras.subcommand_cli_from_dict(
            {name: described(point) for name, point in points.items()},
            prog="vecenv",
            description="Thousands of trading environments in one compiled step: train, evaluate, measure.",
            args=words,
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _summary(point: EntryPoint) -> str:
    """Return the first line of the docstring of a command's module, read from its source."""
    spec = find_spec(point.module)
    source = Path(spec.origin).read_text() if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:  # noqa: ANN401
    if os.environ.get("RANK", "0") != "0":
        # The first rank warns of the same.
        return
    print(f"warning: {without_secrets(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
