"""Files that commands import first, such as one that registers a task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb

imported: list[Path] = []
"""Files that the command in this process has imported, for processes that it starts."""


def import_files(files: Sequence[Path]) -> None:
    """Import Python files as `python FILE` would run them; ImportError naming file and line of what fails in one."""
    for file in files:
        _import(file)


def _import(file: Path) -> None:
    """Import a Python file as `python FILE` would run it; ImportError naming file and line of what fails in it."""
    if file.suffix != ".py" or not file.is_file():
        raise ImportError(f"--import {file}: there is no such Python file")
    if getattr(sys.modules.get(file.stem), "__file__", None) == str(file.absolute()):
        # A command before in this process has imported it.
        return
    sys.path.insert(0, str(file.absolute().parent))
    spec = spec_from_file_location(file.stem, file.absolute())
    assert spec is not None and spec.loader is not None
    if file.stem in sys.modules:
        raise ImportError(f"--import {file}: there is a module {file.stem!r} already; give the file another name")
    sys.modules[file.stem] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[file.stem]
        lines = [each.lineno for each in extract_tb(error.__traceback__) if each.filename == module.__file__]
        at = f", line {lines[-1]}" if lines else ""
        raise ImportError(f"--import {file}{at}: {type(error).__name__}: {error}") from error
