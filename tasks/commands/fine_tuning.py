"""Supervised training by `vecenv sft`: its folder, its conversations and what it is resumed by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.distributed.command import as_started, identity
from vecenv.language.supervised import Messages, checked_messages
from vecenv.language.supervised_checkpoint import SupervisedCheckpoint
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.learn.shards import Ranks
from vecenv.system.files import WriteLock
from vecenv.tasks.experiment.imitation import imitate
from vecenv.tasks.experiment.progress import wide_console

if TYPE_CHECKING:
    from vecenv.tasks.commands.sft import SftSettings


def fine_tuned(settings: SftSettings) -> dict[str, Any] | None:
    """Train a language model on conversations, such as those of vecenv collect: the start of GRPO."""
    with as_started(settings, device_named(settings.device), settings.all_shards) as own:
        folder = Path(own.told_by_first(str(settings.folder or f"runs/sft-{datetime.now():%Y%m%d-%H%M%S}")))
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} exists already and is no folder")
        with WriteLock(folder) if own.number == 0 else nullcontext() as lock:
            checkpoint = folder / CHECKPOINT
            ours = (checkpoint, checkpoint.with_name(f"{CHECKPOINT}.partial"))
            if lock and any(path not in (lock.file, *ours) for path in folder.iterdir()):
                raise ValueError(f"{folder} exists already and is not empty")
            return _run(settings, folder, own)


def _run(settings: SftSettings, folder: Path, own: Ranks) -> dict[str, Any] | None:
    console = wide_console() if own.number == 0 else Console(quiet=True)
    conversations = read_conversations(settings.data)
    data = hashlib.sha256(json.dumps(conversations).encode()).hexdigest()
    without = ("folder", "data", "shards", "checkpoint_every")
    origin = identity(settings, without, data=data, shards=settings.all_shards)
    # Also that the others wait until the first has the folder.
    own.same(origin)
    kept = SupervisedCheckpoint(folder / CHECKPOINT, settings.checkpoint_every, origin)
    told = imitate(
        conversations, folder, console, settings.training, settings.language, settings.tiny, settings.seed,
        device_named(settings.device), settings.model, settings.lora_rank, settings.all_shards, kept,
    )  # fmt: skip
    console.print(f"Written to {folder}", soft_wrap=True)
    return {"folder": str(folder), **told} if own.number == 0 else None


def read_conversations(files: Sequence[Path]) -> list[Messages]:
    """Return the messages of all lines of the files; a line that is none, or no line, is a ValueError."""
    found: list[Messages] = []
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            name = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{name}: not JSON: {error.msg}") from error
            found.append(checked_messages(value.get("messages") if isinstance(value, dict) else None, name))
    if not found:
        raise ValueError(f"{', '.join(map(str, files)) or 'no file'}: there is no conversation")
    return found
