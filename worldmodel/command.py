"""Train a neural market, draw histories from it, and measure how real they are."""

from __future__ import annotations

from typing import Annotated, Any

from tyro import conf

from worldmodel.generate_command import GenerateSettings, generate
from worldmodel.train_command import TrainSettings, train
from worldmodel.validate_command import ValidateSettings, validate

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
