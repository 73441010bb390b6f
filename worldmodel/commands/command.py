"""Train a neural market, fit one to your own data, draw histories from it, and measure how real they are."""

from __future__ import annotations

from typing import Annotated, Any

from rich.console import Console
from tyro import conf

from vecenv.worldmodel.commands.settings import DescribeSettings, FitSettings, GenerateSettings, TrainSettings
from vecenv.worldmodel.validation.settings import ValidateSettings

# What runs needs PyTorch, which settings do not, and is imported by its command.

UNKNOWN = "–"


def describe(settings: DescribeSettings) -> dict[str, Any]:
    """Describe a neural market: its weights, and the data that they were trained on.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: it is not one of a neural market.
    """
    from vecenv.worldmodel.network.checkpoint import load_network, model_file

    file = model_file(settings.model)
    saved = load_network(file)
    parameters = sum(tensor.numel() for tensor in saved.network.parameters())
    label = saved.record.get("label")
    console = Console()
    console.print(f"{file}: {parameters:,} parameters, labelled {label or UNKNOWN}", soft_wrap=True)
    sources = saved.record.get("sources", {})
    for name in saved.network.settings.markets:
        source = sources.get(name, {})
        first, trained, chosen, digest = (
            source.get(key, UNKNOWN) for key in ("first_day", "train_end", "validation_end", "sha256")
        )
        symbols = len(source.get("symbols", ()))
        told = f"{symbols} symbols from {first}, trained until {trained}, chosen until {chosen}, bars {digest}"
        console.print(f"{name}: {told}", soft_wrap=True)
    if (start := saved.record.get("init")) is not None:
        console.print(f"Fitted from {start['weights']}, market {start.get('market', UNKNOWN)}", soft_wrap=True)
    return {"file": str(file), "parameters": parameters, "label": label, "sources": sources}


Settings = (
    Annotated[TrainSettings, conf.subcommand("train")]
    | Annotated[FitSettings, conf.subcommand("fit")]
    | Annotated[GenerateSettings, conf.subcommand("generate")]
    | Annotated[ValidateSettings, conf.subcommand("validate")]
    | Annotated[DescribeSettings, conf.subcommand("describe")]
)


def main(settings: Settings) -> dict[str, Any] | None:
    """Train a neural market, fit one to your own data, draw histories from it, and measure how real they are."""
    match settings:
        case TrainSettings():
            from vecenv.worldmodel.commands.train import train

            return train(settings)
        case FitSettings():
            from vecenv.worldmodel.commands.fit import fit

            return fit(settings)
        case GenerateSettings():
            from vecenv.worldmodel.commands.generate import generate

            return generate(settings)
        case ValidateSettings():
            from vecenv.worldmodel.commands.validate import validate

            return validate(settings)
        case DescribeSettings():
            return describe(settings)
