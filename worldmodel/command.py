"""Train a neural market, and draw histories from it."""

from __future__ import annotations

from typing import Annotated, Any

from tyro import conf

from worldmodel.generate_command import GenerateSettings, generate
from worldmodel.train_command import TrainSettings, train

Settings = Annotated[TrainSettings, conf.subcommand("train")] | Annotated[GenerateSettings, conf.subcommand("generate")]


def main(settings: Settings) -> dict[str, Any]:
    """Train a neural market, and draw histories from it."""
    return train(settings) if isinstance(settings, TrainSettings) else generate(settings)
