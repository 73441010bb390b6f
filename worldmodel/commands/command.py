"""Train a neural market, draw histories from it, and measure how real they are."""

from __future__ import annotations

from typing import Annotated, Any

from tyro import conf

from vecenv.worldmodel.commands.generate import GenerateSettings, generate
from vecenv.worldmodel.commands.train import TrainSettings, train
from vecenv.worldmodel.commands.validate import ValidateSettings, validate

Settings = (
    Annotated[TrainSettings, conf.subcommand("train")]
    | Annotated[GenerateSettings, conf.subcommand("generate")]
    | Annotated[ValidateSettings, conf.subcommand("validate")]
)


def main(settings: Settings) -> dict[str, Any]:
    """Train a neural market, draw histories from it, and measure how real they are."""
    if isinstance(settings, TrainSettings):
        return train(settings)
    return generate(settings) if isinstance(settings, GenerateSettings) else validate(settings)
