"""Train a neural market, fit one to your own data, draw histories from it, and measure how real they are."""

from __future__ import annotations

from typing import Annotated, Any

from tyro import conf

from vecenv.worldmodel.commands.describe import DescribeSettings, describe
from vecenv.worldmodel.commands.fit import FitSettings, fit
from vecenv.worldmodel.commands.generate import GenerateSettings, generate
from vecenv.worldmodel.commands.train import TrainSettings, train
from vecenv.worldmodel.commands.validate import ValidateSettings, validate

Settings = (
    Annotated[TrainSettings, conf.subcommand("train")]
    | Annotated[FitSettings, conf.subcommand("fit")]
    | Annotated[GenerateSettings, conf.subcommand("generate")]
    | Annotated[ValidateSettings, conf.subcommand("validate")]
    | Annotated[DescribeSettings, conf.subcommand("describe")]
)


def main(settings: Settings) -> dict[str, Any]:
    """Train a neural market, fit one to your own data, draw histories from it, and measure how real they are."""
    match settings:
        case TrainSettings():
            return train(settings)
        case FitSettings():
            return fit(settings)
        case GenerateSettings():
            return generate(settings)
        case ValidateSettings():
            return validate(settings)
        case DescribeSettings():
            return describe(settings)
