"""Look whether this machine can hold hostile programs, and run one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro import conf

from vecenv.sandbox.attacks import failures
from vecenv.sandbox.jail import LAYERS, Layer, lacking
from vecenv.sandbox.job import Job, Limits
from vecenv.sandbox.languages import LANGUAGES
from vecenv.sandbox.sandbox import Sandbox
from vecenv.system.settings import Settings


@dataclass(frozen=True)
class DoctorSettings(Settings):
    """Tell which layers of the jail hold on this machine, and run the attacks on them."""

    without: tuple[Layer, ...] = ()
    """Layers to do without."""


@dataclass(frozen=True)
class RunSettings(Settings):
    """Run a program in the jail, on the standard input of the command."""

    file: conf.Positional[Path]
    """The program."""
    language: str = "python"
    """Its language: python, javascript, shell or sql."""
    packages: tuple[str, ...] = ()
    """Packages that a Python program may import, such as numpy."""
    without: tuple[Layer, ...] = ()
    """Layers to do without."""
    limits: Limits = field(default_factory=Limits)
    """What it may use."""


SandboxSettings = Annotated[DoctorSettings, conf.subcommand("doctor")] | Annotated[RunSettings, conf.subcommand("run")]


def main(settings: SandboxSettings) -> dict[str, Any]:
    """Look whether this machine can hold hostile programs, and run one.

    Raises:
        ValueError: a layer is missing, or an attack succeeded.
    """
    return _doctor(settings) if isinstance(settings, DoctorSettings) else _run(settings)


def _doctor(settings: DoctorSettings) -> dict[str, Any]:
    console, missing = Console(), lacking()
    layers = Table("layer", "on this machine", title="Layers")
    for name in LAYERS:
        layers.add_row(name, missing.get(name, "holds" if name not in settings.without else "not used"))
    for name, language in LANGUAGES.items():
        here = not language.command or language.executable() is not None
        layers.add_row(name, "can be run" if here else f"there is no {language.command[0]}")
    console.print(layers)
    with Sandbox(1, settings.without, engines=["jail"]) as sandbox:
        found = failures(sandbox)
    attacks = Table("attack", "outcome", title="Attacks")
    for name, fault in found.items():
        attacks.add_row(name, f"SUCCEEDED: {fault}" if fault else "failed, as it must")
    console.print(attacks)
    if succeeded := [name for name, fault in found.items() if fault]:
        raise ValueError(f"this machine does not hold hostile programs: {', '.join(succeeded)}")
    return {"layers": {name: missing.get(name, "") for name in LAYERS}, "attacks": found}


def _run(settings: RunSettings) -> dict[str, Any]:
    stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    with Sandbox(1, settings.without, settings.packages) as sandbox:
        (result,) = sandbox.run([Job(settings.file.read_bytes(), settings.language, stdin, {}, settings.limits)])
    print(result.text, end="")
    print(result.stderr.decode(errors="replace"), end="", file=sys.stderr)
    print(result.message or f"{result.status}, exit code {result.exit_code}, {result.cpu:.3f} s", file=sys.stderr)
    return {"status": result.status, "exit_code": result.exit_code, "cpu_seconds": result.cpu}
